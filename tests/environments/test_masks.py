from __future__ import annotations

from functools import partial
from itertools import pairwise
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.wrappers import TimeLimit
from numpy.typing import NDArray

from minerva.environments import EnvironmentFailureError, GymnasiumBatch, known_ids, make
from minerva.environments.masks import MaskError, write_mask
from minerva.evaluation import Evaluator
from tests.environments.tiny_envs import Picking, Tiny

DISCRETE, MULTI = spaces.Discrete(4, start=3), spaces.MultiDiscrete([2, 3])
NUMBERS, PICTURE = spaces.Box(0, 255, (3,), np.float32), spaces.Box(0, 255, (2, 2, 3), np.uint8)


def written(mask: Any, counts: tuple[int, ...], ended: bool = False) -> list[float]:
    row = np.full(sum(counts), 7, dtype=np.float32)
    write_mask(mask, counts, row, ended)
    return row.tolist()


def test_masks_by_hand() -> None:
    assert written(np.array([0, 1, 1], dtype=np.int8), (3,)) == [0, 1, 1]
    assert written([True, False, True], (3,)) == [1, 0, 1]
    assert written(np.array([2.0, 0.0]), (2,)) == [1, 0]
    assert written((np.array([1, 0]), np.array([0, 0, 1])), (2, 3)) == [1, 0, 0, 0, 1]
    assert written(np.array([1, 0, 0, 0, 1]), (2, 3)) == [1, 0, 0, 0, 1]


def test_a_mask_that_allows_nothing() -> None:
    with pytest.raises(MaskError, match=r"allows nothing; every state but the last"):
        written([0, 0], (2,))
    with pytest.raises(MaskError, match=r"allows nothing \(entry 1 of the action\)"):
        written([0, 1, 0, 0, 0], (2, 3))
    # No action follows the last step: the mask must not turn a policy's probabilities into NaN.
    assert written([0, 0], (2,), ended=True) == [1, 1]
    assert written([0, 1, 0, 0, 0], (2, 3), ended=True) == [0, 1, 1, 1, 1]


def test_a_mask_of_another_length() -> None:
    with pytest.raises(MaskError, match="must have 3 entries, one per category, got 2"):
        written([1, 1], (3,))
    with pytest.raises(MaskError, match="must have 3 entries, one per category, got 0"):
        written([], (3,))


@pytest.mark.parametrize("vectorization", ["sync", "subprocess"])
@pytest.mark.parametrize("observation_space", [NUMBERS, PICTURE], ids=["numbers", "picture"])
@pytest.mark.parametrize(("action_space", "mask"), [(DISCRETE, "info"), (MULTI, "method"), (MULTI, "parts")])
def test_a_mask_is_at_the_end_of_a_row(
    action_space: gymnasium.Space[Any], mask: str, observation_space: spaces.Box, vectorization: Any
) -> None:
    make_env = partial(Picking, action_space, observation_space, mask)
    batch = GymnasiumBatch([make_env] * 2, 5, vectorization, 2)
    width = int(np.prod(observation_space.shape))
    k = 4 if action_space is DISCRETE else 5
    assert (batch.mask_dim, batch.observation_dim) == (k, width + k)
    rows = batch.reset()
    envs = [make_env() for _ in range(2)]
    for i, env in enumerate(envs):
        env.reset(seed=batch.state_dict()["episode_seeds"][i])
    assert rows.dtype == batch.observation_dtype == observation_space.dtype
    generator = np.random.default_rng(0)
    for t in range(7):
        for i, env in enumerate(envs):
            assert rows[i, width:].tolist() == np.concatenate(env.masks).astype(int).tolist()
        actions = generator.integers(0, 2, (2, 1 if action_space is DISCRETE else 2)).astype(np.float32)
        step = batch.step(actions)
        for i, env in enumerate(envs):
            started = actions[i].astype(np.int64) + (3 if action_space is DISCRETE else 0)
            observation, *_ = env.step(started[0] if action_space is DISCRETE else started)
            assert step.observations[i, :width].tolist() == observation.reshape(-1).tolist()
        rows = step.observations
        if t == 6:
            assert step.terminated.all()
            assert (rows[:, width:] == 1).all()  # it allowed nothing there
    batch.close()


