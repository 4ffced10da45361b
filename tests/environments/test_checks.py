from __future__ import annotations

import sys
from functools import partial
from typing import Any

import cloudpickle
import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces

from minerva.environments import EnvironmentFailureError, EnvPoolBatch, GymnasiumBatch
from minerva.evaluation import Evaluator

# Worker processes cannot import the tests: these classes are pickled by value.
cloudpickle.register_pickle_by_value(sys.modules[__name__])

THREE = spaces.Box(-1.0, 1.0, (3,), np.float32)
IMAGE = spaces.Box(0, 255, (2, 2, 3), np.uint8)
NESTED = spaces.Dict({"arm": THREE, "mode": spaces.Discrete(3, start=1), "pair": spaces.Tuple([spaces.MultiBinary(2)])})
PARTS = {"arm": np.zeros(3), "mode": 1, "pair": (np.array([0, 1]),)}
GOOD: dict[str, Any] = {
    "observation": np.zeros(3, np.float32), "reward": 1.0, "terminated": False, "truncated": False, "info": {},
}  # fmt: skip


class Returning(gymnasium.Env[Any, Any]):
    """Return something else in one place of one step (0: the reset)."""

    action_space = spaces.Box(-1.0, 1.0, (1,), np.float32)

    def __init__(self, space: gymnasium.Space[Any], good: Any, at: int, part: str, value: Any) -> None:
        self.observation_space, self.good, self.at, self.part, self.value = space, good, at, part, value

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        self.steps = 0
        return self._values(("observation", "info"))

    def step(self, action: Any) -> Any:
        self.steps += 1
        return self._values(("observation", "reward", "terminated", "truncated", "info"))

    def _values(self, names: tuple[str, ...]) -> Any:
        values = {**GOOD, "observation": self.good}
        if self.steps == self.at and self.part == "all":
            return self.value
        if self.steps == self.at:
            values[self.part] = self.value
        return tuple(values[name] for name in names)


def run(factory: Any, vectorization: Any = "sync") -> tuple[list[Any], list[float]]:
    """Take three steps; return the observations and the rewards."""
    batch = GymnasiumBatch([factory] * 2, 1, vectorization, 2)
    try:
        observations, rewards = [batch.reset()[0].tolist()], []
        for _ in range(3):
            step = batch.step(np.zeros((2, 1), np.float32))
            observations.append(step.observations[0].tolist())
            rewards.append(float(step.rewards[0]))
    finally:
        batch.close()
    return observations, rewards


