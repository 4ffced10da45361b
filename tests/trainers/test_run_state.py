from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from minerva import checkpointing
from minerva.trainers.run import RunState
from minerva.trainers.trainer import Trainer
from tests.trainers.mpo import small_run as small_mpo
from tests.trainers.ppo.small_run import ROLLOUT, logged, small_trainer, stop_at, train


def test_the_plain_form_goes_back_without_the_folder() -> None:
    state = RunState(True, 96, 6, 112, 96, -3.5, 1234, 160, Path("somewhere"))
    plain = state.to_plain()
    assert "out_dir" not in plain and all(isinstance(value, (bool, int, float)) for value in plain.values())
    assert RunState(**plain, out_dir=Path("somewhere")) == state
    assert RunState(**RunState().to_plain()) == RunState()


def test_it_is_saved_beside_the_trainers_state_and_restored(tmp_path: Path) -> None:
    trainer = train(tmp_path / "run", 6 * ROLLOUT, stop_at(2 * ROLLOUT + 5))
    state = trainer.run_state
    assert (state.started, state.env_steps, state.updates, state.total_steps) == (True, 37, 2, 96)
    # The last evaluation is the one at the end, which a callback asked for: the schedule does not know it.
    assert (state.evaluated_at, state.next_evaluation, state.out_dir) == (37, 33, tmp_path / "run")
    assert state.best_return == max(value for _, value in logged(tmp_path / "run", "eval/return_mean"))
    assert state.log_position == (tmp_path / "run" / "metrics.csv").stat().st_size
    checkpoint = checkpointing.read(tmp_path / "run" / "ppo_last.pt")
    assert checkpoint["run"] == state.to_plain()
    assert not checkpoint["run"].keys() & checkpoint["state"].keys()
    again = small_trainer()
    assert again.run_state == RunState()
    again.load(tmp_path / "run")
    again.close()
    assert again.run_state == state


@pytest.mark.parametrize("make", [small_trainer, small_mpo.small_trainer])
def test_a_trainer_shows_how_far_the_run_has_come(make: Any, tmp_path: Path) -> None:
    trainer: Trainer = make()
    assert (trainer.env_steps, trainer.updates, trainer.out_dir, trainer.total_steps) == (0, 0, None, None)
    trainer.train(48, out_dir=tmp_path / "run")
    trainer.close()
    state = trainer.run_state
    assert trainer.env_steps == state.env_steps == 48 and trainer.updates == state.updates > 0
    assert trainer.out_dir == tmp_path / "run" and trainer.total_steps == 48
    assert trainer.best_return == state.best_return > -float("inf")
    for name in ("env_steps", "updates", "best_return", "out_dir", "total_steps"):
        with pytest.raises(AttributeError):
            setattr(trainer, name, 1)


def test_a_checkpoint_that_was_moved_names_its_new_folder(tmp_path: Path) -> None:
    train(tmp_path / "run", ROLLOUT)
    (tmp_path / "run").rename(tmp_path / "moved")
    trainer = small_trainer()
    trainer.load(tmp_path / "moved")
    assert trainer.out_dir == tmp_path / "moved"
    trainer.train(2 * ROLLOUT)
    trainer.close()
    assert trainer.env_steps == 2 * ROLLOUT and not (tmp_path / "run").exists()
