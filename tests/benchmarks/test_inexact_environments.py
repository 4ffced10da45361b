from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest
import torch

from benchmarks.inexact_environments import (
    FIELDS,
    KINDS,
    is_bounded,
    joined_in_replay,
    joined_in_rollout,
    stop_and_resume,
)
from minerva.storage.replay import ReplayBuffer
from minerva.storage.rollout import RolloutBuffer


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("algo", FIELDS)
def test_no_transition_joins_two_episodes_after_a_resume(kind: str, algo: str, tmp_path: Path) -> None:
    # benchmarks/inexact_environments.py stops twenty times.
    result = stop_and_resume(kind, algo, stops=3, steps=390, folder=tmp_path)
    assert result["rows"] > 300
    assert is_bounded(result)
    assert result["joined"] == 0
    assert result["fresh"] > 0, "every environment came back, so nothing was tried"
    assert result["most_actions_kept"] <= 3 * 120


def test_no_transition_joins_two_episodes_where_workers_step(tmp_path: Path) -> None:
    result = stop_and_resume("not deterministic", "mpo", 1, 390, tmp_path, vectorization="subprocess")
    assert (result["joined"], result["fresh"] > 0) == (0, True)


def test_the_check_of_a_rollout_sees_what_joins_two_episodes() -> None:
    rollout = RolloutBuffer(4, 1, 2, 1, torch.device("cpu"), 0, torch.float32)
    rollout.begin(torch.tensor([[5.0, 0.0]]))
    zero = np.zeros(1)
    for step, restarts in ((1, 0), (2, 0), (0, 1)):  # the third step restarts although nothing ended
        rollout.add(zero[:, None], np.array([[5.0, step]]), zero, zero, zero, np.array([restarts]))
    assert joined_in_rollout(rollout) == (2, 1)
    rollout.truncated[1] = 1
    assert joined_in_rollout(rollout) == (2, 0)
    rollout.restarting[2] = 0
    assert joined_in_rollout(rollout) == (3, 1)


def test_the_check_of_a_replay_buffer_sees_what_joins_two_episodes() -> None:
    no, zero = np.zeros(1, np.bool_), np.zeros((1, 1))
    for jumps, windows in itertools.product((False, True), repeat=2):
        replay = ReplayBuffer(10, 1, 2, 1, log_probs=windows)
        log_probs = [0.0] if windows else None
        replay.begin([[5.0, 0.0]])
        replay.add(zero, [[5.0, 1.0]], [0.0], no, no, no, log_probs)
        replay.add(zero, [[6.0 if jumps else 5.0, 2.0]], [0.0], no, no, no, log_probs)
        assert (joined_in_replay(replay)[1] > 0) == jumps
