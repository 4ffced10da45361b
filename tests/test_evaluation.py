from __future__ import annotations

import zlib
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from numpy.typing import NDArray

from minerva.environments import EnvironmentFailureError, GymnasiumBatch, resolve
from minerva.evaluation import Evaluation, Evaluator
from tests.environments.tiny_envs import Failing, Noisy

CALLS: list[tuple[int, str]] = []


class Staggered(gymnasium.Env[NDArray[np.float32], NDArray[np.float32]]):
    """Draw the length of an episode at reset, and record every call."""

    observation_space = spaces.Box(-np.inf, np.inf, (1,))
    action_space = spaces.Box(-1.0, 1.0, (1,))

    def __init__(self) -> None:
        self.name = sum(1 for _, call in CALLS if call == "made")
        CALLS.append((self.name, "made"))

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        CALLS.append((self.name, f"reset {seed}"))
        self.left = int(self.np_random.integers(1, 9))
        return np.array([self.left], dtype=np.float32), {}

    def step(self, action: NDArray[np.float32]) -> Any:
        CALLS.append((self.name, "step"))
        assert self.left > 0, "stepped after its end"
        self.left -= 1
        terminated = self.left == 0 and self.name % 2 == 0
        return np.array([self.left], dtype=np.float32), float(action[0]), terminated, self.left == 0, {}

    def close(self) -> None:
        CALLS.append((self.name, "closed"))


def policy(observations: NDArray[np.float32]) -> NDArray[np.float32]:
    weights = np.linspace(-1, 1, observations.shape[1], dtype=np.float32)[:, None]
    actions: NDArray[np.float32] = 2 * np.tanh(observations @ weights)  # some outside the box
    return actions


def seeds_of(seed: int, count: int) -> list[int]:
    children = np.random.SeedSequence([seed, zlib.crc32(b"evaluation")]).spawn(count)
    return [int(np.random.default_rng(child).integers(2**31)) for child in children]


def by_hand(env: gymnasium.Env[Any, Any], seed: int, width: int) -> tuple[float, int]:
    observation, _ = env.reset(seed=seed)
    total, length, over = 0.0, 0, False
    assert isinstance(env.action_space, spaces.Box)
    while not over:
        flat = np.asarray(spaces.flatten(env.observation_space, observation), dtype=np.float32)
        action = np.repeat(policy(flat[None])[0], width)
        action = np.clip(action, env.action_space.low, env.action_space.high).astype(env.action_space.dtype)
        observation, reward, terminated, truncated, _ = env.step(action)
        total, length, over = total + float(reward), length + 1, terminated or truncated
    return total, length


@pytest.mark.parametrize(
    ("name", "kwargs", "width"),
    [
        ("Pendulum-v1", {"max_episode_steps": 30}, 1),
        ("Hopper-v5", {}, 3),
        ("dm_control/cheetah/run", {"task_kwargs": {"time_limit": 0.2}}, 6),
    ],
)
def test_it_equals_a_loop_over_single_environments(name: str, kwargs: dict[str, Any], width: int) -> None:
    factory = resolve(name, kwargs)
    evaluator = Evaluator(factory, episodes=3, seed=5)
    evaluation = evaluator.run(lambda observations: np.repeat(policy(observations), width, axis=1))
    evaluator.close()
    expected = []
    for i in range(3):
        env = factory()
        expected.append(by_hand(env, seeds_of(5, 3)[i], width))
        env.close()
    # The last bit of the policy's matrix product depends on the number of rows.
    np.testing.assert_allclose(evaluation.returns, [total for total, _ in expected], rtol=1e-4)
    assert evaluation.lengths.tolist() == [length for _, length in expected]


def test_it_runs_other_episodes_than_training_other_streams_and_other_seeds() -> None:
    starts: list[float] = []

    def look(observations: NDArray[Any]) -> NDArray[np.float32]:
        starts.extend(observations[:, 0].tolist())
        return np.zeros((8, 1), dtype=np.float32)

    for seed in (7, 8):
        for stream in ("evaluation", "evaluate"):
            Evaluator(Noisy, 8, seed, max_steps=1, stream=stream).run(look)
        starts += GymnasiumBatch([Noisy] * 8, seed).reset()[:, 0].tolist()
    assert len(set(starts)) == len(starts) == 2 * 3 * 8