WRONG_OBSERVATIONS: list[tuple[gymnasium.Space[Any], Any, Any, str]] = [
    (THREE, np.zeros(3), 0.5, r"observation must be of shape \(3,\) and type float32, got 0\.5"),
    (THREE, np.zeros(3), np.zeros(1), r"must be of shape \(3,\) .*got an array of shape \(1,\)"),
    (THREE, np.zeros(3), np.zeros((3, 1)), r"must be of shape \(3,\) .*got an array of shape \(3, 1\)"),
    (THREE, np.zeros(3), None, "got None"),
    (THREE, np.zeros(3), np.zeros(3, complex), "type complex128"),
    (THREE, np.zeros(3), np.array(["1", "2", "3"]), "type <U1"),
    (THREE, np.zeros(3), [1.0, None, 2.0], "got a list of 3 values"),
    (THREE, np.zeros(3), [1.0, [2.0], 3.0], "got a list of 3 values"),
    (THREE, np.zeros(3), np.zeros(3, "datetime64[s]"), r"type datetime64\[s\]"),
    (THREE, np.zeros(3), {"arm": np.zeros(3)}, r"got a dict with \['arm'\]"),
    (THREE, np.zeros(3), torch.zeros(3, requires_grad=True), "got a Tensor"),
    (IMAGE, np.zeros((2, 2, 3), np.uint8), np.full((2, 2, 3), 0.5), "type uint8, got an array .* type float64"),
    (IMAGE, np.zeros((2, 2, 3), np.uint8), np.full((2, 2, 3), 300), "type uint8, got an array .* type int64"),
    (IMAGE, np.zeros((2, 2, 3), np.uint8), np.zeros((2, 2), np.uint8), r"shape \(2, 2, 3\)"),
    (spaces.Discrete(3), 1, 3, r"in Discrete\(3\), got 3"),
    (spaces.Discrete(3), 1, -1, r"in Discrete\(3\), got -1"),
    (spaces.Discrete(3), 1, 1.0, r"in Discrete\(3\), got 1\.0"),
    (spaces.Discrete(3), 1, np.array([1]), r"in Discrete\(3\), got an array of shape \(1,\)"),
    (spaces.MultiDiscrete([2, 3]), np.array([0, 1]), np.array([2, 0]), r"in MultiDiscrete\(\[2 3\]\)"),
    (spaces.MultiBinary(2), np.array([0, 1]), np.array([0, 2]), r"in MultiBinary\(2\)"),
    (NESTED, PARTS, {**PARTS, "arm": np.zeros(2)}, r"observation\['arm'\] must be of shape \(3,\)"),
    (NESTED, PARTS, {**PARTS, "mode": 0}, r"observation\['mode'\] must be .*in Discrete\(3, start=1\), got 0"),
    (NESTED, PARTS, {"arm": np.zeros(3), "mode": 1}, r"must be a dict with \['arm', 'mode', 'pair'\], got a dict"),
    (NESTED, PARTS, {**PARTS, "extra": 1}, r"got a dict with \['arm', 'extra', 'mode', 'pair'\]"),
    (NESTED, PARTS, {**PARTS, "pair": np.array([[0, 1]])}, r"observation\['pair'\] must be a tuple"),
]  # fmt: skip


@pytest.mark.parametrize("at", [0, 2])
@pytest.mark.parametrize(("space", "good", "wrong", "message"), WRONG_OBSERVATIONS)
def test_an_observation_that_is_not_of_its_space(
    space: gymnasium.Space[Any], good: Any, wrong: Any, message: str, at: int
) -> None:
    where = "step" if at else "reset"
    with pytest.raises(EnvironmentFailureError, match=rf"^environment 0, in {where}: the .*{message}"):
        run(partial(Returning, space, good, at, "observation", wrong))


@pytest.mark.parametrize(
    ("part", "wrong", "message"),
    [
        ("reward", "7", "the reward must be one real number, got '7'"),
        ("reward", None, "the reward must be one real number, got None"),
        ("reward", 1j, "the reward must be one real number, got 1j"),
        ("reward", np.zeros(2), r"the reward must be one real number, got an array of shape \(2,\)"),
        ("reward", [1.0], "the reward must be one real number, got a list of 1 value"),
        ("terminated", "no", "terminated must be True or False, got 'no'"),
        ("terminated", None, "terminated must be True or False, got None"),
        ("truncated", 2, "truncated must be True or False, got 2"),
        ("truncated", 0.5, "truncated must be True or False, got 0.5"),
        ("truncated", np.zeros(2, bool), r"truncated must be True or False, got an array of shape \(2,\)"),
        ("info", None, "info must be a dict, got None"),
        ("all", None, r"step must return \(observation, reward, terminated, truncated, info\), got None"),
        ("all", (np.zeros(3), 0.0, False, {}), "step must return .*, got a tuple of 4 values"),
    ],
)
def test_a_step_that_returns_something_else(part: str, wrong: Any, message: str) -> None:
    with pytest.raises(EnvironmentFailureError, match=f"^environment 0, in step: {message}"):
        run(partial(Returning, THREE, np.zeros(3), 2, part, wrong))


@pytest.mark.parametrize("wrong", [np.zeros(2, np.float32), None, (np.zeros(3), None), (np.zeros(3), {}, 1)])
def test_a_reset_that_returns_something_else(wrong: Any) -> None:
    with pytest.raises(EnvironmentFailureError, match=r"^environment 0, in reset: (reset must return|info must be)"):
        run(partial(Returning, THREE, np.zeros(3), 0, "all", wrong))


