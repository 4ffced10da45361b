from __future__ import annotations

import threading
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from stable_baselines3.common import vec_env as sb3

from minerva.compat import gym
from minerva.compat.auto_reset import AutoResetEnv
from minerva.compat.stable_baselines import DummyVecEnv, SubprocVecEnv
from minerva.compat.stable_baselines.bench import Monitor
from minerva.compat.stable_baselines.common.vec_env import VecEnv
from minerva.compat.stable_baselines.common.vec_env.util import stack_observations
from minerva.environments import EnvironmentFailureError
from tests.compat.stable_baselines.samples import numpy_int
from tests.environments.tiny_envs import Failing, Noisy

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
            records.append(seen)
        assert sum(part.sum() for part in records[0][4::4] if part.ndim == 1) > 0, "no episode ended"
        for one, other in zip(*records, strict=True):
            np.testing.assert_array_equal(one, other)
    finally:
        remote.close()
        remote.close()


@pytest.mark.parametrize("kind", KINDS)
def test_attributes_and_methods_of_some_environments(kind: Any) -> None:
    venv: VecEnv = kind([lambda: gymnasium.make("CartPole-v1")] * 3)
    try:
        venv.set_attr("length", 0.7, indices=-1)
        venv.set_attr("length", 0.6, numpy_int(0))
        assert venv.get_attr("length") == [0.6, 0.5, 0.7]
        assert venv.get_attr("length", indices=[2, -3]) == [0.7, 0.6]
        assert venv.get_attr("length", indices=np.array([1])) == [0.5]
        venv.set_attr("masscart", 3.0)
        assert venv.env_method("has_wrapper_attr", "length", indices=(0, 1)) == [True, True]
        assert venv.env_method("get_wrapper_attr", name="masscart", indices=range(2)) == [3.0, 3.0]
        with pytest.raises(IndexError, match="indices: must be from -3 to 2, got 3"):
            venv.get_attr("length", 3)
        with pytest.raises((AttributeError, EnvironmentFailureError), match="nothing"):
            venv.get_attr("nothing")
        assert venv.unwrapped is venv
    finally:
        venv.close()


def test_an_attribute_may_be_none() -> None:
    venv = DummyVecEnv([cart_pole])
    venv.set_attr("screen", None)
    assert venv.get_attr("screen") == [None]


def test_an_environment_that_fails_raises_its_own_error() -> None:
    venv = DummyVecEnv([lambda: Failing("something broke", 1)])
    venv.reset()
    with pytest.raises(OSError, match="something broke"):
        venv.step(np.zeros((1, 1), dtype=np.float32))


def test_an_environment_that_fails_in_a_process_is_reported() -> None:
    venv = SubprocVecEnv([lambda: Noisy(), lambda: Failing("something broke", 1)])
    try:
        venv.reset()
        with pytest.raises(EnvironmentFailureError, match="environment 1 raised OSError in step: something broke"):
            venv.step(np.zeros((2, 1), dtype=np.float32))
    finally:
        venv.close()
        venv.close()


def test_arguments_and_results_are_pickled_by_value() -> None:
    class Mark:  # local to this function: only cloudpickle can pickle it
        pass

    class Marking(Noisy):
        def mark(self, *values: Any, **named: Any) -> Any:
            return values, named

        def fail(self) -> None:
            raise OSError("broken")

        def lock(self) -> Any:
            return threading.Lock()

        def step(self, action: Any) -> Any:
            return *super().step(action)[:4], {"mark": Mark()}

    venv = SubprocVecEnv([Marking] * 2)
    try:
        (values, named), _ = venv.env_method("mark", Mark(), 1, as_name=2)
        assert type(values[0]) is Mark
        assert (values[1:], named) == ((1,), {"as_name": 2})
        with pytest.raises(EnvironmentFailureError, match="environment 1 raised OSError in fail: broken"):
            venv.env_method("fail", indices=1)
        with pytest.raises(EnvironmentFailureError, match="cannot pickle"):
            venv.env_method("lock")
        with pytest.raises(TypeError, match="cannot pickle"):
            venv.env_method("mark", threading.Lock())
        # The failures left no answer in a pipe.
        assert venv.get_attr("length") == [5, 5]
        venv.reset()
        assert type(venv.step(np.zeros((2, 1), np.float32))[3][1]["mark"]) is Mark
    finally:
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
    one = DummyVecEnv([lambda: gymnasium.make("CartPole-v1", render_mode="rgb_array")])
    one.reset()
    assert one.render(mode="rgb_array").shape == (height, width, 3)


def test_envs_are_the_original_environments() -> None:
    env = Noisy()
    assert DummyVecEnv([lambda: env]).envs == [env]


