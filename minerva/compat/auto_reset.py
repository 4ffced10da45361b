"""Automatic reset for the environments of a `VecEnv` (this file must not import torch: worker processes import it).

An environment may have Gymnasium's interface or gym's: they are told apart by what they accept and return.
"""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable, Sequence
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from minerva.compat.gym.core import GymnasiumAdapter
from minerva.environments.base import EnvironmentFailureError
from minerva.environments.checks import described, error_text
from minerva.environments.masks import write_mask
from minerva.environments.spaces import category_counts
from minerva.environments.workers import is_from_gymnasium

Info = dict[str, Any]
EnvFactory = Callable[[], Any]
"""A function that makes an environment with Gymnasium's or gym's interface."""
Advance = tuple[Any, Any, bool, Info]
"""An observation, a reward, whether an episode ended, and the info."""


class AutoResetEnv:
    """Step an environment, of Gymnasium or gym, with automatic reset; record its episodes.

    Args:
        env: The environment.

    Attributes:
        int_actions: Whether discrete actions may be Python integers, which classes of Gymnasium check faster.
    """

    def __init__(self, env: Any) -> None:
        for name in ("reset", "step"):
            if not callable(getattr(env, name, None)):
                raise ValueError(f"env: must be an environment with the methods reset and step, got {described(env)}.")
        for name in ("observation_space", "action_space"):
            if not isinstance(getattr(env, name, None), gymnasium.Space):
                raise ValueError(
                    f"env: its {name} must be a gymnasium.Space, got {described(getattr(env, name, None))}; "
                    "minerva.compat.gym.spaces has the same classes."
                )
        self.env = env
        self.observation_space: spaces.Space[Any] = env.observation_space
        self.action_space: spaces.Space[Any] = env.action_space
        # What is only Gymnasium's with gym's interface is stepped without it, which takes less time.
        self._adapter = env if type(env) is GymnasiumAdapter else None
        self._stepped = env if self._adapter is None else self._adapter.gymnasium_env
        self.int_actions = isinstance(env.action_space, spaces.Discrete) and is_from_gymnasium(_foreign(env))
        self._seeds_in_reset = _accepts_seed(self._stepped)
        self._monitored = _find(env, "get_episode_rewards") is not None
        self._mask_counts = category_counts(env.action_space) if _find(env, "action_masks") is not None else ()
        self._seed: int | None = None  # of the next reset
        self._return = 0.0
        self._length = 0
        self._start_time = time.time()

    @property
    def mask_dim(self) -> int:
        """Length of the action mask; 0 without a method ``action_masks()``."""
        return sum(self._mask_counts)

    def current_mask(self) -> Any:
        """Return the action mask as zeros and ones, ``[K]``."""
        row = np.zeros(self.mask_dim, dtype=np.float32)
        write_mask(self.attribute("action_masks")(), self._mask_counts, row, ended=False)
        return row

    def seed(self, seed: int | None) -> Any:
        """Seed the environment: an old one at once, any other with its next reset; return what was seeded."""
        if not self._seeds_in_reset:
            method = _find(self.env, "seed")
            return None if method is None else method(seed)
        self._seed = int(np.random.SeedSequence().generate_state(1)[0] >> 1) if seed is None else int(seed)
        return seed

    def reset(self) -> Any:
        """Start an episode and return its first observation."""
        seed, self._seed = self._seed, None
        if self._adapter is not None and seed is None:
            seed = self._adapter.take_seed()
        result = self._stepped.reset() if seed is None else self._stepped.reset(seed=seed)
        info: Info = {}
        if isinstance(result, tuple) and len(result) == 2 and isinstance(result[1], dict) and not self._is_pair():
            result, info = result
        if info.get("new_game", True):  # the lives of one Atari game are recorded as one episode
            self._return, self._length = 0.0, 0
        return result

    def _is_pair(self) -> bool:
        """Return whether an observation itself has the form of (observation, info)."""
        space = self.observation_space
        return isinstance(space, spaces.Tuple) and len(space.spaces) == 2 and isinstance(space.spaces[1], spaces.Dict)

    def step(self, action: Any) -> Advance:
        """Take a step. Where a time limit ends an episode, the info has ``TimeLimit.truncated``."""
        result: Any = self._stepped.step(action)
        count = len(result) if isinstance(result, (tuple, list)) else 0
        if count == 5:
            observation, reward, terminated, truncated, info = result
            done = bool(terminated or truncated)
            if done:
                info = {**info, "TimeLimit.truncated": bool(truncated and not terminated)}
        elif count == 4:
            observation, reward, done, info = result
            done = bool(done)
        else:
            raise ValueError(
                "env: step must return (observation, reward, done, info), or Gymnasium's (observation, reward, "
                f"terminated, truncated, info); got {described(result)}."
            )
        if not isinstance(info, dict):
            raise ValueError(f"env: the info that step returns must be a dict, got {described(info)}.")
        return observation, reward, done, info

    def advance(self, action: Any) -> Advance:
        """Take a step; if it ends the episode, start the next one and return its first observation.

        After an episode the info has ``terminal_observation``, and ``episode`` unless the end was a lost life.
        """
        observation, reward, done, info = self.step(action)
        if not self._monitored:
            self._return += float(reward)
            self._length += 1
        if not done:
            return observation, reward, False, info
        info = {**info, "terminal_observation": observation}
        if not self._monitored and "episode" not in info and not info.get("life_lost", False):
            elapsed = round(time.time() - self._start_time, 6)
            info["episode"] = {"r": round(self._return, 6), "l": self._length, "t": elapsed}
        return self.reset(), reward, True, info

    def render(self, mode: str) -> Any:
        """Render in a mode; environments of Gymnasium have theirs since they were made."""
        render = self.attribute("render")
        return render(mode=mode) if _accepts(render, "mode") else render()

    def attribute(self, name: str) -> Any:
        """Return an attribute of the environment or of one that it wraps.

        Raises:
            AttributeError: None of them has it.
        """
        for layer in _chain(self.env):
            if hasattr(layer, name):
                return getattr(layer, name)
        raise AttributeError(f"{type(self.env).__name__!r} object and what it wraps have no attribute {name!r}")

    def set_attribute(self, name: str, value: Any) -> None:
        """Set an attribute where it is found: on the environment or on one that it wraps, else on the environment."""
        setattr(next((env for env in _chain(self.env) if _has_own(env, name)), self.env), name, value)

    def call(self, name: str, args: Sequence[Any], kwargs: Info) -> Any:
        """Call a method of the environment or of one that it wraps."""
        return self.attribute(name)(*args, **kwargs)


