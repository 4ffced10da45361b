"""Check that an environment does what its interface asks for, with gym's interface or Gymnasium's."""

from __future__ import annotations

import warnings
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from minerva.compat.gym.core import Env, GoalEnv

STEPS = 10
"""Number of random steps whose numbers are checked."""


def check_env(env: Any, warn: bool = True, skip_render_check: bool = True) -> None:
    """Check an environment.

    Args:
        env: The environment, of gym or Gymnasium.
        warn: Whether to warn of what is allowed but learns badly.
        skip_render_check: Whether to leave out rendering.

    Raises:
        AssertionError: The environment breaks a rule of its interface; the message names the rule.
    """
    _require(
        isinstance(env, (Env, gymnasium.Env)),
        f"env: must inherit from gym.Env or gymnasium.Env, got {type(env).__module__}.{type(env).__qualname__}.",
    )
    for name in ("observation_space", "action_space"):
        space = getattr(env, name, None)
        _require(isinstance(space, spaces.Space), f"{name}: must be a space (see gym.spaces), got {space!r}.")
    if warn:
        _warn_of_observations(env)
        _warn_of_actions(env.action_space)
    observation = _check_reset(env)
    _check_step(env, observation)
    if not skip_render_check:
        _check_render(env, warn)
    if _is_array(env.observation_space):
        _check_numbers(env)


def _require(condition: bool, sentence: str) -> None:
    if not condition:
        raise AssertionError(sentence)


def _warn(sentence: str) -> None:
    warnings.warn(sentence, UserWarning, stacklevel=4)


def _is_array(space: Any) -> bool:
    return not isinstance(space, (spaces.Dict, spaces.Tuple))


def _warn_of_observations(env: Any) -> None:
    space = env.observation_space
    if isinstance(space, spaces.Tuple) or (isinstance(space, spaces.Dict) and not isinstance(env, GoalEnv)):
        _warn(f"observation_space: a {type(space).__name__} is not supported by PPO2; flatten the observations.")
    if not isinstance(space, spaces.Box):
        return
    if len(space.shape) == 3:
        if space.dtype != np.uint8:
            _warn(
                f"observation_space: has the shape of an image, but its dtype is {space.dtype}, not uint8; if it is "
                "not an image, flatten it to a vector."
            )
        if np.any(space.low != 0) or np.any(space.high != 255):
            _warn(
                "observation_space: has the shape of an image, but its bounds are not 0 and 255, as CnnPolicy expects."
            )
        if min(space.shape[:2]) < 36:
            _warn(
                f"observation_space: an image must be at least 36 x 36 for CnnPolicy, got {space.shape}; a smaller one "
                "needs a policy of its own."
            )
    elif len(space.shape) != 1:
        _warn(
            f"observation_space: is neither an image nor a vector, its shape is {space.shape}; flatten it to a vector."
        )


def _warn_of_actions(space: Any) -> None:
    if isinstance(space, spaces.Box) and (np.any(space.low != -space.high) or np.any(np.abs(space.high) > 1)):
        _warn("action_space: learning is easier if the bounds of each action are -1 and 1.")


def _check_reset(env: Any) -> Any:
    result = env.reset()
    if _is_new_reset(env, result):
        result = result[0]
    _check_observation(env.observation_space, result, "reset")
    return result


def _is_new_reset(env: Any, result: Any) -> bool:
    pair = isinstance(result, tuple) and len(result) == 2 and isinstance(result[1], dict)
    return pair and isinstance(env, gymnasium.Env)


def _check_step(env: Any, first: Any) -> None:
    result = env.step(env.action_space.sample())
    count = len(result) if isinstance(result, tuple) else 1
    is_new = count == 5 and isinstance(env, gymnasium.Env)
    _require(
        count == 4 or is_new,
        "step: must return four values, (observation, reward, done, info), or as a gymnasium.Env five, (observation, "
        f"reward, terminated, truncated, info); got {count}.",
    )
    observation, reward, *over, info = result
    _check_observation(env.observation_space, observation, "step")
    numbers = (float, int, np.floating, np.integer) if is_new else (float, int)
    _require(isinstance(reward, numbers), f"step: the reward must be a float, got {type(reward).__name__}.")
    flags = (bool, np.bool_) if is_new else (bool,)
    for name, flag in zip(("terminated", "truncated") if is_new else ("done",), over, strict=True):
        _require(isinstance(flag, flags), f"step: {name} must be a bool, got {type(flag).__name__}.")
    _require(isinstance(info, dict), f"step: info must be a dict, got {type(info).__name__}.")
    if isinstance(env, GoalEnv):
        computed = env.compute_reward(observation["achieved_goal"], observation["desired_goal"], info)
        _require(reward == computed, f"step: the reward must be compute_reward's, {computed}, got {reward}.")


def _check_observation(space: Any, observation: Any, method: str) -> None:
    where = f"{method}: the observation"
    if not isinstance(space, spaces.Tuple):
        _require(not isinstance(observation, tuple), f"{where} must be a single value, got a tuple.")
    if isinstance(space, spaces.Discrete):
        _require(isinstance(observation, (int, np.integer)), f"{where} must be an int, got {_kind(observation)}.")
    elif _is_array(space):
        _require(isinstance(observation, np.ndarray), f"{where} must be a NumPy array, got {_kind(observation)}.")
        if isinstance(space, spaces.Box):  # older spaces did not look at the precision of floats
            observation = observation.astype(np.result_type(space.dtype), casting="same_kind", copy=False)
    _require(space.contains(observation), f"{where} must be in the observation space {space}, got {observation!r}.")


def _kind(value: Any) -> str:
    return f"{type(value).__name__}"


def _check_render(env: Any, warn: bool) -> None:
    if isinstance(env, gymnasium.Env):
        if env.render_mode is not None:
            env.render()
        return
    modes = getattr(env, "metadata", {}).get("render.modes")
    if modes is None:
        if warn:
            _warn("metadata: has no 'render.modes', so that render may fail.")
        return
    for mode in modes:
        env.render(mode=mode)
    env.close()


def _check_numbers(env: Any) -> None:
    env.reset()
    for _ in range(STEPS):
        observation, reward, *over, _info = env.step(env.action_space.sample())
        for name, number in (("observation", observation), ("reward", reward)):
            if not np.all(np.isfinite(number)):
                _warn(f"step: the {name} must be finite, got {number!r}.")
        if any(over):
            env.reset()
