from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest

from minerva.compat import gym
from minerva.compat.gym import spaces
from minerva.compat.stable_baselines.common.vec_env import DummyVecEnv
from minerva.compat.stable_baselines.gail import ExpertDataset, generate_expert_traj


class Counted(gym.Env):
    """Observation: step number; reward: 2 per step; three steps."""

    observation_space: Any = spaces.Box(-1, 100, (2,), np.float32)
    action_space: Any = spaces.Discrete(5)

    def observe(self) -> Any:
        return np.full(self.observation_space.shape, self.steps, self.observation_space.dtype)

    def reset(self) -> Any:
        self.steps = 0
        return self.observe()

    def step(self, action: Any) -> Any:
        self.steps += 1
        return self.observe(), 2.0, self.steps == 3, {}


class New(gymnasium.Env[Any, Any]):
    """The same with Gymnasium's interface."""

    observation_space = Counted.observation_space
    action_space = Counted.action_space

    def __init__(self) -> None:
        self.env = Counted()

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        return self.env.reset(), {}

    def step(self, action: Any) -> Any:
        observation, reward, done, info = self.env.step(action)
        return observation, reward, done, False, info


class Pictures(Counted):
    observation_space = spaces.Box(0, 255, (8, 6, 3), np.uint8)

    def observe(self) -> Any:
        return np.broadcast_to(np.array([self.steps, 50, 100], np.uint8), (8, 6, 3)).copy()


def data(episodes: int = 4, length: int = 5) -> dict[str, Any]:
    steps = episodes * length
    return {
        "obs": np.arange(steps, dtype=np.float32)[:, None] * np.ones((1, 3), np.float32),
        "actions": np.arange(steps)[:, None],
        "rewards": np.ones(steps),
        "episode_returns": np.arange(episodes) * 10.0,
        "episode_starts": np.arange(steps) % length == 0,
    }


@pytest.mark.parametrize("vectorized", [False, True])
def test_episodes_of_a_function_are_recorded(vectorized: bool, tmp_path: Path) -> None:
    def expert(observation: Any) -> Any:
        return np.array([4]) if vectorized else 4

    env: Any = DummyVecEnv([New]) if vectorized else Counted()
    recorded = generate_expert_traj(expert, str(tmp_path / "expert"), env, n_episodes=2)
    assert recorded["obs"].tolist() == [[0, 0], [1, 1], [2, 2]] * 2
    assert recorded["actions"].tolist() == [[4]] * 6
    assert recorded["rewards"].tolist() == [2.0] * 6
    assert recorded["episode_returns"].tolist() == [6.0, 6.0]
    assert recorded["episode_starts"].tolist() == [True, False, False] * 2
    with np.load(tmp_path / "expert.npz", allow_pickle=False) as file:
        assert {key: values.tolist() for key, values in file.items()} == {k: v.tolist() for k, v in recorded.items()}


def test_an_environment_of_gymnasium_and_a_model_with_continuous_actions() -> None:
    class Model:
        def predict(self, observation: Any, state: Any = None, mask: Any = None) -> Any:
            return np.array([0.5], np.float32), state

    recorded = generate_expert_traj(Model(), env=gymnasium.make("Pendulum-v1", max_episode_steps=7), n_episodes=2)
    assert recorded["actions"].tolist() == [[0.5]] * 14
    assert recorded["obs"].shape == (14, 3)
    assert np.isclose(recorded["episode_returns"].sum(), recorded["rewards"].sum())


def test_pictures_are_files(tmp_path: Path) -> None:
    generate_expert_traj(lambda observation: 1, tmp_path / "expert", Pictures(), n_episodes=2)
    assert len(list((tmp_path / "recorded_images").iterdir())) == 6
    dataset = ExpertDataset(tmp_path / "expert.npz", train_fraction=0.5, batch_size=3, randomize=False, verbose=0)
    pictures, actions = dataset.get_next_batch("train")
    assert pictures.shape == (3, 8, 6, 3)
    assert set(pictures[:, 0, 0, 0].tolist()) <= {0, 1, 2}
    assert pictures[0, 0, 0, 1:].tolist() == [50, 100]
    assert actions.tolist() == [[1]] * 3


def test_without_a_file_pictures_stay_numbers_with_a_warning() -> None:
    with pytest.warns(UserWarning, match="needs much memory"):
        recorded = generate_expert_traj(lambda observation: 1, env=Pictures(), n_episodes=1)
    assert recorded["obs"].shape == (3, 8, 6, 3)


def test_what_cannot_be_recorded() -> None:
    with pytest.raises(ValueError, match="env: must be given"):
        generate_expert_traj(lambda observation: 1)
    env = Counted()
    env.action_space = spaces.MultiBinary(2)
    with pytest.raises(ValueError, match="its action_space must be a Box or Discrete"):
        generate_expert_traj(lambda observation: 1, env=env)


def test_minibatches_have_every_step_once() -> None:
    dataset = ExpertDataset(traj_data=data(), train_fraction=0.7, batch_size=4, verbose=0)
    assert (len(dataset.train_loader), len(dataset.val_loader)) == (4, 2)
    for _ in range(2):
        batches = [dataset.get_next_batch("train") for _ in range(4)]
        assert [len(actions) for _, actions in batches] == [4, 4, 4, 2]
        rows = np.concatenate([actions for _, actions in batches])[:, 0].tolist()
        assert len(set(rows)) == 14
        assert all(np.array_equal(observations[:, 0], actions[:, 0]) for observations, actions in batches)
    validation = np.concatenate([dataset.get_next_batch("val")[1] for _ in range(2)])[:, 0].tolist()
    assert sorted(rows + validation) == list(range(20))
    with pytest.raises(ValueError, match="init_dataloader"):
        dataset.get_next_batch()
    dataset.init_dataloader(20)
    assert sorted(dataset.get_next_batch()[1][:, 0].tolist()) == list(range(20))


def test_some_episodes(capsys: pytest.CaptureFixture[str]) -> None:
    dataset = ExpertDataset(traj_data=data(), traj_limitation=2)
    assert (dataset.num_traj, dataset.num_transition) == (2, 10)
    assert (dataset.avg_ret, dataset.std_ret) == (5.0, 5.0)
    printed = capsys.readouterr().out
    assert "obs (20, 3)" in printed
    assert "Average returns: 5.0" in printed


def test_global_seeds_repeat_the_order() -> None:
    from minerva.compat.stable_baselines.common.misc_util import set_global_seeds

    def order() -> Any:
        set_global_seeds(3)
        return ExpertDataset(traj_data=data(), verbose=0).get_next_batch("train")[1].tolist()

    assert order() == order()


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"traj_data": None}, "exactly one"),
        ({"expert_path": "x.npz"}, "exactly one"),
        ({"train_fraction": 1.0}, "none for validation"),
        ({"traj_data": {"obs": np.zeros(3)}}, "'actions' is missing"),
        ({"traj_data": {**data(), "actions": np.zeros((3, 1))}}, "as many observations as actions, got 20 and 3"),
    ],
)
def test_mistakes_get_a_sentence(change: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        ExpertDataset(**{"traj_data": data(), "verbose": 0, **change})


def test_nothing_is_unpickled(tmp_path: Path) -> None:
    np.savez(tmp_path / "bad.npz", **{**data(), "obs": np.array([{}] * 20)})
    with pytest.raises(ValueError, match=r"expert_path: .* must hold arrays"):
        ExpertDataset(tmp_path / "bad.npz")
