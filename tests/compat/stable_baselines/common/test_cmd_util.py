from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.wrappers import ClipReward
from stable_baselines3.common.env_util import make_vec_env as sb3_make_vec_env

from minerva.compat.stable_baselines import DummyVecEnv, SubprocVecEnv, make_atari_env, make_vec_env
from tests.environments.tiny_envs import Noisy


def test_environments_are_seeded_as_stable_baselines3_does() -> None:
    ours, theirs = make_vec_env("CartPole-v1", 3, seed=5), sb3_make_vec_env("CartPole-v1", 3, seed=5)
    np.testing.assert_array_equal(ours.reset(), theirs.reset())


def test_classes_arguments_and_wrappers() -> None:
    venv = make_vec_env(Noisy, n_envs=2, env_kwargs={"length": 3}, wrapper_class=lambda env: ClipReward(env, -0.1, 0.1))
    assert isinstance(venv, DummyVecEnv)
    assert venv.get_attr("length") == [3, 3]
    venv.reset()
    for _ in range(5):
        assert np.abs(venv.step(np.ones((2, 1), dtype=np.float32))[1]).max() <= 0.1 + 1e-6


def test_processes() -> None:
    venv = make_vec_env("CartPole-v1", 2, seed=5, vec_env_cls=SubprocVecEnv, vec_env_kwargs={"start_method": "spawn"})
    try:
        np.testing.assert_array_equal(venv.reset(), make_vec_env("CartPole-v1", 2, seed=5).reset())
    finally:
        venv.close()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"n_envs": 0}, "n_envs: must be a positive integer, got 0"),
        ({"monitor_dir": "x"}, "monitor_dir: must be None, got 'x'"),
    ],
)
def test_mistakes_are_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make_vec_env("CartPole-v1", **arguments)
    with pytest.raises(ValueError, match="wrapper_kwargs: must be empty"):
        make_atari_env("PongNoFrameskip-v4", wrapper_kwargs={"scale": True})


def test_a_game_is_recorded_over_its_lives() -> None:
    pytest.importorskip("ale_py")
    venv = make_atari_env("BreakoutNoFrameskip-v4", num_env=1, seed=1)
    obs = venv.reset()
    assert (obs.shape, obs.dtype) == ((1, 84, 84, 1), np.uint8)
    lost, signs, length = 0, set(), 0
    rng = np.random.default_rng(0)
    while True:
        _, rewards, dones, infos = venv.step(rng.integers(0, 4, 1))
        signs.add(float(rewards[0]))
        length += 1
        if dones[0]:
            lost += 1
            if "episode" in infos[0]:
                break
    assert lost == 5  # Breakout's lives
    assert infos[0]["episode"]["l"] == length
    assert signs <= {-1.0, 0.0, 1.0}
    assert isinstance(venv.get_attr("ale", 0)[0].lives(), int)
    assert isinstance(venv, DummyVecEnv)
    assert isinstance(venv.envs[0], gymnasium.Env)
