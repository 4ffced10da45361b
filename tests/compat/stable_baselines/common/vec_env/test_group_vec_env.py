from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from stable_baselines3.common import vec_env as sb3

from minerva.compat.stable_baselines import DummyVecEnv, SubprocVecEnv
from minerva.compat.stable_baselines.common.vec_env.group_vec_env import GroupVecEnv, stack_observations
from minerva.environments import EnvironmentFailureError
from tests.environments.tiny_envs import Failing, Noisy, Tiny

KINDS = [DummyVecEnv, SubprocVecEnv]


def cart_pole() -> gymnasium.Env[Any, Any]:
    return gymnasium.make("CartPole-v1")


def pendulum() -> gymnasium.Env[Any, Any]:
    return gymnasium.make("Pendulum-v1", max_episode_steps=13)


@pytest.mark.parametrize("make", [cart_pole, pendulum])
def test_steps_are_those_of_stable_baselines3(make: Any) -> None:
    ours, theirs = DummyVecEnv([make] * 3), sb3.DummyVecEnv([make] * 3)
    ours.seed(7)
    theirs.seed(7)
    np.testing.assert_array_equal(ours.reset(), theirs.reset())
    rng = np.random.default_rng(0)
    ended = 0
    for _ in range(60):
        low, high = (0, 2) if make is cart_pole else (-2, 2)
        actions = rng.integers(0, 2, 3) if make is cart_pole else rng.uniform(low, high, (3, 1)).astype(np.float32)
        obs, rewards, dones, infos = ours.step(actions)
        other_obs, other_rewards, other_dones, other_infos = theirs.step(actions)
        np.testing.assert_array_equal(obs, other_obs)
        np.testing.assert_array_equal(rewards, other_rewards)
        np.testing.assert_array_equal(dones, other_dones)
        for i in np.flatnonzero(dones):
            ended += 1
            np.testing.assert_array_equal(infos[i]["terminal_observation"], other_infos[i]["terminal_observation"])
            assert infos[i]["TimeLimit.truncated"] == other_infos[i]["TimeLimit.truncated"]
    assert ended > 3


def test_worker_processes_give_the_same_results() -> None:
    # Lambdas are pickled by value: for a function by name, a worker would import this module and its imports.
    factories = [lambda: gymnasium.make("CartPole-v1")] * 2
    local, remote = DummyVecEnv(factories), SubprocVecEnv(factories)
    try:
        records = []
        for venv in (local, remote):
            venv.seed(3)
            seen = [venv.reset()]
            for t in range(40):
                obs, rewards, dones, infos = venv.step(np.array([t % 2, 1]))
                seen += [obs, rewards, dones, np.array([info.get("episode", {}).get("r", 0) for info in infos])]
            venv.set_attr("length", 0.7, indices=[1])
            assert venv.get_attr("length") == [0.5, 0.7]
            assert venv.env_method("has_wrapper_attr", "length", indices=0) == [True]
            batch = venv.batch(5)
            seen.append(batch.reset())
            for _ in range(20):
                seen.append(batch.step(np.ones((2, 1), dtype=np.float32)).observations)
            state = batch.state_dict()
            again = venv.batch(0)
            assert again.load_state_dict(state) is None
            action = np.zeros((2, 1), dtype=np.float32)
            seen.append(again.step(action).observations)
            records.append(seen)
        assert sum(part.sum() for part in records[0][4::4] if part.ndim == 1) > 0, "no episode ended"
        for one, other in zip(*records, strict=True):
            np.testing.assert_array_equal(one, other)
    finally:
        remote.close()
        remote.close()


@pytest.mark.parametrize("kind", KINDS)
def test_an_environment_that_fails_is_reported(kind: Any) -> None:
    venv: GroupVecEnv = kind([lambda: Failing("something broke", 2)])
    venv.reset()
    venv.step(np.zeros((1, 1), dtype=np.float32))
    with pytest.raises(EnvironmentFailureError, match=r"environment 0 raised OSError .*something broke"):
        venv.step(np.zeros((1, 1), dtype=np.float32))
    venv.close()