class AutoResetGroup:
    """Environments with automatic reset, in this process or in a worker process.

    Args:
        factories: One function per environment.
        first_index: Index of the first of them.
    """

    def __init__(self, factories: Sequence[EnvFactory], first_index: int = 0) -> None:
        self.first_index = first_index
        self.hosts = [AutoResetEnv(make()) for make in factories]
        self.spaces = self.hosts[0].observation_space, self.hosts[0].action_space
        self.mask_dim = self.hosts[0].mask_dim

    def advance(self, actions: Sequence[Any]) -> list[Advance]:
        """Step every environment."""
        return [self._checked(i, "step", host.advance, (actions[i],)) for i, host in enumerate(self.hosts)]

    def ask(self, name: str, calls: Sequence[tuple[Any, ...] | None]) -> list[Any]:
        """Call a method of each `AutoResetEnv` with its arguments (None: no call)."""
        return [
            None
            if arguments is None
            else self._checked(i, arguments[0] if name == "call" else name, getattr(host, name), arguments)
            for i, (host, arguments) in enumerate(zip(self.hosts, calls, strict=True))
        ]

    def _checked(self, i: int, what: str, method: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
        try:
            return method(*arguments)
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # sys.exit in an environment too
            where, text = f"environment {self.first_index + i}", error_text(error)
            raise EnvironmentFailureError(
                f"{where} raised {type(error).__name__} in {what}{': ' * bool(text)}{text}"
            ) from error

    def close(self) -> None:
        """Close every environment."""
        hosts, self.hosts = self.hosts, []
        for host in hosts:
            close = getattr(host.env, "close", None)
            if close is not None:
                close()


def _chain(env: Any) -> Any:
    """Iterate over an environment and those that it wraps, from the outermost to the innermost."""
    while env is not None:
        yield env
        env = getattr(env, "__dict__", {}).get("env")


def _foreign(env: Any) -> Any:
    """Return the outermost environment that is not one of this package's wrappers."""
    while type(env).__module__.startswith("minerva.compat."):
        inner = env.gymnasium_env if isinstance(env, GymnasiumAdapter) else getattr(env, "__dict__", {}).get("env")
        if inner is None:
            break
        env = inner
    return env


def _find(env: Any, name: str) -> Any:
    """Return an attribute of the outermost environment that has it, or None."""
    for layer in _chain(env):
        found = getattr(layer, name, None)
        if found is not None:
            return found
    return None


def _has_own(env: Any, name: str) -> bool:
    """Return whether an environment has an attribute itself; an adapter has those of its environment."""
    own = name in getattr(env, "__dict__", {}) or hasattr(type(env), name)
    return own or (isinstance(env, GymnasiumAdapter) and hasattr(env, name))


def _accepts(function: Any, name: str) -> bool:
    """Return whether a function has a parameter of this name, or accepts any."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # a function that is not written in Python
        return False
    return any(p.name == name or p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters)


def _accepts_seed(env: Any) -> bool:
    """Return whether ``reset(seed=…)`` reaches the innermost environment."""
    layers = list(_chain(env))
    if not all(_accepts(layer.reset, "seed") for layer in layers):
        return False
    by_name = "seed" in inspect.signature(layers[-1].reset).parameters
    return by_name or _find(env, "seed") is None