def test_checks_in_worker_processes() -> None:
    with pytest.raises(
        EnvironmentFailureError, match=r"^environment 0, in step: the observation must be of shape \(3,"
    ):
        run(partial(Returning, THREE, np.zeros(3), 2, "observation", np.zeros(1)), "subprocess")


@pytest.mark.parametrize(("at", "where"), [(0, "reset"), (2, "step")])
def test_checks_in_evaluation(at: int, where: str) -> None:
    evaluator = Evaluator(partial(Returning, THREE, np.zeros(3), at, "observation", np.zeros(1)), 1, 1)
    with pytest.raises(EnvironmentFailureError, match=f"^environment 0, in {where}: the observation"):
        evaluator.run(lambda obs: np.zeros((1, 1), np.float32))
    evaluator.close()


def test_an_evaluation_whose_first_observation_is_not_finite() -> None:
    evaluator = Evaluator(partial(Returning, THREE, np.zeros(3), 0, "observation", np.full(3, np.nan)), 1, 1)
    with pytest.raises(EnvironmentFailureError, match="returned an observation with nan at position 0"):
        evaluator.run(lambda obs: np.zeros((1, 1), np.float32))
    evaluator.close()


@pytest.mark.parametrize(
    ("part", "value", "reward"),
    [
        ("reward", 3, 3), ("reward", True, 1), ("reward", np.float16(0.5), 0.5), ("reward", np.int8(2), 2),
        ("reward", np.array(0.25), 0.25), ("reward", np.bool_(True), 1), ("reward", torch.tensor(2.0), 2),
        ("observation", [0.5, 1, 2], 1), ("observation", (0.5, 1, 2), 1), ("observation", np.array([0.5, 1, 2]), 1),
        ("observation", torch.tensor([0.5, 1, 2]), 1), ("terminated", np.False_, 1), ("terminated", 0, 1),
        ("truncated", np.array(False), 1), ("truncated", np.int64(0), 1),
    ],
)  # fmt: skip
def test_every_reasonable_type_is_accepted(part: str, value: Any, reward: float) -> None:
    observations, rewards = run(partial(Returning, THREE, np.zeros(3), 2, part, value))
    assert rewards == [1, reward, 1]
    assert observations[2] == ([0.5, 1, 2] if part == "observation" else [0, 0, 0])


def test_bytes_of_another_type_in_their_range_are_accepted() -> None:
    picture = np.arange(12).reshape(2, 2, 3) * 23  # int64, up to 253
    observations, _ = run(partial(Returning, IMAGE, np.zeros((2, 2, 3), np.uint8), 2, "observation", picture))
    assert observations[2] == picture.reshape(-1).tolist()


def test_a_reward_that_float32_cannot_hold() -> None:
    with pytest.raises(EnvironmentFailureError, match=r"environment 0 returned the reward 1e\+300"):
        run(partial(Returning, THREE, np.zeros(3), 2, "reward", 1e300))


@pytest.mark.parametrize("name", ["observation_space", "action_space"])
def test_an_environment_without_a_space(name: str) -> None:
    def factory() -> gymnasium.Env[Any, Any]:
        env = Returning(THREE, np.zeros(3), 9, "info", {})
        setattr(env, name, None)
        return env

    with pytest.raises(ValueError, match=f"^env: its {name} must be a gymnasium.Space, got None"):
        GymnasiumBatch([factory], 1)


class Pool:
    """EnvPool's interface, with observations of another size than the space."""

    def reset(self) -> Any:
        return np.zeros((2, 1), np.float32), {}


def test_a_pool_whose_observations_have_another_size() -> None:
    batch = EnvPoolBatch(lambda seed: Pool(), 2, THREE, Returning.action_space, 1, "a pool")
    with pytest.raises(EnvironmentFailureError, match=r"must have the 3 numbers of .*, got 1"):
        batch.reset()
