from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from tests.trainers.ppo.small_run import ROLLOUT, Troublesome, evaluated_steps, resume, train


def test_about_thirty_evaluations_a_run_and_one_at_the_end(tmp_path: Path) -> None:
    train(tmp_path / "run", ROLLOUT * 100, eval_max_steps=1, update_epochs=1)
    steps = evaluated_steps(tmp_path / "run")
    assert steps[0] == 0 and steps[-1] == ROLLOUT * 100
    assert 29 <= len(steps) <= 32
    assert all(step % ROLLOUT == 0 for step in steps)  # looked at when an update has ended
    gaps = {later - earlier for earlier, later in itertools.pairwise(steps)}
    assert gaps <= {3 * ROLLOUT, 4 * ROLLOUT, 2 * ROLLOUT, ROLLOUT}


@pytest.mark.parametrize(
    ("interval", "steps"),
    [
        (1, [0, 16, 32, 48, 64, 80, 96]),  # never more than once an update
        (None, [0, 16, 32, 48, 64, 80, 96]),
        (33, [0, 48, 80, 96]),  # when 33, 66 have been passed, and at the end
        (48, [0, 48, 96]),
        (10_000, [0, 96]),
    ],
)
def test_evaluation_interval(interval: int | None, steps: list[int], tmp_path: Path) -> None:
    train(tmp_path / "run", eval_interval=interval, eval_max_steps=1)
    assert evaluated_steps(tmp_path / "run") == steps


def test_the_schedule_survives_a_resume(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError):
        train(tmp_path / "run", callbacks=Troublesome("on_step", 20), eval_interval=48)
    resume(tmp_path / "run", eval_interval=48)
    assert evaluated_steps(tmp_path / "run") == [0, 48, 96]
