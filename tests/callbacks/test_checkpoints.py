from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from minerva import checkpointing
from minerva.callbacks import CheckpointCallback
from minerva.trainers.mpo.trainer import MPOTrainer
from tests.trainers.ppo.small_run import ROLLOUT, metrics_of, same, same_run, small_trainer, state_of

TOTAL = 5 * ROLLOUT


def train(folder: Path, callbacks: Any, **fields: Any) -> None:
    trainer = small_trainer(**fields)
    try:
        trainer.train(TOTAL, folder, callbacks)
    finally:
        trainer.close()


def small_mpo() -> MPOTrainer:
    return MPOTrainer(
        "Pendulum-v1", 1, "cpu", policy_layer_sizes=(8, 8), critic_layer_sizes=(8, 8), replay_size=100, update_after=20,
        batch_size=8, action_samples=4, eval_episodes=0, console=False, compile=False,
    )  # fmt: skip


def steps_in(folder: Path) -> list[int]:
    return sorted(int(path.stem.removeprefix("ppo_step")) for path in folder.glob("ppo_step*.pt"))


def test_each_checkpoint_resumes_exactly_and_training_is_unchanged(tmp_path: Path) -> None:
    train(tmp_path / "whole", None)
    train(tmp_path / "run", CheckpointCallback(25))
    assert same_run(tmp_path / "run", tmp_path / "whole")
    assert steps_in(tmp_path / "run") == [25, 50, 75]
    # In the middle of rollouts, after 4, 3 and 1 of 5 updates. Latest first: resuming rewrites the log from there.
    for step in (75, 50, 25):
        file = tmp_path / "run" / f"ppo_step{step}.pt"
        assert checkpointing.read(file)["run"]["env_steps"] == step
        trainer = small_trainer()
        trainer.load(file)
        trainer.train(TOTAL)
        trainer.close()
        assert same_run(tmp_path / "run", tmp_path / "whole")


@pytest.mark.parametrize(("keep", "left"), [(None, [10, 20, 30, 40, 50, 60, 70, 80]), (3, [60, 70, 80]), (1, [80])])
def test_how_many_are_kept(keep: int | None, left: list[int], tmp_path: Path) -> None:
    train(tmp_path / "run", CheckpointCallback(10, keep))
    assert steps_in(tmp_path / "run") == left
    assert {"ppo_last.pt", "ppo_best.pt"} <= {path.name for path in (tmp_path / "run").iterdir()}


def test_a_resumed_run_counts_earlier_checkpoints_and_keeps_other_files(tmp_path: Path) -> None:
    train(tmp_path / "run", [CheckpointCallback(10, keep=2), lambda trainer: trainer.env_steps < 35])
    assert steps_in(tmp_path / "run") == [20, 30]
    for name in ("ppo_step5.pt.part", "ppo_step.pt", "ppo_stepx5.pt", "mpo_step5.pt", "ppo_step999.pt"):
        (tmp_path / "run" / name).write_text("mine")
    trainer = small_trainer()
    trainer.load(tmp_path / "run")
    trainer.train(50, callbacks=CheckpointCallback(10, keep=2))
    trainer.close()
    names = {path.name for path in (tmp_path / "run").glob("*step*")}
    assert names == {
        "ppo_step30.pt", "ppo_step40.pt",
        "ppo_step5.pt.part", "ppo_step.pt", "ppo_stepx5.pt", "mpo_step5.pt", "ppo_step999.pt",
    }  # fmt: skip


@pytest.mark.parametrize("replay", [True, False])
def test_a_replay_is_kept_and_deleted_with_its_checkpoint(replay: bool, tmp_path: Path) -> None:
    trainer = small_mpo()
    trainer.train(60, out_dir=tmp_path / "run", callbacks=CheckpointCallback(20, keep=2, replay=replay))
    trainer.close()
    folders = sorted(path.name for path in (tmp_path / "run").glob("mpo_step*.replay"))
    assert folders == (["mpo_step40.replay", "mpo_step60.replay"] if replay else [])
    assert sorted(path.name for path in (tmp_path / "run").glob("mpo_step*.pt")) == ["mpo_step40.pt", "mpo_step60.pt"]
    again = small_mpo()
    again.load(tmp_path / "run" / "mpo_step40.pt")
    assert any("holds no replay" in note for note in again.notes) is not replay
    again.close()


def test_a_checkpoint_includes_what_was_logged_before_it(tmp_path: Path) -> None:
    def log(trainer: Any) -> None:
        trainer.log("mine/steps", trainer.env_steps)

    train(tmp_path / "whole", [log, CheckpointCallback(25)])
    trainer = small_trainer()
    trainer.load(tmp_path / "whole" / "ppo_step50.pt")
    before, state = metrics_of(tmp_path / "whole"), state_of(tmp_path / "whole")
    trainer.train(TOTAL, callbacks=log)
    trainer.close()
    assert metrics_of(tmp_path / "whole") == before and same(state_of(tmp_path / "whole"), state)


@pytest.mark.parametrize(
    "fields", [{"every": 0}, {"every": "10"}, {"every": 10, "keep": 0}, {"every": 10, "keep": 1.5}]
)
def test_bad_arguments(fields: dict[str, Any]) -> None:
    name = "keep" if "keep" in fields else "every"
    with pytest.raises(ValueError, match=f"{name}: must be a positive integer, got {fields[name]!r}"):
        CheckpointCallback(**fields)
