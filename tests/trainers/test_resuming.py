"""Start a run, or resume whichever run the folder holds."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import minerva
from minerva import checkpointing
from minerva.cli import main
from minerva.trainers.result import TrainingResult
from tests.trainers.ppo.small_run import ROLLOUT, TOTAL, interrupt_at, same_run, snapshot, state_of

SETTINGS: dict[str, Any] = {
    "policy_layer_sizes": (8,), "critic_layer_sizes": (8,), "rollout_steps": ROLLOUT, "minibatch_size": 8,
    "eval_episodes": 1, "eval_max_steps": 5, "console": False, "compile": False,
}  # fmt: skip
WORDS = [
    "--policy-layer-sizes", "8", "--critic-layer-sizes", "8", "--rollout-steps", str(ROLLOUT), "--minibatch-size", "8",
    "--eval-episodes", "1", "--eval-max-steps", "5", "--no-console", "--compile", "False", "--device", "cpu",
]  # fmt: skip


def start(folder: Path, total_steps: int = TOTAL, callbacks: Any = None, **changed: Any) -> TrainingResult:
    arguments = {"algo": "ppo", "env_id": "Pendulum-v1", "seed": 1, **SETTINGS, **changed}
    return minerva.train(
        total_steps=total_steps, device="cpu", out_dir=folder, preset="none", callbacks=callbacks,
        resume_or_start=True, **arguments,
    )  # fmt: skip


def command(folder: Path, *words: str, seed: int = 1) -> int:
    first = ["train", "ppo", "--env", "Pendulum-v1", "--seed", str(seed), "--preset", "none", "--resume-or-start"]
    return main([*first, "--out-dir", str(folder), *WORDS, *words])


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("resuming") / "run"
    assert start(folder).env_steps == TOTAL
    return folder


def test_the_same_call_starts_resumes_and_returns_what_is_finished(finished: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    folder.mkdir()  # empty
    for step in (21, 50):
        with pytest.raises(SystemExit):
            start(folder, callbacks=interrupt_at(step))
        assert state_of(folder)["env_steps"] == step
    start(folder)
    assert same_run(finished, folder)
    before = snapshot(folder)
    result = start(folder)
    assert (result.env_steps, result.updates, result.last_evaluation) == (TOTAL, TOTAL // ROLLOUT, None)
    assert snapshot(folder) == before  # it was not even opened


def test_the_command_does_the_same(finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "run"
    with pytest.raises(SystemExit):
        start(folder, callbacks=interrupt_at(21))
    assert command(folder, "--total-steps", str(TOTAL)) == 0
    assert same_run(finished, folder)
    capsys.readouterr()
    assert command(folder, "--total-steps", str(TOTAL)) == 0
    assert capsys.readouterr().out == f"Run        {folder} is finished: it has taken all its {TOTAL} steps.\n"
    assert command(folder, "--total-steps", str(2 * TOTAL), "--checkpoint-interval", "7") == 0
    assert state_of(folder)["env_steps"] == 2 * TOTAL


@pytest.mark.parametrize(
    ("change", "difference"),
    [
        ({"seed": 2}, "seed = 1, got 2"),
        ({"env_id": "MountainCarContinuous-v0"}, "env = 'Pendulum-v1', got 'MountainCarContinuous-v0'"),
        ({"gamma": 0.5}, "gamma = 0.99, got 0.5"),
        ({"env_kwargs": {"g": 2.0}}, "env_kwargs = {}, got {'g': 2.0}"),
        ({"policy_layer_sizes": (8, 8)}, "policy_layer_sizes = [8], got [8, 8]"),
    ],
)
def test_another_run_in_the_folder_is_refused(finished: Path, change: dict[str, Any], difference: str) -> None:
    before = snapshot(finished)
    with pytest.raises(ValueError, match=r"^out_dir: ") as refused:
        start(finished, **change)
    assert f"holds a run with {difference}; give the same, or choose another folder." in str(refused.value)
    assert snapshot(finished) == before


def test_the_command_refuses_another_run_with_exit_code_2(finished: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command(finished, "--total-steps", str(TOTAL), seed=7) == 2
    assert capsys.readouterr().err.endswith("with seed = 1, got 7; give the same, or choose another folder.\n")
    assert command(finished, "--total-steps", str(TOTAL - ROLLOUT)) == 2
    assert f"total_steps: must be at least {TOTAL}" in capsys.readouterr().err
    assert main(["train", "mpo", "--env", "Pendulum-v1", "--out-dir", str(finished), "--resume-or-start"]) == 2
    assert "holds a run with algorithm = 'ppo', got 'mpo'" in capsys.readouterr().err
    assert main(["train", "ppo", "--env", "Pendulum-v1", "--resume-or-start"]) == 2
    assert capsys.readouterr().err.startswith("minerva: --resume-or-start: needs --out-dir")
    with pytest.raises(ValueError, match=r"^resume_or_start: needs out_dir"):
        minerva.train("ppo", "Pendulum-v1", resume_or_start=True)


def test_settings_that_change_no_result_may_differ(finished: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    with pytest.raises(SystemExit):
        start(folder, callbacks=interrupt_at(21))
    start(folder, vectorization="subprocess", num_workers=1, checkpoint_minutes=1.0, tensorboard=True)
    assert same_run(finished, folder)


def without_checkpoint(folder: Path) -> None:
    (folder / "ppo_last.pt").unlink()
    (folder / "ppo_best.pt").unlink()


def with_damaged_last(folder: Path) -> None:
    (folder / "ppo_last.pt").write_bytes(b"half")


@pytest.mark.parametrize(
    ("harm", "result"), [(without_checkpoint, checkpointing.CheckpointError), (with_damaged_last, None)]
)
def test_a_folder_that_lost_checkpoints(
    finished: Path, tmp_path: Path, harm: Callable[[Path], None], result: type[Exception] | None
) -> None:
    folder = tmp_path / "run"
    shutil.copytree(finished, folder)
    harm(folder)
    if result is not None:
        with pytest.raises(result, match="holds no checkpoint"):
            start(folder)
        return
    with pytest.warns(RuntimeWarning, match=r"ppo_last\.pt is damaged"):
        start(folder)  # from the best one
    assert state_of(folder)["env_steps"] == TOTAL
