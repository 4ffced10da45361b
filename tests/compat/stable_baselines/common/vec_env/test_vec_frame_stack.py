from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from stable_baselines3.common import vec_env as sb3

from minerva.compat.stable_baselines import DummyVecEnv, VecFrameStack
from tests.environments.tiny_envs import Picking, Tiny


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


def test_training_sees_the_last_observation_with_those_before_it() -> None:
    batch = VecFrameStack(DummyVecEnv([lambda: Tiny("terminates", 0)]), 2).batch(0)
    action = np.zeros((1, 1), dtype=np.float32)
    assert batch.observation_dim == 8
    # An observation is (environment, episode, step, action); an episode has two steps.
    seen = [batch.reset(), *(batch.step(action).observations for _ in range(3))]
    assert [rows[0, [1, 2, 5, 6]].tolist() for rows in seen] == [
        [0, 0, 0, 0],
        [0, 0, 0, 1],
        [0, 1, 0, 2],
        [0, 0, 1, 0],
    ]
    state = batch.state_dict()
    one = batch.step(action).observations
    fresh = VecFrameStack(DummyVecEnv([frames]), 2)
    np.testing.assert_array_equal(state["wrapper"]["frames"].numpy()[0], seen[-1][0])
    assert one[0, [1, 2, 5, 6]].tolist() == [1, 0, 1, 1]
    assert fresh.batch(0).observation_dtype == np.uint8


def test_masks_stay_at_the_ends_of_rows() -> None:
    venv = VecFrameStack(DummyVecEnv([lambda: Picking(spaces.Discrete(3), spaces.Box(0, 255, (4,)), "method")]), 2)
    batch = venv.batch(0)
    rows = batch.reset()
    assert (batch.observation_dim, batch.mask_dim) == (11, 3)
    for _ in range(20):
        assert np.isin(rows[:, -3:], (0, 1)).all()
        chosen = rows[:, -3:].argmax(1)[:, None].astype(np.float32)
        rows = batch.step(chosen).observations


@pytest.mark.parametrize("wrong", [0, 1.5, True])
def test_an_invalid_number_is_rejected(wrong: Any) -> None:
    with pytest.raises(ValueError, match="n_stack: must be a positive integer"):
        VecFrameStack(DummyVecEnv([cart_pole]), wrong)
