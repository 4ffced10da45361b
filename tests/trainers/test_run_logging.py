from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from minerva.callbacks import Callback, EvaluationCallback
from minerva.trainers import run as run_module
from minerva.trainers import run_clock
from minerva.trainers.ppo.trainer import PPOTrainer
from tests.trainers.ppo.small_run import (
    ROLLOUT,
    FakeClock,
    Troublesome,
    clocked,
    logged,
    metrics_of,
    resume,
    same,
    same_run,
    small_trainer,
    state_of,
    train,
)

# What callbacks log


def events_of(folder: Path) -> Any:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder / "tensorboard"), size_guidance={"images": 0, "histograms": 0, "scalars": 0})
    events.Reload()
    return events


def scalars_of(folder: Path, name: str) -> list[tuple[int, float]]:
    return [(event.step, event.value) for event in events_of(folder).Scalars(name)]


def test_a_callback_logs_numbers_of_its_own_wherever_the_run_logs(tmp_path: Path) -> None:
    class Logging(Callback):
        def on_training_start(self, trainer: Any) -> None:
            trainer.log("mine/start", 1)

        def on_step(self, trainer: Any) -> None:
            if trainer.env_steps % 10 == 0:
                trainer.log("mine/tenth", np.float32(trainer.env_steps / 10))

        def on_rollout_end(self, trainer: Any) -> None:
            trainer.log("mine/std", trainer.agent.actor_logstd.exp().mean())  # a tensor that has a gradient

        def on_training_end(self, trainer: Any) -> None:
            trainer.log("mine/end", float("nan"))

    trainer = small_trainer(tensorboard=True)
    trainer.train(2 * ROLLOUT, tmp_path / "run", Logging())
    trainer.close()
    tenths = [(10, 1.0), (20, 2.0), (30, 3.0)]
    assert logged(tmp_path / "run", "mine/tenth") == scalars_of(tmp_path / "run", "mine/tenth") == tenths
    assert logged(tmp_path / "run", "mine/start") == scalars_of(tmp_path / "run", "mine/start") == [(0, 1.0)]
    assert [step for step, _ in logged(tmp_path / "run", "mine/std")] == [ROLLOUT, 2 * ROLLOUT]
    assert logged(tmp_path / "run", "mine/std")[0][1] == 1.0
    ((step, value),) = logged(tmp_path / "run", "mine/end")
    assert step == 2 * ROLLOUT and value != value


def test_a_callback_that_logs_does_not_touch_the_run_and_goes_on_exactly(whole: Path, tmp_path: Path) -> None:
    def log(trainer: Any) -> None:
        trainer.log("mine/steps", trainer.env_steps)

    train(tmp_path / "one", callbacks=log)
    assert same(state_of(tmp_path / "one"), state_of(whole))
    assert [row for row in metrics_of(tmp_path / "one") if row[1] != "mine/steps"] == metrics_of(whole)
    with pytest.raises(ZeroDivisionError):
        train(tmp_path / "two", callbacks=[log, Troublesome("on_step", 21)])
    resume(tmp_path / "two", callbacks=log)
    assert same_run(tmp_path / "one", tmp_path / "two")


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("eval/return_mean", 1.0, "the groups charts, eval, losses, time, train are reserved, got 'eval/return_mean'"),
        ("a b", 1.0, "name: must consist of letters, digits, .* got 'a b'"),
        ("mine", "3", "mine: must be one number, got '3'"),
        ("mine", None, "mine: must be one number, got None"),
        ("mine", torch.zeros(2), r"mine: must be one number, got tensor\(\[0\., 0\.\]\)"),
    ],
)
def test_what_a_callback_may_not_log(name: str, value: Any, message: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=message):
        train(tmp_path / "run", ROLLOUT, lambda trainer: trainer.log(name, value))
    assert all(row[0] == 0 for row in metrics_of(tmp_path / "run"))  # the run's evaluation before the first step


