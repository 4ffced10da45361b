from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from minerva.evaluation import Evaluation
from minerva.trainers import run as run_module
from minerva.trainers.ppo.trainer import PPOTrainer
from tests.trainers.ppo.small_run import (
    ROLLOUT,
    TOTAL,
    FakeClock,
    resume,
    same_run,
    scripted_evaluation,
    small_trainer,
    state_of,
    train,
)


def saves(trainer: PPOTrainer, monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int, int]]:
    """Write down every checkpoint: which, at what step, how far into the rollout."""
    written: list[tuple[str, int, int]] = []
    save = trainer.save

    def watch(path: Any, replay: bool = True) -> None:
        written.append((Path(path).name, trainer.env_steps, trainer.collector.rollout.position))
        save(path, replay)

    monkeypatch.setattr(trainer, "save", watch)
    return written


def test_one_checkpoint_before_the_first_step_even_before_evaluating(
    monkeypatch: pytest.MonkeyPatch, whole: Path, tmp_path: Path
) -> None:
    trainer = small_trainer()

    def fail(should_stop: Any) -> Evaluation:
        assert state_of(tmp_path / "run")["env_steps"] == 0
        raise ZeroDivisionError

    monkeypatch.setattr(trainer, "evaluate", fail)
    with pytest.raises(ZeroDivisionError):
        trainer.train(TOTAL, tmp_path / "run")
    trainer.close()
    resume(tmp_path / "run")
    assert same_run(whole, tmp_path / "run")  # the evaluation before the first step is made up for


def test_checkpoint_interval_counts_steps_in_mid_rollout(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    trainer = small_trainer(eval_episodes=0, checkpoint_interval=10)
    written = saves(trainer, monkeypatch)
    trainer.train(ROLLOUT * 3, tmp_path / "run")
    trainer.close()
    assert written == [("ppo_last.pt", step, step % ROLLOUT) for step in (0, 10, 20, 30, 40, 48)]


def test_checkpoint_interval_with_several_environments(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    trainer = small_trainer(eval_episodes=0, checkpoint_interval=10, num_envs=4)
    written = saves(trainer, monkeypatch)
    trainer.train(ROLLOUT * 4, tmp_path / "run")
    trainer.close()
    assert [step for _, step, _ in written] == [0, 12, 20, 32, 40, 52, 60, 64]


@pytest.mark.parametrize(("minutes", "steps"), [(1.0, [0, 7, 14, 16]), (0.5, [0, 4, 8, 12, 16, 16]), (0.0, [0, 16])])
def test_checkpoint_minutes(minutes: float, steps: list[int], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    trainer = small_trainer(eval_episodes=0, checkpoint_minutes=minutes)
    monkeypatch.setattr(run_module, "time", FakeClock(trainer))
    written = saves(trainer, monkeypatch)
    trainer.train(ROLLOUT, tmp_path / "run")
    trainer.close()
    assert [step for _, step, _ in written] == steps


def test_the_best_checkpoint_is_that_of_the_highest_mean_return(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    trainer = small_trainer(eval_interval=1)
    monkeypatch.setattr(trainer, "evaluate", scripted_evaluation([-9.0, -5.0, -7.0, -5.0, -1.0, -1.5, -3.0]))
    written = saves(trainer, monkeypatch)
    trainer.train(TOTAL, tmp_path / "run")
    trainer.close()
    best = [step // ROLLOUT for name, step, _ in written if name == "ppo_best.pt"]
    assert best == [0, 1, 4]  # an equal one is not better
    # The best goes first: a kill between the two must not leave a `last` that knows of a best that was never written.
    names = [name for name, step, _ in written if step == 4 * ROLLOUT]
    assert names == ["ppo_best.pt", "ppo_last.pt"]
    state = state_of(tmp_path / "run", "best")
    assert (state["env_steps"], state["best_return"]) == (4 * ROLLOUT, -1.0)
    assert (state_of(tmp_path / "run")["env_steps"], state_of(tmp_path / "run")["best_return"]) == (TOTAL, -1.0)


def test_the_best_so_far_survives_a_resume(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    trainer = small_trainer(eval_interval=1)
    monkeypatch.setattr(trainer, "evaluate", scripted_evaluation([-9.0, -2.0, -3.0]))
    trainer.train(ROLLOUT * 2, tmp_path / "run")
    trainer.close()
    again = small_trainer(eval_interval=1)
    again.load(tmp_path / "run")
    monkeypatch.setattr(again, "evaluate", scripted_evaluation([-2.5, -4.0]))
    again.train(ROLLOUT * 4)
    again.close()
    assert state_of(tmp_path / "run", "best")["env_steps"] == ROLLOUT


def test_a_full_disk_stops_the_run_and_keeps_the_last_checkpoint(
    monkeypatch: pytest.MonkeyPatch, whole: Path, tmp_path: Path
) -> None:
    plain, calls = torch.save, 0

    def full(what: Any, file: Any) -> None:
        nonlocal calls
        calls += 1
        if calls > 4:
            file.write(b"half of it")
            raise OSError(28, "No space left on device")
        plain(what, file)

    with monkeypatch.context() as patch:
        patch.setattr(torch, "save", full)
        with pytest.raises(OSError, match=r"ppo_last.pt could not be written"):
            train(tmp_path / "run", checkpoint_interval=10)
    assert not list((tmp_path / "run").glob("*.part"))
    assert state_of(tmp_path / "run")["env_steps"] > 0
    resume(tmp_path / "run")
    assert same_run(whole, tmp_path / "run")
