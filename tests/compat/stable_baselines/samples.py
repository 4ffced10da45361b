"""Small models that train quickly."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np

from minerva.compat.stable_baselines import PPO2, DummyVecEnv, make_vec_env
from tests.environments.tiny_envs import Noisy

N_ENVS = 2
N_STEPS = 8
BATCH = N_ENVS * N_STEPS


def small_model(policy: Any = "MlpPolicy", env: Any = None, **settings: Any) -> PPO2:
    defaults = {"n_steps": N_STEPS, "nminibatches": 2, "noptepochs": 2, "seed": 0, "policy_kwargs": {"layers": [8]}}
    venv = make_vec_env("CartPole-v1", N_ENVS) if env is None else env
    return PPO2(policy, venv, **{**defaults, **settings})


def noisy(length: int = 5, count: int = N_ENVS) -> DummyVecEnv:
    """Episodes of known length, truncated by a time limit."""
    return DummyVecEnv([lambda: Noisy(length)] * count)


def cart_pole() -> gymnasium.Env[Any, Any]:
    return gymnasium.make("CartPole-v1")


def numpy_int(number: int) -> Any:
    return np.int64(number)


def weights(model: PPO2) -> dict[str, Any]:
    return {name: weight.numpy().copy() for name, weight in model.agent.state_dict().items()}


def assert_same(one: PPO2, other: PPO2) -> None:
    assert weights(one).keys() == weights(other).keys()
    for name, weight in weights(one).items():
        np.testing.assert_array_equal(weight, weights(other)[name], err_msg=name)
