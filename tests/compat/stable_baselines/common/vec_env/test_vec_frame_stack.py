from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from stable_baselines3.common import vec_env as sb3

from minerva.compat.stable_baselines import DummyVecEnv, VecFrameStack
from tests.compat.stable_baselines.samples import numpy_int
from tests.environments.tiny_envs import Picking


def cart_pole() -> gymnasium.Env[Any, Any]:
    return gymnasium.make("CartPole-v1")


def frames() -> gymnasium.Env[Any, Any]:
    return Picking(spaces.Discrete(2), spaces.Box(0, 255, (6, 5, 1), np.uint8))


@pytest.mark.parametrize("make", [cart_pole, frames])
def test_stacks_are_those_of_stable_baselines3(make: Any) -> None:
    ours = VecFrameStack(DummyVecEnv([make] * 2), 3)
    order: dict[str, Any] = {} if make is cart_pole else {"channels_order": "last"}
    theirs = sb3.VecFrameStack(sb3.DummyVecEnv([make] * 2), 3, **order)
    assert ours.observation_space.shape == theirs.observation_space.shape
    assert ours.observation_space.dtype == theirs.observation_space.dtype
    for venv in (ours, theirs):
        venv.seed(1)
    np.testing.assert_array_equal(ours.reset(), theirs.reset())
    ended = 0
    for _ in range(30):
        obs, _, dones, infos = ours.step(np.array([1, 1]))
        other_obs, _, _, other_infos = theirs.step(np.array([1, 1]))
        np.testing.assert_array_equal(obs, other_obs)
        assert obs.dtype == other_obs.dtype
        for i in np.flatnonzero(dones):
            ended += 1
            np.testing.assert_array_equal(infos[i]["terminal_observation"], other_infos[i]["terminal_observation"])
    assert ended


def test_stacks_of_the_past_are_copies() -> None:
    venv = VecFrameStack(DummyVecEnv([cart_pole]), numpy_int(2))
    first = venv.reset()
    copy = first.copy()
    second = venv.step(np.array([1]))[0]
    np.testing.assert_array_equal(first, copy)
    np.testing.assert_array_equal(venv.stackedobs, second)
    np.testing.assert_array_equal(second[:, :4], first[:, 4:])
    assert venv.reset()[:, :4].sum() == 0


@pytest.mark.parametrize("wrong", [0, 1.5, True])
def test_an_invalid_number_is_rejected(wrong: Any) -> None:
    with pytest.raises(ValueError, match="n_stack: must be a positive integer"):
        VecFrameStack(DummyVecEnv([cart_pole]), wrong)