def test_episodes_are_recorded() -> None:
    venv = DummyVecEnv([lambda: Noisy(length=3)])
    venv.reset()
    total = 0.0
    for t in range(1, 7):
        _, rewards, dones, infos = venv.step(np.zeros((1, 1), dtype=np.float32))
        total += float(rewards[0])
        assert dones[0] == (t % 3 == 0)
        assert ("episode" in infos[0]) == dones[0]
        if dones[0]:
            assert infos[0]["episode"]["l"] == 3
            assert infos[0]["episode"]["r"] == pytest.approx(total, abs=1e-4)
            total = 0.0


def test_an_episode_that_ended_in_training_starts_again() -> None:
    venv = DummyVecEnv([lambda: Tiny("terminates", 0)])
    batch = venv.batch(0)
    batch.reset()
    action = np.zeros((1, 1), dtype=np.float32)
    batch.step(action)
    assert batch.step(action).terminated[0]
    obs, rewards, dones, _ = venv.step(action)  # Tiny raises at a step outside of an episode
    assert obs.tolist() == [[0, 1, 0, 0]]
    assert (rewards[0], dones[0]) == (0, False)


def test_observations_of_dicts_and_numbers_are_stacked() -> None:
    space = spaces.Dict({"a": spaces.Box(0, 1, (2,)), "b": spaces.Discrete(3)})
    both = stack_observations(space, [{"a": [0.0, 1.0], "b": 2}, {"a": [1.0, 0.0], "b": 0}])
    assert both["a"].tolist() == [[0, 1], [1, 0]]
    assert both["b"].tolist() == [2, 0]


def test_images_are_tiled() -> None:
    venv = DummyVecEnv([lambda: gymnasium.make("CartPole-v1", render_mode="rgb_array")] * 3)
    venv.reset()
    images = venv.get_images()
    sheet = venv.render(mode="rgb_array")
    assert sheet is not None
    height, width, _ = images[0].shape
    assert sheet.shape == (2 * height, 2 * width, 3)
    np.testing.assert_array_equal(sheet[height:, :width], images[2])
    assert not sheet[height:, width:].any()
    venv.close()


def test_envs_are_the_original_environments() -> None:
    env = Noisy()
    assert DummyVecEnv([lambda: env]).envs == [env]


class OldGym:
    def reset(self) -> Any: ...

    def step(self, action: Any) -> Any: ...


class OldReset(Noisy):
    def reset(self, **kwargs: Any) -> Any:
        return super().reset(**kwargs)[0]


class OldStep(Noisy):
    def step(self, action: Any) -> Any:
        return super().step(action)[:4]


def test_old_gym_environments_are_rejected_with_a_remedy() -> None:
    with pytest.raises(ValueError, match=r"must be a gymnasium\.Env, got .*OldGym.*inherit from gymnasium\.Env"):
        DummyVecEnv([OldGym])  # type: ignore[list-item]
    with pytest.raises(EnvironmentFailureError, match=r"reset must return \(observation, info\), got ndarray"):
        DummyVecEnv([OldReset]).reset()
    venv = DummyVecEnv([OldStep])
    venv.reset()
    with pytest.raises(EnvironmentFailureError, match="step must return five values, got 4"):
        venv.step(np.zeros((1, 1), dtype=np.float32))


@pytest.mark.parametrize("wrong", [cart_pole, [], [3]])
def test_only_a_list_of_functions_is_accepted(wrong: Any) -> None:
    with pytest.raises(ValueError, match=r"env_fns: must be a list of functions .*\[lambda: env\]"):
        DummyVecEnv(wrong)


def test_an_unknown_start_method_is_rejected() -> None:
    with pytest.raises(ValueError, match=r"start_method: must be one of fork, .* or None, got 'threads'"):
        SubprocVecEnv([cart_pole], start_method="threads")


def test_too_few_actions_are_rejected() -> None:
    venv = DummyVecEnv([cart_pole] * 2)
    venv.reset()
    with pytest.raises(ValueError, match="actions: must be 2, one per environment, got 1"):
        venv.step([0])


def test_without_a_seed_every_episode_differs() -> None:
    first = [DummyVecEnv([cart_pole]).reset() for _ in range(3)]
    assert len({obs.tobytes() for obs in first}) == 3