@pytest.mark.parametrize("vectorization", ["sync", "subprocess"])
@pytest.mark.parametrize("observation_space", [NUMBERS, PICTURE], ids=["numbers", "picture"])
def test_a_batch_with_masks_resumes_bit_for_bit(observation_space: spaces.Box, vectorization: Any) -> None:
    make_env = partial(Picking, MULTI, observation_space, "info")
    one, other = (GymnasiumBatch([make_env] * 2, seed, vectorization, 2) for seed in (1, 2))
    one.reset()
    for t in range(20):
        assert other.load_state_dict(one.state_dict()) is None
        actions = np.full((2, 2), t % 2, dtype=np.float32)
        for _ in range(2):
            step, again = one.step(actions), other.step(actions)
            for name in ("observations", "rewards", "terminated", "restarting"):
                np.testing.assert_array_equal(getattr(step, name), getattr(again, name))
    one.close()
    other.close()


def test_a_real_task_with_masks() -> None:
    name = known_ids("Taxi")[-1]  # its version depends on that of Gymnasium
    batch = make(name, 2, seed=0)
    assert (batch.mask_dim, batch.observation_dim) == (6, 506)
    rows = batch.reset()
    env = gymnasium.make(name)
    for i in range(2):
        observation, info = env.reset(seed=batch.state_dict()["episode_seeds"][i])
        assert rows[i, :500].argmax() == observation
        assert rows[i, 500:].tolist() == info["action_mask"].tolist()
        assert 0 < rows[i, 500:].sum() < 6
    batch.close()
    env.close()


def test_tasks_without_masks() -> None:
    for name in ("CartPole-v1", "Pendulum-v1"):
        batch = make(name)
        assert batch.mask_dim == 0
        batch.close()
    # A Box has no categories to forbid, so no reset checks for masks.
    env = Tiny()
    batch = make(lambda: env)
    batch.reset()
    assert (batch.mask_dim, env.episode) == (0, 0)
    batch.close()


class Careless(Picking):
    def __init__(self, fault: str) -> None:
        super().__init__(DISCRETE, NUMBERS, "info")
        self.fault = fault

    def step(self, action: Any) -> Any:
        observation, reward, terminated, truncated, info = super().step(action)
        if self.steps == 2:
            info = {} if self.fault == "missing" else {"action_mask": np.zeros(4)}
        return observation, reward, terminated, truncated, info


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("missing", r'environment 1, in step: it returned no info\["action_mask"\], but did so'),
        ("empty", "environment 1, in step: its action mask allows nothing"),
    ],
)
def test_faulty_masks_name_their_environment(fault: str, message: str) -> None:
    batch = GymnasiumBatch([partial(Picking, DISCRETE, NUMBERS, "info"), partial(Careless, fault)], 0)
    batch.reset()
    batch.step(np.zeros((2, 1), dtype=np.float32))
    with pytest.raises(EnvironmentFailureError, match=message):
        batch.step(np.zeros((2, 1), dtype=np.float32))


def test_wrappers_around_a_method() -> None:
    batch = make(lambda: TimeLimit(Picking(MULTI, NUMBERS, "method"), 5))
    assert batch.mask_dim == 5
    batch.close()


def test_evaluation_uses_masks_and_indexes_actions_from_zero() -> None:
    seen: list[NDArray[Any]] = []

    def act(rows: NDArray[Any]) -> NDArray[np.float32]:
        seen.append(rows)
        return np.asarray(rows[:, -4:].argmax(axis=1)[:, None], dtype=np.float32)

    evaluation = Evaluator(partial(Picking, DISCRETE, PICTURE, "info"), 3, 0).run(act)
    assert evaluation.lengths.tolist() == [7, 7, 7]
    for before, after in pairwise(seen):
        assert after.dtype == np.uint8
        assert after.shape == (3, 16)
        assert after[:, 0].tolist() == (before[:, -4:].argmax(axis=1) + 3).tolist()
