from __future__ import annotations

from pathlib import Path

import pytest

import minerva
from minerva.trainers.result import TrainingResult


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> TrainingResult:
    folder = tmp_path_factory.mktemp("result") / "run"
    return minerva.train(
        "ppo", "Pendulum-v1", 128, 3, out_dir=folder, preset="none", rollout_steps=64, minibatch_size=32,
        eval_episodes=2, console=False,
    )  # fmt: skip


def test_it_says_what_it_is(result: TrainingResult) -> None:
    assert result.first_evaluation is not None and result.last_evaluation is not None
    before, after = (f"{found.returns.mean():,.1f}" for found in (result.first_evaluation, result.last_evaluation))
    head = "TrainingResult(ppo on Pendulum-v1, seed 3: 128 steps, 2 updates, 0:"
    assert repr(result).startswith(head) and repr(result).endswith(f", return {before} → {after}; {result.out_dir})")


def test_a_run_that_was_not_evaluated_or_was_stopped_says_so(tmp_path: Path) -> None:
    result = minerva.train(
        "ppo", "Pendulum-v1", 128, out_dir=tmp_path / "run", preset="none", rollout_steps=64, minibatch_size=32,
        eval_episodes=0, console=False, callbacks=lambda trainer: trainer.env_steps < 64,
    )  # fmt: skip
    assert "return" not in repr(result) and "stopped by a callback; " in repr(result)
    assert [line.split()[0] for line in result.summary().splitlines()] == ["Speed", "Run", "Checkpoint"]
    assert "0% of it evaluation" in result.summary()


def test_the_summary_holds_what_the_files_hold(result: TrainingResult) -> None:
    names = [line.split()[0] for line in result.summary().splitlines()]
    assert names == ["Before", "After", "Speed", "Run", "Checkpoint"]
    lines = dict(line.split(maxsplit=1) for line in result.summary().splitlines())
    assert Path(lines["Run"]) == result.out_dir and Path(lines["Checkpoint"]).exists()
    assert 0 < result.evaluation_seconds < result.seconds
    assert f"{result.evaluation_seconds / result.seconds:.0%} of it evaluation" in lines["Speed"]


def test_it_plots_its_curve_where_it_is_asked_to(result: TrainingResult, tmp_path: Path) -> None:
    assert result.plot() == result.out_dir / "learning_curve.png" and (result.out_dir / "learning_curve.png").exists()
    assert result.plot(tmp_path / "loss.svg", "losses/value_loss") == tmp_path / "loss.svg"
    assert "losses/value_loss" in (tmp_path / "loss.svg").read_text()
    with pytest.raises(ValueError, match="has no value of 'loss'; its metrics are: charts/SPS"):
        result.plot(metric="loss")


@pytest.mark.parametrize("console", [True, False])
def test_train_prints_where_the_run_is(console: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    minerva.train(
        "ppo", "Pendulum-v1", 64, out_dir=tmp_path / "run", preset="none", rollout_steps=64, minibatch_size=32,
        eval_episodes=0, console=console,
    )  # fmt: skip
    said = capsys.readouterr().out
    assert (f"Run        {tmp_path / 'run'}\n" in said) == console and bool(said) == console


def test_a_loaded_policy_says_what_it_is(result: TrainingResult) -> None:
    path = result.out_dir / "ppo_last.pt"
    shown = f"Policy(ppo on Pendulum-v1 after 128 steps, seed 3: Box(3,) -> Box(1,); {path})"
    assert repr(minerva.load(result.out_dir)) == shown
