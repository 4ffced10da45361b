"""Measure Minerva, and the libraries that can be called directly, in the way that their users call them."""

from __future__ import annotations

import tempfile
import time
from typing import Any

from benchmarks.peers.problems import PROBLEMS, steps_per_second


def minerva(steps: int, problem: str, compiled: bool | str = "auto", **fields: Any) -> float:
    """Train Minerva's PPO; further keyword arguments are fields of its config."""
    from minerva import PPOTrainer

    p = PROBLEMS[problem]
    trainer = PPOTrainer(
        p.env_id, 1, "cpu", num_envs=p.num_envs, rollout_steps=p.rollout_steps, minibatch_size=p.minibatch,
        update_epochs=p.epochs, policy_layer_sizes=p.layers, critic_layer_sizes=p.layers, policy_lr=p.learning_rate,
        clip_ratio=p.clip, ent_coef=p.entropy_weight, vf_coef=p.value_weight, max_grad_norm=p.max_grad_norm,
        gamma=p.gamma, gae_lambda=p.gae_lambda, normalize_obs=p.normalize, normalize_reward=p.normalize,
        target_kl=None, eval_episodes=0, console=False, compile=compiled, **fields,
    )  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        return steps_per_second(p, steps, lambda k: trainer.train(trainer.env_steps + k * p.batch, folder))


def stable_baselines3(steps: int, problem: str, normalize: bool) -> float:
    """Train stable-baselines3's PPO, with its own normalizing wrapper or without any normalization."""
    from stable_baselines3 import PPO

    return _baselines(PPO, "MlpPolicy", steps, problem, normalize)


def sb3_contrib(steps: int, problem: str, lstm_units: int) -> float:
    """Train sb3-contrib's recurrent (LSTM) PPO."""
    from sb3_contrib import RecurrentPPO

    return _baselines(RecurrentPPO, "MlpLstmPolicy", steps, problem, False, {"lstm_hidden_size": lstm_units})


def _baselines(
    algorithm: Any, policy: str, steps: int, problem: str, normalize: bool, network: dict[str, Any] | None = None
) -> float:
    from stable_baselines3.common.env_util import make_vec_env
    from stable_baselines3.common.vec_env import VecNormalize

    p = PROBLEMS[problem]
    env: Any = make_vec_env(p.env_id, p.num_envs, seed=1)
    if normalize:
        env = VecNormalize(env, gamma=p.gamma)
    model = algorithm(
        policy, env, n_steps=p.rollout_steps, batch_size=p.minibatch, n_epochs=p.epochs, learning_rate=p.learning_rate,
        clip_range=p.clip, ent_coef=p.entropy_weight, vf_coef=p.value_weight, max_grad_norm=p.max_grad_norm,
        gamma=p.gamma, gae_lambda=p.gae_lambda, device="cpu", seed=1,
        policy_kwargs={"net_arch": list(p.layers), **(network or {})},
    )  # fmt: skip
    return steps_per_second(p, steps, lambda k: model.learn(k * p.batch, reset_num_timesteps=False))


def envpool_alone(steps: int, problem: str) -> float:
    """Step only EnvPool, with random actions drawn before, and with the number of threads that Minerva uses."""
    import os

    import envpool
    import numpy as np

    p = PROBLEMS[problem]
    threads = min(len(os.sched_getaffinity(0)), p.num_envs)
    pool = envpool.make(p.env_id, env_type="gymnasium", num_envs=p.num_envs, num_threads=threads, seed=1)
    size = pool.action_space.shape[0]
    actions = np.random.default_rng(1).uniform(-1, 1, (64, p.num_envs, size))
    pool.reset()
    rounds = max(1, steps // p.num_envs)
    for k in range(64):
        pool.step(actions[k])
    begin = time.perf_counter()
    for k in range(rounds):
        pool.step(actions[k % 64])
    return rounds * p.num_envs / (time.perf_counter() - begin)
