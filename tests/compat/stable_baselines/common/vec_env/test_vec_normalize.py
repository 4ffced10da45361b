from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from stable_baselines3.common import vec_env as sb3

from minerva.checkpointing import CheckpointError
from minerva.compat.stable_baselines import (
    DummyVecEnv,
    VecEnvWrapper,
    VecFrameStack,
    VecNormalize,
    sync_envs_normalization,
)
from tests.environments.tiny_envs import Tiny


def pendulum() -> gymnasium.Env[Any, Any]:
    return gymnasium.make("Pendulum-v1", max_episode_steps=11)


def play(venv: Any, steps: int, seed: int = 0) -> list[Any]:
    rng = np.random.default_rng(seed)
    seen = [venv.reset()]
    for _ in range(steps):
        obs, rewards, _, _ = venv.step(rng.uniform(-2, 2, (venv.num_envs, 1)).astype(np.float32))
        seen += [obs, rewards]
    return seen


@pytest.mark.parametrize("settings", [{}, {"clip_obs": 0.5, "clip_reward": 0.1, "gamma": 0.5}, {"norm_reward": False}])
def test_numbers_are_those_of_stable_baselines3(settings: dict[str, Any]) -> None:
    ours = VecNormalize(DummyVecEnv([pendulum] * 3), **settings)
    theirs = sb3.VecNormalize(sb3.DummyVecEnv([pendulum] * 3), **settings)
    for venv in (ours, theirs):
        venv.seed(2)
    for steps in (40, 13):  # the second time, episodes are stopped early
        for mine, other in zip(play(ours, steps), play(theirs, steps), strict=True):
            np.testing.assert_allclose(mine, other, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(ours.get_original_obs(), theirs.get_original_obs())
    np.testing.assert_allclose(ours.get_original_reward(), theirs.get_original_reward())
    fresh = np.random.default_rng(1).normal(size=(5, 3)).astype(np.float32)
    np.testing.assert_allclose(ours.normalize_obs(fresh), theirs.normalize_obs(fresh), rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(ours.normalize_obs(fresh[0]), theirs.normalize_obs(fresh[0]), rtol=1e-5, atol=1e-5)


def test_statistics_are_fixed_without_training() -> None:
    venv = VecNormalize(DummyVecEnv([pendulum]), training=False)
    venv.obs_rms.mean += 1
    venv.ret_rms.var += 3  # to 4
    before = venv.obs_rms.count.item()
    venv.reset()
    obs, rewards, _, _ = venv.step(np.zeros((1, 1), dtype=np.float32))
    assert venv.obs_rms.count.item() == before
    np.testing.assert_allclose(obs, venv.get_original_obs() - 1, rtol=1e-5)
    np.testing.assert_allclose(rewards, venv.get_original_reward() / 2, rtol=1e-5)


def test_training_sees_every_observation_once_and_no_reward_of_a_restart() -> None:
    venv = VecNormalize(DummyVecEnv([lambda: Tiny("terminates", 0)]), gamma=0.5)
    batch = venv.batch(0)
    batch.reset()
    returns: list[float] = []
    discounted = 0.0
    for t in range(1, 9):
        step = batch.step(np.zeros((1, 1), dtype=np.float32))
        assert venv.obs_rms.count.item() == pytest.approx(1 + t, abs=1e-3)
        if not step.restarting[0]:
            discounted = float(venv.get_original_reward()[0]) + 0.5 * discounted
            returns.append(discounted)
            if step.terminated[0]:
                discounted = 0.0
    assert venv.ret_rms.count.item() == pytest.approx(len(returns), abs=1e-3)
    assert venv.ret_rms.mean.item() == pytest.approx(np.mean(returns), rel=1e-3)
    assert step.episodes == [] or step.episodes[0].episode_return == int(step.episodes[0].episode_return)


def test_a_resumed_run_keeps_its_statistics() -> None:
    venv = VecNormalize(DummyVecEnv([pendulum] * 2))
    batch = venv.batch(0)
    batch.reset()
    action = np.zeros((2, 1), dtype=np.float32)
    for _ in range(15):
        batch.step(action)
    state = batch.state_dict()
    one = batch.step(action)
    other = VecNormalize(DummyVecEnv([pendulum] * 2)).batch(1)
    assert other.load_state_dict(state) is None
    again = other.step(action)
    np.testing.assert_array_equal(one.observations, again.observations)
    np.testing.assert_array_equal(one.rewards, again.rewards)


def test_statistics_and_settings_are_saved(tmp_path: Path) -> None:
    venv = VecNormalize(DummyVecEnv([pendulum] * 2), clip_obs=3.0, gamma=0.9, norm_reward=False)
    play(venv, 20)
    venv.save(tmp_path / "new folder" / "vec_normalize.pkl")
    loaded = VecNormalize.load(tmp_path / "new folder" / "vec_normalize.pkl", DummyVecEnv([pendulum]))
    obs = np.random.default_rng(0).normal(size=(4, 3)).astype(np.float32) * 5
    np.testing.assert_array_equal(loaded.normalize_obs(obs), venv.normalize_obs(obs))
    assert loaded.ret_rms.var.item() == venv.ret_rms.var.item()
    assert not loaded.norm_reward
    with pytest.raises(
        CheckpointError, match="statistics of 3 numbers per observation, but these environments return 4"
    ):
        VecNormalize.load(
            tmp_path / "new folder" / "vec_normalize.pkl", DummyVecEnv([lambda: gymnasium.make("CartPole-v1")])
        )


def test_statistics_are_copied() -> None:
    one, other = (VecFrameStack(VecNormalize(DummyVecEnv([pendulum] * n)), 2) for n in (3, 1))
    play(one, 20)
    sync_envs_normalization(one, other)
    obs = np.ones((1, 3), dtype=np.float32)
    ours, theirs = one.venv, other.venv
    assert isinstance(ours, VecNormalize)
    assert isinstance(theirs, VecNormalize)
    np.testing.assert_array_equal(ours.normalize_obs(obs), theirs.normalize_obs(obs))
    play(other, 5)
    assert not np.array_equal(ours.normalize_obs(obs), theirs.normalize_obs(obs)), "they are one object"


def test_mistakes_are_refused() -> None:
    with pytest.raises(ValueError, match="venv: must be a VecEnv"):
        VecNormalize(pendulum())  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="VecNormalize: the observation space must be a Box, got Discrete"):
        VecNormalize(DummyVecEnv([lambda: gymnasium.make("FrozenLake-v1")]))
    assert issubclass(VecNormalize, VecEnvWrapper)
