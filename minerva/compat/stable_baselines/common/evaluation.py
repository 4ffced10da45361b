"""`evaluate_policy`: evaluate a model over several episodes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from minerva.callbacks.checks import positive_int
from minerva.compat.auto_reset import AutoResetEnv
from minerva.compat.stable_baselines.common.vec_env.base_vec_env import VecEnv


def evaluate_policy(
    model: Any,
    env: Any,
    n_eval_episodes: int = 10,
    deterministic: bool = True,
    render: bool = False,
    callback: Callable[[dict[str, Any], dict[str, Any]], Any] | None = None,
    reward_threshold: float | None = None,
    return_episode_rewards: bool = False,
) -> tuple[Any, Any]:
    """Run whole episodes and summarize their returns.

    Args:
        model: The model; the state of a recurrent policy is reset at the start of each episode.
        env: An environment of Gymnasium or gym, or a vector environment that holds one.
        n_eval_episodes: Number of episodes.
        deterministic: Whether to take the most likely action instead of a sample.
        render: Whether to render the episodes.
        callback: Called after each step with the local and the global variables.
        reward_threshold: The mean return must exceed this value.
        return_episode_rewards: Whether to return the result of each episode instead of a summary.

    Returns:
        Mean and standard deviation of the returns, or, with `return_episode_rewards`, lists of returns and lengths.

    Raises:
        ValueError: `env` holds more than one environment.
        AssertionError: The mean does not exceed the threshold.
    """
    n_eval_episodes = positive_int("n_eval_episodes", n_eval_episodes)
    is_vector = isinstance(env, VecEnv)
    if is_vector and env.num_envs != 1:
        raise ValueError(f"env: must hold one environment for an evaluation, got {env.num_envs}.")
    place = env if is_vector else AutoResetEnv(env)
    returns: list[float] = []
    lengths: list[int] = []
    for i in range(n_eval_episodes):
        if i == 0 or not is_vector:  # the next episode of a vector environment has started already
            obs = place.reset()
        done, state, episode_reward, episode_length = False, None, 0.0, 0
        while not done:
            action, state = model.predict(obs, state=state, deterministic=deterministic)
            new_obs, reward, done, _info = place.step(action)
            obs, done = new_obs, bool(np.all(done))
            episode_reward += float(np.sum(reward))
            if callback is not None:
                callback(locals(), globals())
            episode_length += 1
            if render:
                env.render()
        returns.append(episode_reward)
        lengths.append(episode_length)
    mean = float(np.mean(returns))
    if reward_threshold is not None and mean <= reward_threshold:
        raise AssertionError(f"reward_threshold: the mean return must exceed {reward_threshold:.2f}, got {mean:.2f}.")
    return (returns, lengths) if return_episode_rewards else (mean, float(np.std(returns)))