def test_one_episode_per_environment_and_no_more_steps() -> None:
    CALLS.clear()
    evaluator = Evaluator(Staggered, episodes=4, seed=1)
    seeds = seeds_of(1, 4)
    assert CALLS == []  # environments are built when they are needed
    first = evaluator.run(lambda observations: np.full((4, 1), 0.25, dtype=np.float32))
    lengths = [int(np.random.default_rng(seed).integers(1, 9)) for seed in seeds]
    assert len(set(lengths)) > 1
    assert first.lengths.tolist() == lengths
    assert first.returns.tolist() == [0.25 * length for length in lengths]
    for i in range(4):
        calls = [call for name, call in CALLS if name == i]
        assert calls == ["made", f"reset {seeds[i]}", *["step"] * lengths[i]]
    # The next evaluation has the same environments, seeds and lengths.
    second = evaluator.run(lambda observations: np.full((4, 1), -7.0, dtype=np.float32))
    assert second.lengths.tolist() == lengths
    assert second.returns.tolist() == [-1.0 * length for length in lengths]
    assert sum(call == "made" for _, call in CALLS) == 4
    evaluator.close()
    evaluator.close()
    assert sum(call == "closed" for _, call in CALLS) == 4


def test_the_policy_sees_raw_observations_of_all_environments() -> None:
    seen: list[NDArray[np.float32]] = []

    def act(observations: NDArray[np.float32]) -> NDArray[np.float32]:
        seen.append(observations)
        return np.zeros((2, 1), dtype=np.float32)

    evaluator = Evaluator(Noisy, episodes=2, seed=0)
    evaluator.run(act)
    evaluator.close()
    assert [x[:, 1].tolist() for x in seen] == [[t, t] for t in range(5)]  # earlier arrays are not overwritten


def test_an_episode_without_an_end_is_cut() -> None:
    evaluator = Evaluator(lambda: Noisy(10**9), episodes=2, seed=0, max_steps=7)
    for _ in range(2):
        evaluation = evaluator.run(lambda observations: np.zeros((2, 1), dtype=np.float32))
        assert evaluation.lengths.tolist() == [7, 7]
    evaluator.close()


def test_a_failure_names_the_environment() -> None:
    evaluator = Evaluator(lambda: Failing("fell over", 2), episodes=2, seed=0)
    with pytest.raises(EnvironmentFailureError, match="environment 0 raised OSError in step: fell over"):
        evaluator.run(lambda observations: np.zeros((2, 1), dtype=np.float32))
    evaluator.close()


def test_metrics() -> None:
    evaluation = Evaluation(np.array([1.0, 2.0, 6.0, 11.0]), np.array([3, 4, 5, 6]))
    assert evaluation.metrics() == {
        "eval/return_mean": 5.0,
        "eval/return_std": pytest.approx(np.sqrt(15.5)),
        "eval/return_min": 1.0,
        "eval/return_max": 11.0,
        "eval/return_median": 4.0,
        "eval/length_mean": 4.5,
    }
    assert all(type(value) is float for value in evaluation.metrics().values())


@pytest.mark.parametrize("what", ["reward", "observation"])
def test_a_value_that_is_not_a_number_is_an_error_and_not_a_result(what: str) -> None:
    class Broken(gymnasium.Env[NDArray[np.float32], NDArray[np.float32]]):
        observation_space = spaces.Box(-1, 1, (2,))
        action_space = spaces.Box(-1, 1, (1,))

        def reset(
            self, *, seed: int | None = None, options: dict[str, Any] | None = None
        ) -> tuple[NDArray[np.float32], dict[str, Any]]:
            return np.zeros(2, dtype=np.float32), {}

        def step(self, action: NDArray[np.float32]) -> tuple[NDArray[np.float32], float, bool, bool, dict[str, Any]]:
            observation = np.array([0, np.nan if what == "observation" else 0], dtype=np.float32)
            return observation, np.nan if what == "reward" else 0.0, True, False, {}

    evaluator = Evaluator(Broken, 2, seed=0)
    with pytest.raises(EnvironmentFailureError, match=f"environment 0 returned .*{what}.*nan"):
        evaluator.run(lambda observations: np.zeros((len(observations), 1), dtype=np.float32))
    evaluator.close()
