from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from minerva.environments import history
from minerva.environments.history import ActionHistory


def filled(steps: int, lengths: list[int], action_dim: int = 2) -> tuple[ActionHistory, list[list[list[float]]]]:
    """Fill a history with episodes of these lengths, and plain lists with what it should hold."""
    n = len(lengths)
    kept, expected = ActionHistory(n, action_dim), [[[0.0] * action_dim][:0] for _ in range(n)]
    rng = np.random.default_rng(0)
    for t in range(steps):
        actions = rng.normal(size=(n, action_dim)).astype(np.float32)
        started = [i for i, length in enumerate(lengths) if t % (length + 1) == 0]
        kept.add(actions, started, [])
        for i in range(n):
            expected[i] = [] if i in started else [*expected[i], actions[i].tolist()]
    return kept, expected


@pytest.mark.parametrize("steps", [1, 15, 16, 17, 33, 200])
def test_it_holds_the_actions_of_each_running_episode(monkeypatch: pytest.MonkeyPatch, steps: int) -> None:
    monkeypatch.setattr(history, "BLOCK_BYTES", 0)  # blocks of 16 steps
    kept, expected = filled(steps, [3, 40, 16, 1000])
    assert [as_list(kept.episode(i)) for i in range(4)] == expected
    again = ActionHistory(4, 2)
    again.load_state_dict(kept.state_dict())
    assert [as_list(again.episode(i)) for i in range(4)] == expected


def as_list(actions: NDArray[np.float32] | None) -> list[list[float]]:
    assert actions is not None
    rows: list[list[float]] = actions.tolist()
    return rows


def test_one_long_episode_does_not_keep_the_actions_of_the_others() -> None:
    kept, expected = filled(5000, [10] * 63 + [10**6])
    assert len(kept.state_dict()["actions"]) == sum(map(len, expected)) < 5000 + 63 * 10
    held = sum(segment.nbytes for segments in kept._segments for segment in segments)
    assert held <= 4 * 2 * 5000 + 64 * 10 * 4 * 2


def test_an_endless_episode_is_dropped_at_the_limit_and_the_next_one_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history, "BLOCK_BYTES", 0)
    monkeypatch.setattr(history, "MIN_LIMIT", 64)
    monkeypatch.setattr(history, "TOTAL_BYTES", 0)
    kept, _ = filled(100, [10**6, 10])
    assert kept.episode(0) is None
    assert kept.state_dict()["action_counts"] == [-1, 0]
    again = ActionHistory(2, 2)
    again.load_state_dict(kept.state_dict())
    assert again.episode(0) is None
    for held in (kept, again):
        held.add(np.zeros((2, 2), np.float32), [0], [])
        held.add(np.ones((2, 2), np.float32), [], [])
        assert as_list(held.episode(0)) == [[1.0, 1.0]]


@pytest.mark.parametrize(("num_envs", "action_dim"), [(1, 1), (64, 6), (64, 17), (4096, 17)])
def test_the_limit_bounds_what_a_checkpoint_holds(num_envs: int, action_dim: int) -> None:
    kept = ActionHistory(num_envs, action_dim)
    assert 10_000 <= kept.limit <= 1_000_000
    assert kept.limit == 10_000 or 4 * num_envs * action_dim * kept.limit <= 2**26
    assert kept._block.nbytes <= max(2**20, 16 * 4 * num_envs * action_dim)


def test_places_where_a_game_went_on_are_counted_from_the_start_of_the_episode(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history, "BLOCK_BYTES", 0)
    kept = ActionHistory(1, 1)
    for t in range(50):
        kept.add(np.zeros((1, 1), np.float32), [0] if t == 5 else [], [0] if t in (20, 40) else [])
    assert kept.continued(0) == [14, 34]  # the first action of the episode is the one of step 6
    assert len(as_list(kept.episode(0))) == 44
