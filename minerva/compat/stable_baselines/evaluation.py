"""`evaluate_policy`: episodes of a model, one after the other."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, overload

import gymnasium
import numpy as np

from minerva.compat.stable_baselines.vec_env import DummyVecEnv, VecEnv

Look = Callable[[dict[str, Any], dict[str, Any]], Any]
"""Called after each step with the local and the global variables."""


@overload
def evaluate_policy(
    model: Any,
    env: gymnasium.Env[Any, Any] | VecEnv,
    n_eval_episodes: int = 10,
    deterministic: bool = True,
    render: bool = False,
    callback: Look | None = None,
    reward_threshold: float | None = None,
    return_episode_rewards: Literal[False] = False,
) -> tuple[float, float]: ...


@overload
def evaluate_policy(
    model: Any,
    env: gymnasium.Env[Any, Any] | VecEnv,
    n_eval_episodes: int = 10,
    deterministic: bool = True,
    render: bool = False,
    callback: Look | None = None,
    reward_threshold: float | None = None,
    *,
    return_episode_rewards: Literal[True],
) -> tuple[list[float], list[int]]: ...


def evaluate_policy(
    model: Any,
    env: gymnasium.Env[Any, Any] | VecEnv,
    n_eval_episodes: int = 10,
    deterministic: bool = True,
    render: bool = False,
    callback: Look | None = None,
    reward_threshold: float | None = None,
    return_episode_rewards: bool = False,
) -> tuple[float, float] | tuple[list[float], list[int]]:
    """Run whole episodes, and sum up the rewards as the environment gives them.

    Args:
        model: What acts; a memory begins each episode empty.
        env: One environment: a `gymnasium.Env`, or a vector environment with one in it.
        n_eval_episodes: How many.
        deterministic: Whether the likeliest actions are taken.
        render: Whether episodes are shown.
        callback: Called after each step.
        reward_threshold: The least mean return.
        return_episode_rewards: Give what each episode came to, in place of a summary.

    Returns:
        Mean and standard deviation of the returns, or the returns and the lengths.

    Raises:
        ValueError: There is more than one environment, or the mean is below the threshold.
    """
    if isinstance(n_eval_episodes, bool) or not isinstance(n_eval_episodes, int) or n_eval_episodes < 1:
        raise ValueError(f"n_eval_episodes: must be a whole number from 1 on, got {n_eval_episodes!r}.")
    venv = env if isinstance(env, VecEnv) else DummyVecEnv([lambda: env])
    if venv.num_envs != 1:
        raise ValueError(f"env: must hold one environment for an evaluation, got {venv.num_envs}.")
    returns: list[float] = []
    lengths: list[int] = []
    obs = venv.reset()
    for _ in range(n_eval_episodes):
        total, length, done, state = 0.0, 0, False, None
        while not done:
            action, state = model.predict(obs, state=state, deterministic=deterministic)
            obs, reward, ends, _infos = venv.step(action)  # the next episode begins by itself
            done = bool(ends[0])
            total += float(reward[0])
            length += 1
            if callback is not None:
                callback(locals(), globals())
            if render:
                venv.render()
        returns.append(total)
        lengths.append(length)
    mean = float(np.mean(returns))
    if reward_threshold is not None and mean <= reward_threshold:
        raise ValueError(f"reward_threshold: the mean return {mean:.2f} is not above {reward_threshold:.2f}.")
    return (returns, lengths) if return_episode_rewards else (mean, float(np.std(returns)))