class OldGym:
    """gym's interface without a base class: no seed in reset, four values, a seed method."""

    observation_space = spaces.Box(-9, 9, (2,))
    action_space = spaces.Discrete(2)

    def __init__(self, limit: bool = False) -> None:
        self.limit = limit
        self.seeded: list[Any] = []

    def seed(self, seed: Any = None) -> list[Any]:
        self.seeded.append(seed)
        return [seed]

    def reset(self) -> Any:
        self.t = 0
        return np.zeros(2)

    def step(self, action: Any) -> Any:
        self.t += 1
        done = self.t == 2
        return [self.t, action], 1.0, done, {"TimeLimit.truncated": True} if done and self.limit else {}


class Unseeded(OldGym):
    seed = None  # type: ignore[assignment]


class OldReset(Noisy):
    def reset(self, **kwargs: Any) -> Any:
        return super().reset(**kwargs)[0]


class OldStep(Noisy):
    def step(self, action: Any) -> Any:
        return [*super().step(action)[:3], {}]


@pytest.mark.parametrize("limit", [True, False])
def test_old_environments_are_accepted(limit: bool) -> None:
    venv = DummyVecEnv([lambda: OldGym(limit)] * 2)
    assert venv.seed(3) == [[3], [4]]
    assert venv.get_attr("seeded") == [[3], [4]]
    assert venv.reset().tolist() == [[0, 0], [0, 0]]
    assert venv.step([1, 0])[0].tolist() == [[1, 1], [1, 0]]
    obs, rewards, dones, infos = venv.step(np.array([0, 1]))
    assert obs.tolist() == [[0, 0], [0, 0]]
    assert obs.dtype == np.float32
    assert (rewards.tolist(), dones.tolist()) == ([1, 1], [True, True])
    assert np.array(infos[1]["terminal_observation"]).tolist() == [2, 1]
    assert infos[0].get("TimeLimit.truncated", False) is limit
    assert (infos[0]["episode"]["r"], infos[0]["episode"]["l"]) == (2, 2)


def test_parts_of_the_interfaces_may_be_mixed() -> None:
    for make in (OldReset, OldStep, Unseeded):
        venv = DummyVecEnv([make])
        venv.seed(1)
        first = venv.reset()
        venv.step(np.zeros((1, *(venv.action_space.shape or ())), dtype=np.float32))
        venv.seed(1)
        np.testing.assert_array_equal(venv.reset(), first)
    assert DummyVecEnv([Unseeded]).seed(1) == [None]


def test_a_seed_reaches_the_environment_once() -> None:
    class Seeds(Noisy):
        def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
            self.seeds = [*getattr(self, "seeds", []), seed]
            return super().reset(seed=seed)

    venv = DummyVecEnv([Seeds] * 2)
    assert venv.seed(5) == [5, 6]
    venv.reset()
    venv.reset()
    assert venv.seed(numpy_int(9), indices=-1) == [10]
    venv.reset()
    assert venv.get_attr("seeds") == [[5, None, None], [6, None, 10]]
    venv.seed(None)
    venv.reset()
    assert venv.get_attr("seeds")[0][-1] is not None


class NoSpace(OldGym):
    action_space = None  # type: ignore[assignment]


class Three(OldGym):
    def step(self, action: Any) -> Any:
        return 1, 2, 3


class NoInfo(OldGym):
    def step(self, action: Any) -> Any:
        return np.zeros(2), 0.0, False, None


class Shapeless(OldGym):
    def reset(self) -> Any:
        return np.zeros(1)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: 3, "env: must be an environment with the methods reset and step, got 3"),
        (NoSpace, "env: its action_space must be a gymnasium.Space, got None"),
        (Three, r"env: step must return \(observation, reward, done, info\), .* got a tuple of 3 values"),
        (NoInfo, "env: the info that step returns must be a dict, got None"),
        (Shapeless, r"env: its observation must have the shape \(2,\) of its observation_space, got an array"),
    ],
)
def test_what_cannot_be_accepted_is_a_sentence(make: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        venv = DummyVecEnv([make])
        venv.reset()
        venv.step([0])


def test_discrete_actions_are_python_integers_for_classes_of_gymnasium_alone() -> None:
    kinds: list[type] = []

    class Telling(OldGym):
        def step(self, action: Any) -> Any:
            kinds.append(type(action))
            return super().step(action)

    for make in (Telling, lambda: Monitor(Telling())):
        venv = DummyVecEnv([make])
        venv.reset()
        venv.step(np.array([1]))
    assert kinds == [np.int64, np.int64]
    for env in (cart_pole(), Monitor(cart_pole()), gym.make("CartPole-v1")):
        assert AutoResetEnv(env).int_actions


def test_buffers_and_copies() -> None:
    venv = DummyVecEnv([lambda: Noisy(3)] * 2)
    first = venv.reset()
    first_copy = first.copy()
    obs, rewards, _, infos = venv.step(np.ones((2, 1), np.float32))
    np.testing.assert_array_equal(first, first_copy)
    np.testing.assert_array_equal(venv.buf_obs[None], obs)
    np.testing.assert_array_equal(venv.buf_rews, rewards)
    assert rewards.dtype == np.float32
    infos.clear()
    assert len(venv.buf_infos) == 2


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
