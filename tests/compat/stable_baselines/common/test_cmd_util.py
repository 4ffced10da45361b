from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium.wrappers import ClipReward, TimeLimit
from stable_baselines3.common.env_util import make_vec_env as sb3_make_vec_env

from minerva.compat.stable_baselines import DummyVecEnv, SubprocVecEnv, make_atari_env, make_vec_env
from minerva.compat.stable_baselines.bench import Monitor
from minerva.compat.stable_baselines.common.cmd_util import atari_arg_parser, make_mujoco_env, mujoco_arg_parser
from tests.compat.stable_baselines.samples import numpy_int
from tests.environments.tiny_envs import Noisy


def test_environments_are_seeded_as_stable_baselines3_does() -> None:
    ours, theirs = make_vec_env("CartPole-v1", 3, seed=5), sb3_make_vec_env("CartPole-v1", 3, seed=5)
    np.testing.assert_array_equal(ours.reset(), theirs.reset())
    again = make_vec_env("CartPole-v1", 1, seed=5).action_space
    assert [ours.action_space.sample() for _ in range(20)] == [again.sample() for _ in range(20)]


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


def test_environments_of_an_id_have_gyms_interface() -> None:
    venv = make_vec_env("CartPole-v1", numpy_int(2), env_kwargs={"sutton_barto_reward": True})
    assert isinstance(venv, DummyVecEnv)
    assert isinstance(venv.envs[0], Monitor)
    assert venv.envs[0].reset().shape == (4,)
    venv.set_attr("length", 0.7)  # of the environment, inside the Monitor
    assert venv.envs[0].unwrapped.length == 0.7
    _, reward, done, _ = venv.envs[0].step(0)
    assert (reward, done) == (0, False)


def test_mistakes_are_refused() -> None:
    with pytest.raises(ValueError, match="n_envs: must be a positive integer, got 0"):
        make_vec_env("CartPole-v1", n_envs=0)


def test_episodes_are_written_to_files(tmp_path: Path) -> None:
    venv = make_vec_env("CartPole-v1", 2, None, 3, str(tmp_path / "logs"), lambda env: TimeLimit(env, 9))
    venv.reset()
    infos: list[Any] = []
    while len(infos) < 3:
        infos += [info["episode"] for info in venv.step(np.zeros(2, int))[3] if "episode" in info]
    venv.close()
    files = sorted((tmp_path / "logs").iterdir())
    assert [file.name for file in files] == ["3.monitor.csv", "4.monitor.csv"]
    written = [float(line.split(",")[0]) for file in files for line in file.read_text().splitlines()[2:]]
    assert sorted(written) == sorted(info["r"] for info in infos)


def test_a_game_is_recorded_over_its_lives() -> None:
    pytest.importorskip("ale_py")
    venv = make_atari_env("BreakoutNoFrameskip-v4", num_env=1, seed=1)
    obs = venv.reset()
    assert (obs.shape, obs.dtype) == ((1, 84, 84, 1), np.uint8)
    lost, signs = 0, set()
    rng = np.random.default_rng(0)
    while True:
        _, rewards, dones, infos = venv.step(rng.integers(0, 4, 1))
        signs.add(float(rewards[0]))
        lost += int(dones[0])
        if "episode" in infos[0]:
            break
    assert lost == 5  # Breakout's lives
    assert infos[0]["episode"]["l"] > 100
    assert signs <= {-1.0, 0.0, 1.0}
    assert isinstance(venv.get_attr("ale", 0)[0].lives(), int)
    image = venv.render(mode="rgb_array")
    assert image.shape == (210, 160, 3)


def test_the_preprocessing_of_games_can_be_changed() -> None:
    pytest.importorskip("ale_py")
    venv = make_atari_env("PongNoFrameskip-v4", 1, 0, wrapper_kwargs={"frame_stack": True, "scale": True})
    obs = venv.reset()
    assert (obs.shape, obs.dtype) == ((1, 84, 84, 4), np.float32)
    assert 0 <= obs.min() < obs.max() <= 1


def test_parsers_of_command_lines() -> None:
    given = atari_arg_parser().parse_args(["--seed", "3"])
    assert (given.env, given.seed, given.num_timesteps) == ("BreakoutNoFrameskip-v4", 3, 10_000_000)
    given = mujoco_arg_parser().parse_args(["--play", "--num-timesteps", "5"])
    assert (given.env, given.num_timesteps, given.play) == ("Reacher-v2", 5, True)


def test_a_mujoco_environment_is_seeded() -> None:
    first, again = (make_mujoco_env("HalfCheetah-v2", seed=4).reset() for _ in range(2))
    np.testing.assert_array_equal(first, again)