@pytest.mark.parametrize("ending", ["done", "error"])
def test_a_trainer_logs_in_a_run_alone(ending: str, tmp_path: Path) -> None:
    trainer = small_trainer(eval_episodes=0)

    def fail(trainer: Any) -> None:
        trainer.log("mine", 1.0)
        if ending == "error":
            raise ZeroDivisionError

    if ending == "error":
        with pytest.raises(ZeroDivisionError):
            trainer.train(ROLLOUT, tmp_path / "run", fail)
    else:
        trainer.train(ROLLOUT, tmp_path / "run", fail)
    trainer.close()
    with pytest.raises(RuntimeError, match=r"^trainer.log: works within a call of `train`, from a callback; no run is"):
        trainer.log("mine", 1.0)
    assert len(logged(tmp_path / "run", "mine")) == (1 if ending == "error" else ROLLOUT)


# The pace, and the end


def test_the_pace_is_that_of_the_whole_run_and_goes_on_over_calls_and_resumes(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    trainer = small_trainer(eval_episodes=0)
    monkeypatch.setattr(run_clock, "time", FakeClock(trainer))  # ten seconds per step
    trainer.train(ROLLOUT * 2, tmp_path / "run")
    trainer.train(ROLLOUT * 4)
    trainer.close()
    resumed = small_trainer(eval_episodes=0)
    resumed.load(tmp_path / "run")
    monkeypatch.setattr(run_clock, "time", FakeClock(resumed, seconds=40.0))  # this machine is slower
    resumed.train(ROLLOUT * 8)
    resumed.close()
    seconds = [160.0, 320.0, 480.0, 640.0, 1280.0, 1920.0, 2560.0, 3200.0]
    steps = [ROLLOUT * (k + 1) for k in range(8)]
    assert clocked(tmp_path / "run", "time/seconds") == list(zip(steps, seconds, strict=True))
    paces = [step / taken for step, taken in zip(steps, seconds, strict=True)]
    for name in ("charts/SPS", "charts/SPS_training"):
        assert [pace for _, pace in clocked(tmp_path / "run", name)] == pytest.approx(paces)
    assert resumed.run_state.seconds == 3200.0 and resumed.run_state.evaluation_seconds == 0.0


class _Slow:
    """Runs episodes that take ten seconds of the fake clock each time, and nothing of the real one's."""

    def __init__(self, trainer: PPOTrainer, clock: FakeClock) -> None:
        self.run, self.clock = trainer.evaluator.run, clock

    def __call__(self, *arguments: Any) -> Any:
        self.clock.waited += 10.0
        return self.run(*arguments)


def test_evaluations_count_and_are_left_out_of_the_pace_of_training_alone(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trainer = small_trainer(eval_interval=ROLLOUT, console=True)
    clock = FakeClock(trainer, seconds=0.5)
    monkeypatch.setattr(run_clock, "time", clock)
    monkeypatch.setattr(trainer.evaluator, "run", _Slow(trainer, clock))
    result = trainer.train(ROLLOUT * 2, tmp_path / "run", EvaluationCallback(ROLLOUT))  # which evaluates twice more
    trainer.close()
    # 32 steps of half a second, the first evaluation, two of the schedule and two of the callback.
    assert clocked(tmp_path / "run", "time/seconds")[-1] == (32, 66.0)
    assert clocked(tmp_path / "run")[-1][1] == pytest.approx(32 / 66)
    assert clocked(tmp_path / "run", "charts/SPS_training")[-1][1] == pytest.approx(2.0)
    (step, pace), *_ = clocked(tmp_path / "run")  # after an update, before its evaluation
    assert step == 16 and pace == pytest.approx(16 / 28)
    assert trainer.run_state.evaluation_seconds == 50.0 and result.seconds == 66.0
    assert "0 steps/s (76% evaluating)  done in" in capsys.readouterr().out.splitlines()[-1]


def test_an_evaluation_before_the_first_step_has_no_pace(tmp_path: Path) -> None:
    train(tmp_path / "run", ROLLOUT)
    assert [step for step, _ in clocked(tmp_path / "run", "time/seconds")] == [0, ROLLOUT, ROLLOUT]
    assert [step for step, _ in clocked(tmp_path / "run")] == [ROLLOUT, ROLLOUT]


def test_a_run_that_took_its_whole_rollouts_is_done(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    train(tmp_path / "run", 2 * ROLLOUT + 3, console=True)
    last = capsys.readouterr().out.splitlines()[-1]
    assert "done in" in last and "100.0%" in last


# TensorBoard in full


class Drawing(Callback):
    """Reaches into the run as an algorithm does, which is given it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.runs: list[run_module.Run] = []
        enter = run_module.Run.__enter__

        def watch(run: run_module.Run) -> run_module.Run:
            self.runs.append(run)
            return enter(run)

        monkeypatch.setattr(run_module.Run, "__enter__", watch)

    def on_rollout_end(self, trainer: Any) -> None:
        run = self.runs[-1]
        run.histograms({f"drawn/{name}": weights for name, weights in trainer.agent.named_parameters()})
        run.histograms({"drawn/rewards": np.arange(6.0).reshape(2, 3)})
        run.images({"drawn/observation": np.full((4, 6, 1), trainer.env_steps, dtype=np.uint8)})


def test_arrays_are_written_where_they_are_asked_for(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    drawing = Drawing(monkeypatch)
    with pytest.raises(ZeroDivisionError):
        train(tmp_path / "run", 3 * ROLLOUT, [drawing, Troublesome("on_step", 40)], tensorboard=True,
              full_tensorboard_log=True)  # fmt: skip
    trainer = resume(tmp_path / "run", 3 * ROLLOUT, drawing, tensorboard=True, full_tensorboard_log=True)
    assert drawing.runs[0].takes_arrays
    events, steps = events_of(tmp_path / "run"), [ROLLOUT, 2 * ROLLOUT, 3 * ROLLOUT]
    names = {f"drawn/{name}" for name, _ in trainer.agent.named_parameters()}
    drawn = {name for name in events.Tags()["histograms"] if name.startswith("drawn/")}  # the algorithm draws others
    assert drawn == {*names, "drawn/rewards"} and len(names) >= 9
    for name in names:
        assert [event.step for event in events.Histograms(name)] == steps
    rewards = events.Histograms("drawn/rewards")[-1].histogram_value
    assert (rewards.num, rewards.min, rewards.max, rewards.sum) == (6, 0.0, 5.0, 15.0)
    assert [(image.step, image.height, image.width) for image in events.Images("drawn/observation")] == [
        (step, 4, 6) for step in steps
    ]
    assert {"losses/value_loss", "charts/SPS"} <= set(events.Tags()["scalars"])


def test_arrays_are_not_written_where_nobody_asked(
    monkeypatch: pytest.MonkeyPatch, whole: Path, tmp_path: Path
) -> None:
    train(tmp_path / "scalars", ROLLOUT, Drawing(monkeypatch), tensorboard=True)
    tags = events_of(tmp_path / "scalars").Tags()
    assert tags["histograms"] == tags["images"] == [] and "losses/value_loss" in tags["scalars"]
    drawing = Drawing(monkeypatch)
    train(tmp_path / "none", callbacks=drawing)
    assert same_run(tmp_path / "none", whole) and not (tmp_path / "none" / "tensorboard").exists()
    assert not drawing.runs[-1].takes_arrays
    drawing.runs[-1].images({"x": np.zeros(3)})  # type: ignore[dict-item]  # not even looked at


@pytest.mark.parametrize(
    "wrong", [np.zeros((4, 6, 3)), np.zeros((4, 6), dtype=np.uint8), np.zeros((4, 6, 4), dtype=np.uint8)]
)
def test_what_is_no_image(wrong: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    drawing = Drawing(monkeypatch)

    def draw(trainer: Any) -> None:
        drawing.runs[-1].images({"screen": wrong})

    with pytest.raises(ValueError, match=r"screen: must be an image \[H, W, C\] of uint8 with C 1 or 3, got"):
        train(tmp_path / "run", ROLLOUT, draw, tensorboard=True, full_tensorboard_log=True)


def test_writing_arrays_does_not_touch_the_run(monkeypatch: pytest.MonkeyPatch, whole: Path, tmp_path: Path) -> None:
    train(tmp_path / "run", callbacks=Drawing(monkeypatch), tensorboard=True, full_tensorboard_log=True)
    assert same_run(tmp_path / "run", whole)


def test_a_tensorboard_that_fails_is_dropped_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from torch.utils.tensorboard import SummaryWriter

    def full(*_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(SummaryWriter, "add_histogram", full)
    with pytest.warns(
        RuntimeWarning, match="TensorBoardLogger failed and is disabled for the rest of the run"
    ) as caught:
        train(tmp_path / "run", 2 * ROLLOUT, Drawing(monkeypatch), tensorboard=True, full_tensorboard_log=True)
    assert len(caught) == 1
    assert len(logged(tmp_path / "run", "losses/value_loss")) == 2
