from __future__ import annotations

import pickle
import threading
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest

from minerva.checkpointing import CheckpointError
from minerva.compat.stable_baselines import (
    DummyVecEnv,
    VecEnvWrapper,
    VecFrameStack,
    VecNormalize,
    sync_envs_normalization,
)
from minerva.compat.stable_baselines.common.vec_env import unwrap_vec_normalize


def pendulum() -> gymnasium.Env[Any, Any]:
    return gymnasium.make("Pendulum-v1", max_episode_steps=11)


def play(venv: Any, steps: int, seed: int = 0) -> list[Any]:
    rng = np.random.default_rng(seed)
    seen = [venv.reset()]
    for _ in range(steps):
        obs, rewards, _, _ = venv.step(rng.uniform(-2, 2, (venv.num_envs, 1)).astype(np.float32))
        seen += [obs, rewards]
    return seen


class Moments:
    """Mean and variance over everything so far, as if a first batch of `count` numbers had mean 0 and variance 1."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.batches: list[Any] = []
        self.shape, self.count = shape, 1e-4

    def __call__(self) -> tuple[Any, Any]:
        everything = np.concatenate(self.batches) if self.batches else np.zeros((0, *self.shape))
        total = self.count + len(everything)
        mean = everything.sum(0) / total
        return mean, (self.count * (1 + mean**2) + ((everything - mean) ** 2).sum(0)) / total


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"clip_obs": 0.5, "clip_reward": 0.1, "gamma": 0.5, "epsilon": 0.1},
        {"norm_reward": False},
        {"norm_obs": False},
    ],
)
def test_numbers_are_those_of_stable_baselines(settings: dict[str, Any]) -> None:
    """Beside NumPy: a reset leaves the statistics of observations alone and takes in N returns of 0."""
    ours, plain = VecNormalize(DummyVecEnv([pendulum] * 3), **settings), DummyVecEnv([pendulum] * 3)
    for venv in (ours, plain):
        venv.seed(2)
    obs_moments, return_moments, rng = Moments((3,)), Moments(()), np.random.default_rng(0)
    clip_obs, clip_reward = settings.get("clip_obs", 10), settings.get("clip_reward", 10)
    epsilon, gamma = settings.get("epsilon", 1e-8), settings.get("gamma", 0.99)

    def normalized(obs: Any) -> Any:
        mean, var = obs_moments()
        return np.clip((obs - mean) / np.sqrt(var + epsilon), -clip_obs, clip_obs) if ours.norm_obs else obs

    for steps in (25, 13):  # the second time, episodes are stopped early
        first = plain.reset()
        returns = np.zeros(3)
        return_moments.batches.append(returns.copy())
        np.testing.assert_allclose(ours.reset(), normalized(first), rtol=1e-5, atol=1e-5)
        np.testing.assert_array_equal(ours.get_original_obs(), first)
        for _ in range(steps):
            actions = rng.uniform(-2, 2, (3, 1)).astype(np.float32)
            obs, rewards, dones, infos = ours.step(actions)
            raw, raw_rewards, raw_dones, raw_infos = plain.step(actions)
            obs_moments.batches.append(raw.astype(np.float64))
            returns = returns * gamma + raw_rewards
            return_moments.batches.append(returns.copy())
            scale = np.sqrt(return_moments()[1] + epsilon)
            wanted = np.clip(raw_rewards / scale, -clip_reward, clip_reward) if ours.norm_reward else raw_rewards
            np.testing.assert_allclose(obs, normalized(raw), rtol=1e-4, atol=1e-5)
            np.testing.assert_allclose(rewards, wanted, rtol=1e-4, atol=1e-5)
            np.testing.assert_array_equal(ours.get_original_reward(), raw_rewards)
            np.testing.assert_array_equal(dones, raw_dones)
            for i in np.flatnonzero(dones):
                last = raw_infos[i]["terminal_observation"]
                np.testing.assert_allclose(infos[i]["terminal_observation"], normalized(last), rtol=1e-4, atol=1e-5)
            returns[dones] = 0
            np.testing.assert_allclose(ours.ret, returns, rtol=1e-5)
    assert ours.obs_rms.mean.shape == (3,)
    np.testing.assert_allclose(ours.obs_rms.mean, obs_moments()[0], rtol=1e-6)
    np.testing.assert_allclose(ours.obs_rms.var, obs_moments()[1], rtol=1e-6)
    assert ours.obs_rms.count == pytest.approx(3 * 38)
    assert ours.ret_rms.count == pytest.approx(3 * 40)


def test_statistics_are_fixed_without_training() -> None:
    venv = VecNormalize(DummyVecEnv([pendulum]), training=False)
    venv.obs_rms.mean += 1
    venv.ret_rms.var += 3  # to 4
    before = venv.obs_rms.count, venv.ret_rms.count
    venv.reset()
    obs, rewards, _, _ = venv.step(np.zeros((1, 1), dtype=np.float32))
    assert (venv.obs_rms.count, venv.ret_rms.count) == before
    np.testing.assert_allclose(obs, venv.get_original_obs() - 1, rtol=1e-5)
    np.testing.assert_allclose(rewards, venv.get_original_reward() / 2, rtol=1e-5)


def test_settings_can_be_read_and_changed() -> None:
    venv = VecNormalize(DummyVecEnv([pendulum]), clip_obs=3, clip_reward=4, gamma=0.5, epsilon=0.25)
    assert (venv.clip_obs, venv.clip_reward, venv.gamma, venv.epsilon) == (3, 4, 0.5, 0.25)
    venv.obs_rms.mean = np.full(3, 1000.0)
    venv.training = False
    venv.clip_obs = 2
    assert venv.reset().tolist() == [[-2, -2, -2]]


def test_a_pickled_wrapper_is_given_new_environments() -> None:
    venv = VecNormalize(DummyVecEnv([pendulum] * 3), clip_obs=3)
    vars(venv.venv)["lock"] = threading.Lock()  # as worker processes have one: environments are not pickled
    play(venv, 20)
    again = pickle.loads(pickle.dumps(venv))
    again.set_venv(DummyVecEnv([pendulum]))
    assert (again.num_envs, again.clip_obs, again.ret.tolist()) == (1, 3, [0])
    np.testing.assert_array_equal(again.obs_rms.mean, venv.obs_rms.mean)
    assert again.reset().shape == (1, 3)
    with pytest.raises(ValueError, match="venv: is set already"):
        again.set_venv(DummyVecEnv([pendulum]))
    other = pickle.loads(pickle.dumps(venv))
    with pytest.raises(ValueError, match=r"venv: .*shape of the statistics, \(3,\), got \(4,\)"):
        other.set_venv(DummyVecEnv([lambda: gymnasium.make("CartPole-v1")]))


def test_statistics_and_settings_are_saved(tmp_path: Path) -> None:
    venv = VecNormalize(DummyVecEnv([pendulum] * 2), clip_obs=3.0, gamma=0.9, norm_reward=False)
    play(venv, 20)
    venv.save(tmp_path / "new folder" / "vec_normalize.pkl")
    loaded = VecNormalize.load(tmp_path / "new folder" / "vec_normalize.pkl", DummyVecEnv([pendulum]))
    obs = np.random.default_rng(0).normal(size=(4, 3)).astype(np.float32) * 5
    np.testing.assert_array_equal(loaded.normalize_obs(obs), venv.normalize_obs(obs))
    assert loaded.ret_rms.var == venv.ret_rms.var
    assert loaded.obs_rms.count == venv.obs_rms.count
    assert (loaded.clip_obs, loaded.gamma) == (3.0, 0.9)
    assert not loaded.norm_reward
    with pytest.raises(
        CheckpointError, match=r"statistics of observations of shape \(3,\), but these environments return \(4,\)"
    ):
        VecNormalize.load(
            tmp_path / "new folder" / "vec_normalize.pkl", DummyVecEnv([lambda: gymnasium.make("CartPole-v1")])
        )


def test_a_pickle_is_not_loaded(tmp_path: Path) -> None:
    (tmp_path / "old.pkl").write_bytes(pickle.dumps(VecNormalize(DummyVecEnv([pendulum]))))
    with pytest.raises(CheckpointError, match=r"old\.pkl"):
        VecNormalize.load(tmp_path / "old.pkl", DummyVecEnv([pendulum]))


def test_the_old_names_of_save_and_load(tmp_path: Path) -> None:
    venv, other = (VecNormalize(DummyVecEnv([pendulum])) for _ in range(2))
    play(venv, 5)
    with pytest.warns(DeprecationWarning, match="use save"):
        venv.save_running_average(tmp_path)
    with pytest.warns(DeprecationWarning, match="use load"):
        other.load_running_average(tmp_path)
    np.testing.assert_array_equal(other.obs_rms.mean, venv.obs_rms.mean)


def test_the_wrapper_is_found() -> None:
    inner = VecNormalize(DummyVecEnv([pendulum]))
    assert unwrap_vec_normalize(VecFrameStack(inner, 2)) is inner
    assert unwrap_vec_normalize(DummyVecEnv([pendulum])) is None


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
