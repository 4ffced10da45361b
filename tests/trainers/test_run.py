from __future__ import annotations

import itertools
import json
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces

from minerva import checkpointing
from minerva.callbacks import Callback
from minerva.checkpointing import CheckpointError
from minerva.evaluation import Evaluation
from minerva.trainers import run as run_module
from minerva.trainers.mpo.trainer import MPOTrainer
from minerva.trainers.ppo import update as update_module
from minerva.trainers.ppo.config import PPOConfig
from minerva.trainers.ppo.trainer import PPOTrainer
from minerva.trainers.ppo.update import MinibatchLosses, minibatch_losses
from minerva.trainers.vmpo.trainer import VMPOTrainer
from minerva.utils.schedules import Schedule
from tests.trainers.ppo.small_run import (
    ROLLOUT,
    logged,
    metrics_of,
    same,
    same_run,
    scripted_evaluation,
    small_trainer,
    snapshot,
    state_of,
)

TOTAL = ROLLOUT * 6


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run in one go, that others are compared with."""
    folder = tmp_path_factory.mktemp("whole") / "run"
    train(folder)
    return folder


def train(folder: Path, total_steps: int = TOTAL, callbacks: Any = None, **fields: Any) -> None:
    trainer = small_trainer(**fields)
    try:
        trainer.train(total_steps, folder, callbacks)
    finally:
        trainer.close()


def resume(folder: Path, total_steps: int = TOTAL, callbacks: Any = None, **fields: Any) -> PPOTrainer:
    trainer = small_trainer(**fields)
    try:
        trainer.load(folder)
        trainer.train(total_steps, callbacks=callbacks)
    finally:
        trainer.close()
    return trainer


def learned(folder: Path) -> dict[str, Any]:
    """The state of a run that had an evaluation of its own, less what that may have raised."""
    state = state_of(folder)
    del state["best_return"]
    return state


def stop_at(step: int) -> Callable[[Any], bool]:
    return lambda trainer: trainer.env_steps < step


def saves(trainer: PPOTrainer, monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int, int]]:
    """Write down every checkpoint: which, at what step, how far into the rollout."""
    written: list[tuple[str, int, int]] = []
    save = trainer.save

    def watch(path: Any, memory: bool = True) -> None:
        written.append((Path(path).name, trainer.env_steps, trainer.collector.rollout.position))
        save(path, memory)

    monkeypatch.setattr(trainer, "save", watch)
    return written


# The same run twice


def test_the_same_seed_gives_the_same_run(whole: Path, tmp_path: Path) -> None:
    train(tmp_path / "run")
    assert same_run(whole, tmp_path / "run")
    assert same(state_of(whole, "best"), state_of(tmp_path / "run", "best"))
    train(tmp_path / "other", seed=2)
    assert not same(state_of(whole)["agent"], state_of(tmp_path / "other")["agent"])


@pytest.mark.parametrize("env_id", ["Pendulum-v1", "HalfCheetah-v5"])
def test_evaluation_does_not_touch_the_run(env_id: str, tmp_path: Path) -> None:
    train(tmp_path / "on", env_id=env_id, eval_interval=1, eval_episodes=2)
    train(tmp_path / "off", env_id=env_id, eval_episodes=0)
    on, off = state_of(tmp_path / "on"), state_of(tmp_path / "off")
    for part in ("agent", "optimizer", "action_noise", "minibatch_order", "collector", "env_steps", "updates"):
        assert same(on[part], off[part]), part
    kept = [row for row in metrics_of(tmp_path / "on") if not row[1].startswith("eval/")]
    assert kept == metrics_of(tmp_path / "off")
    assert len(logged(tmp_path / "on", "eval/return_mean")) == 7  # before the first update and after each of six
    assert not (tmp_path / "off" / "ppo_best.pt").exists()


def test_callbacks_and_checkpoints_do_not_touch_the_run(whole: Path, tmp_path: Path) -> None:
    train(tmp_path / "run", callbacks=lambda trainer: None, checkpoint_interval=1)
    assert same_run(whole, tmp_path / "run")


# What ends a run


@pytest.mark.parametrize("step", [1, ROLLOUT * 2 + 5, ROLLOUT * 3])
def test_a_callback_ends_the_run_in_mid_rollout_and_it_goes_on_exactly(step: int, whole: Path, tmp_path: Path) -> None:
    trainer = small_trainer()
    result = trainer.train(TOTAL, tmp_path / "run", stop_at(step))
    trainer.close()
    assert (result.stopped_by, result.env_steps) == ("callback", step)
    assert state_of(tmp_path / "run")["env_steps"] == step
    resume(tmp_path / "run")
    assert same(learned(tmp_path / "run"), learned(whole))
    rows = metrics_of(tmp_path / "run")
    assert {row for row in rows if row[0] == step and row[1].startswith("eval/")}  # once at the end, wherever that is
    assert set(metrics_of(whole)) <= set(rows)


class Troublesome(Callback):
    def __init__(self, where: str, step: int) -> None:
        self.where, self.step = where, step
        self.ended = False

    def on_step(self, trainer: Any) -> None:
        self.fail("on_step", trainer)

    def on_rollout_start(self, trainer: Any) -> None:
        self.fail("on_rollout_start", trainer)

    def on_rollout_end(self, trainer: Any) -> None:
        self.fail("on_rollout_end", trainer)

    def on_training_end(self, trainer: Any) -> None:
        self.ended = True

    def fail(self, where: str, trainer: Any) -> None:
        if where == self.where and trainer.env_steps >= self.step:
            raise ZeroDivisionError(where)


@pytest.mark.parametrize(
    ("where", "step", "stopped"),
    [("on_step", 21, 21), ("on_rollout_end", 20, 2 * ROLLOUT), ("on_rollout_start", 20, 2 * ROLLOUT)],
)
def test_an_exception_in_a_callback_saves_the_run(
    where: str, step: int, stopped: int, whole: Path, tmp_path: Path
) -> None:
    callback = Troublesome(where, step)
    with pytest.raises(ZeroDivisionError, match=where):
        train(tmp_path / "run", callbacks=callback)
    assert callback.ended
    assert state_of(tmp_path / "run")["env_steps"] == stopped
    resume(tmp_path / "run")
    assert same_run(whole, tmp_path / "run")


@pytest.mark.parametrize("minibatch", [0, 1, 3])
def test_an_exception_in_the_middle_of_an_update_leaves_the_last_checkpoint(
    minibatch: int, monkeypatch: pytest.MonkeyPatch, whole: Path, tmp_path: Path
) -> None:
    calls = 0

    def fail(*args: Any) -> MinibatchLosses:
        nonlocal calls
        calls += 1
        if calls == 3 * 4 + minibatch + 1:  # in the fourth update
            raise MemoryError
        return minibatch_losses(*args)

    with monkeypatch.context() as patch:
        patch.setattr(update_module, "minibatch_losses", fail)
        with pytest.raises(MemoryError):
            train(tmp_path / "run", checkpoint_interval=10)
    assert state_of(tmp_path / "run")["env_steps"] == 60  # of 64
    resume(tmp_path / "run")
    assert same_run(whole, tmp_path / "run")


def test_an_environment_that_fails_is_told_and_the_run_is_saved(tmp_path: Path) -> None:
    import gymnasium

    def fragile() -> Any:
        env = gymnasium.make("Pendulum-v1").unwrapped
        plain, count = env.step, 0

        def step(action: Any) -> Any:
            nonlocal count
            count += 1
            if count == 20:
                raise OSError("the robot fell over")
            return plain(action)

        env.step = step  # type: ignore[method-assign]
        return env

    with pytest.raises(RuntimeError, match=r"environment 0 raised OSError in step: the robot fell over"):
        train(tmp_path / "run", env_id=fragile, eval_episodes=0)
    state = state_of(tmp_path / "run")
    assert (state["env_steps"], state["updates"], state["collector"]["rollout"]["position"]) == (19, 1, 3)


@pytest.mark.parametrize("ending", ["done", "error", "callback"])
def test_signal_handlers_are_put_back(ending: str, tmp_path: Path) -> None:
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    during: list[Any] = []

    def look(trainer: Any) -> bool:
        during.append(signal.getsignal(signal.SIGTERM))
        if ending == "error":
            raise ZeroDivisionError
        return ending != "callback"

    if ending == "error":
        with pytest.raises(ZeroDivisionError):
            train(tmp_path / "run", ROLLOUT, look)
    else:
        train(tmp_path / "run", ROLLOUT, look)
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before
    assert during[0] != before[1]


def test_a_signal_ends_the_run_after_the_step_and_a_second_one_at_once(whole: Path, tmp_path: Path) -> None:
    def signal_at_20(trainer: Any) -> None:
        if trainer.env_steps == 20:
            signal.raise_signal(signal.SIGTERM)

    with pytest.raises(SystemExit) as caught:
        train(tmp_path / "run", callbacks=signal_at_20)
    assert caught.value.code == 128 + signal.SIGTERM
    assert state_of(tmp_path / "run")["env_steps"] == 20
    resume(tmp_path / "run")
    assert same_run(whole, tmp_path / "run")

    trainer = small_trainer(checkpoint_interval=10)
    step = trainer.env.step

    def twice(actions: Any) -> Any:
        if trainer.env_steps == 25:  # the second one comes in the middle of a step: what it leaves is torn
            signal.raise_signal(signal.SIGINT)
            signal.raise_signal(signal.SIGINT)
        return step(actions)

    trainer.env.step = twice  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        trainer.train(TOTAL, tmp_path / "twice")
    trainer.close()
    assert state_of(tmp_path / "twice")["env_steps"] == 20
    resume(tmp_path / "twice")
    assert same_run(whole, tmp_path / "twice")


def test_training_in_another_thread(whole: Path, tmp_path: Path) -> None:
    failures: list[BaseException] = []

    def work() -> None:
        try:
            train(tmp_path / "run")
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join(60)
    assert not thread.is_alive() and failures == []
    assert same_run(whole, tmp_path / "run")


# Going on


def test_total_steps_may_be_raised_and_the_rate_follows_the_longer_line(tmp_path: Path) -> None:
    train(tmp_path / "run", ROLLOUT * 4, policy_lr=0.01)
    resume(tmp_path / "run", ROLLOUT * 8, policy_lr=0.01)
    rates = [rate for _, rate in logged(tmp_path / "run", "charts/learning_rate")]
    assert rates == [0.01 * (1 - u / 4) for u in range(4)] + [0.01 * (1 - u / 8) for u in range(4, 8)]
    assert state_of(tmp_path / "run")["env_steps"] == ROLLOUT * 8
    assert checkpointing.read(tmp_path / "run" / "ppo_last.pt")["total_steps"] == ROLLOUT * 8
    assert json.loads((tmp_path / "run" / "config.json").read_text())["total_steps"] == ROLLOUT * 8


def test_resuming_a_finished_run_changes_nothing(tmp_path: Path) -> None:
    train(tmp_path / "run")
    before = state_of(tmp_path / "run"), metrics_of(tmp_path / "run")
    resume(tmp_path / "run")
    assert same(state_of(tmp_path / "run"), before[0]) and metrics_of(tmp_path / "run") == before[1]


def test_rows_past_the_checkpoint_are_dropped(whole: Path, tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError):
        train(tmp_path / "run", callbacks=Troublesome("on_step", 40))
    with (tmp_path / "run" / "metrics.csv").open("a") as file:
        file.write("48,losses/value_loss,1.0\n48,losses/poli")
    resume(tmp_path / "run")
    assert same_run(whole, tmp_path / "run")


def test_training_goes_on_in_memory(whole: Path, tmp_path: Path) -> None:
    trainer = small_trainer()
    trainer.train(TOTAL, tmp_path / "run", stop_at(20))
    trainer.train(TOTAL)
    trainer.close()
    assert same(learned(tmp_path / "run"), learned(whole))


def test_a_run_may_go_on_in_another_folder(whole: Path, tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError):
        train(tmp_path / "run", callbacks=Troublesome("on_step", 21))
    before = snapshot(tmp_path / "run")
    trainer = small_trainer()
    trainer.load(tmp_path / "run")
    trainer.train(TOTAL, tmp_path / "fork")
    trainer.close()
    assert snapshot(tmp_path / "run") == before
    expected, state = state_of(whole), state_of(tmp_path / "fork")
    # The best of a folder is the best of what is in it.
    assert state.pop("best_return") == max(value for _, value in logged(tmp_path / "fork", "eval/return_mean"))
    del expected["best_return"]
    assert same(expected, state)
    assert (tmp_path / "fork" / "ppo_best.pt").exists()
    assert metrics_of(tmp_path / "fork") == [row for row in metrics_of(whole) if row[0] > 21]


def test_init_from_takes_the_policy_and_starts_anew(whole: Path, tmp_path: Path) -> None:
    trainer = small_trainer(seed=5, num_envs=2)  # of another shape where the policy is not concerned
    trainer.init_from(whole)
    source = state_of(whole)
    assert same(dict(trainer.agent.state_dict()), source["agent"])
    assert (trainer.env_steps, trainer.updates, trainer.optimizer.state_dict()["state"]) == (0, 0, {})
    result = trainer.train(ROLLOUT * 4, tmp_path / "run")
    trainer.close()
    assert (result.env_steps, result.updates) == (ROLLOUT * 4, 2)
    assert result.first_evaluation is not None
    other = small_trainer(critic_layer_sizes=(9,))
    with pytest.raises(CheckpointError, match=r"was made with critic_layer_sizes = \[8\], got \[9\]"):
        other.init_from(whole / "ppo_best.pt")
    other.close()


def test_a_folder_that_holds_a_run_is_refused_and_left_alone(whole: Path) -> None:
    before = snapshot(whole)
    with pytest.raises(ValueError, match=r"out_dir: .* holds a run already. Go on with it"):
        train(whole)
    assert snapshot(whole) == before


def test_a_relative_name_of_the_runs_own_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    train(tmp_path / "run", ROLLOUT)
    monkeypatch.chdir(tmp_path)
    trainer = small_trainer()
    trainer.load(tmp_path / "run")
    trainer.train(ROLLOUT * 2, "run")
    trainer.close()
    assert state_of(tmp_path / "run")["updates"] == 2


@pytest.mark.parametrize("total_steps", [0, -3, 2.5, "many"])
def test_bad_total_steps(total_steps: Any, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="total_steps: must be a whole number from 1 on"):
        train(tmp_path / "run", total_steps)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    with pytest.raises(ValueError, match=r"out_dir: .* cannot be made"):
        train(tmp_path / "file" / "run")
    assert (tmp_path / "file").read_text() == "mine"


# Checkpoints


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


def test_killed_before_the_first_checkpoint_the_folder_can_be_used_again(whole: Path, tmp_path: Path) -> None:
    trainer = small_trainer()

    def die(path: Any, memory: bool = True) -> None:
        raise MemoryError

    trainer.save = die  # type: ignore[method-assign]
    with pytest.raises(MemoryError):
        trainer.train(TOTAL, tmp_path / "run")
    trainer.close()
    assert (tmp_path / "run" / "metrics.csv").exists()
    train(tmp_path / "run")
    assert same_run(whole, tmp_path / "run")


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


class FakeClock:
    """Each environment step takes ten seconds, and nothing else takes any time."""

    def __init__(self, trainer: PPOTrainer) -> None:
        self.trainer = trainer

    def perf_counter(self) -> float:
        return 1000.0 + 10.0 * self.trainer.env_steps


@pytest.mark.parametrize(("minutes", "steps"), [(1.0, [0, 7, 14, 16]), (0.5, [0, 4, 8, 12, 16, 16]), (0.0, [0, 16])])
def test_checkpoint_minutes(minutes: float, steps: list[int], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    trainer = small_trainer(eval_episodes=0, checkpoint_minutes=minutes)
    monkeypatch.setattr(run_module, "time", FakeClock(trainer))
    written = saves(trainer, monkeypatch)
    trainer.train(ROLLOUT, tmp_path / "run")
    trainer.close()
    assert [step for _, step, _ in written] == steps


def test_pace_counts_the_steps_of_this_call_alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    trainer = small_trainer(eval_episodes=0)
    monkeypatch.setattr(run_module, "time", FakeClock(trainer))
    trainer.train(ROLLOUT * 2, tmp_path / "run")
    trainer.train(ROLLOUT * 4)
    trainer.close()
    rows = [line.split(",") for line in (tmp_path / "run" / "metrics.csv").read_text().splitlines()]
    assert [float(value) for _, name, value in rows if name == "charts/SPS"] == [0.1] * 4


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


# Evaluations


def evaluated_steps(folder: Path) -> list[int]:
    return [step for step, _ in logged(folder, "eval/return_mean")]


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


def test_evaluations_time_is_left_out_of_the_pace(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    trainer = small_trainer(eval_interval=1, update_epochs=1)
    evaluate = trainer.evaluate

    def slow(should_stop: Any) -> Evaluation:
        time.sleep(0.6)
        return evaluate()

    monkeypatch.setattr(trainer, "evaluate", slow)
    trainer.train(ROLLOUT * 3, tmp_path / "run")
    trainer.close()
    rows = [line.split(",") for line in (tmp_path / "run" / "metrics.csv").read_text().splitlines()]
    pace = [float(value) for step, name, value in rows if name == "charts/SPS" and step == str(ROLLOUT * 3)]
    assert len(pace) == 1 and pace[0] > ROLLOUT * 3 / 1.0  # three evaluations took 1.8 s


def test_result_of_training(tmp_path: Path) -> None:
    trainer = small_trainer()
    result = trainer.train(TOTAL, tmp_path / "run")
    assert (result.out_dir, result.env_steps, result.updates, result.stopped_by) == (tmp_path / "run", TOTAL, 6, None)
    assert result.first_evaluation is not None and result.last_evaluation is not None
    evaluations = logged(tmp_path / "run", "eval/return_mean")
    assert evaluations[0][1] == result.first_evaluation.returns.mean()
    assert evaluations[-1][1] == result.last_evaluation.returns.mean()
    trainer.close()


# What a run writes


def test_description_of_the_run(tmp_path: Path) -> None:
    train(tmp_path / "run", ROLLOUT, gamma=0.5)
    description = json.loads((tmp_path / "run" / "config.json").read_text())
    assert (description["algorithm"], description["env_id"], description["seed"]) == ("ppo", "Pendulum-v1", 1)
    assert description["config"]["gamma"] == 0.5 and description["total_steps"] == ROLLOUT
    assert description["versions"]["torch"] == torch.__version__
    assert {"git_commit", "command"} <= description.keys()
    assert sorted(path.name for path in (tmp_path / "run").iterdir()) == [
        "config.json", "metrics.csv", "ppo_best.pt", "ppo_last.pt",
    ]  # fmt: skip


def test_default_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    trainer = small_trainer(eval_episodes=0)
    result = trainer.train(ROLLOUT)
    trainer.close()
    assert result.out_dir.parent == Path("runs/ppo/Pendulum-v1") and result.out_dir.name.endswith("-seed1")
    assert (result.out_dir / "ppo_last.pt").exists()


MLP: dict[str, Any] = {"policy_layer_sizes": (4,), "critic_layer_sizes": (4,)}


@pytest.mark.parametrize(
    ("kind", "fields", "expected"),
    [
        (PPOTrainer, {"minibatch_size": 511, "num_envs": 8, "rollout_steps": 128, **MLP}, 1),
        (PPOTrainer, {"minibatch_size": 512, "num_envs": 8, "rollout_steps": 128, **MLP}, 2),
        (PPOTrainer, {"minibatch_size": 512, "num_envs": 8, "rollout_steps": 128, "torch_threads": 1, **MLP}, 1),
        (VMPOTrainer, {"num_envs": 8, "rollout_steps": 63, "m_steps": 1}, 1),
        (VMPOTrainer, {"num_envs": 8, "rollout_steps": 128, "m_steps": 1}, 2),  # rows for four, cores for two
        (VMPOTrainer, {"num_envs": 8, "rollout_steps": 128, "m_steps": 1, "minibatches": 4}, 1),
        (MPOTrainer, {"batch_size": 25, "action_samples": 20, "update_after": 60, **MLP}, 1),
        (MPOTrainer, {"batch_size": 26, "action_samples": 20, "update_after": 60, **MLP}, 2),
        (MPOTrainer, {"batch_size": 4, "action_samples": 2, "update_after": 60, "torch_threads": 2, **MLP}, 2),
    ],
)
def test_torch_has_threads_for_the_rows_of_a_gradient_step_and_its_own_after(
    kind: Any, fields: dict[str, Any], expected: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("minerva.trainers.trainer.usable_cores", lambda: 2)
    before = torch.get_num_threads()
    during: set[int] = set()
    try:
        torch.set_num_threads(3)
        trainer = kind("Pendulum-v1", 1, "cpu", eval_episodes=0, console=False, **fields)
        total = fields["num_envs"] * fields["rollout_steps"] if "num_envs" in fields else 62
        trainer.train(total, out_dir=tmp_path / "run", callbacks=lambda _: during.add(torch.get_num_threads()))
        trainer.close()
        assert trainer.updates > 0 and during == {expected} and torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(before)


def test_images_have_a_thread_a_core(monkeypatch: pytest.MonkeyPatch) -> None:
    class Picture(gymnasium.Env[Any, Any]):
        observation_space = spaces.Box(0, 255, (84, 84, 1), np.uint8)
        action_space = spaces.Discrete(2)

        def reset(
            self, *, seed: int | None = None, options: dict[str, Any] | None = None
        ) -> tuple[Any, dict[str, Any]]:
            return np.zeros((84, 84, 1), np.uint8), {}

    monkeypatch.setattr("minerva.trainers.ppo.trainer.usable_cores", lambda: 7)
    trainer = PPOTrainer(Picture, 1, "cpu", num_envs=1, rollout_steps=8, minibatch_size=8, console=False)
    trainer.close()
    assert trainer.useful_threads() == 7


# What a second reader found


def test_numbers_of_numpy_end_up_as_pythons_in_the_checkpoint(tmp_path: Path) -> None:
    trainer = small_trainer(
        policy_lr=np.float64(1e-3), update_epochs=np.int64(1), policy_layer_sizes=[np.int32(4)],
        env_kwargs={"g": np.float32(9.5)},
    )  # fmt: skip
    trainer.train(ROLLOUT, tmp_path / "run")
    trainer.close()
    config = checkpointing.read(tmp_path / "run" / "ppo_last.pt")["config"]
    assert (config["policy_lr"], config["update_epochs"]) == (1e-3, 1)
    assert (config["policy_layer_sizes"], config["env_kwargs"]) == ([4], {"g": 9.5})
    with pytest.raises(ValueError, match=r"env_kwargs\['g'\]: must be a plain value .* got <function"):
        small_trainer(env_kwargs={"g": small_trainer})


def test_a_loaded_run_keeps_its_length_unless_told_otherwise(whole: Path, tmp_path: Path) -> None:
    train(tmp_path / "run", callbacks=lambda trainer: trainer.env_steps < 21)
    trainer = small_trainer()
    trainer.load(tmp_path / "run")
    assert trainer.train().env_steps == TOTAL
    trainer.close()
    assert same(state_of(whole)["agent"], state_of(tmp_path / "run")["agent"])


def test_a_trainer_saved_before_its_first_step_starts_from_there(whole: Path, tmp_path: Path) -> None:
    trainer = small_trainer()
    trainer.save(tmp_path / "fresh.pt")
    trainer.close()
    again = small_trainer()
    again.load(tmp_path / "fresh.pt")
    again.train(TOTAL, tmp_path / "run")
    again.close()
    assert same(state_of(whole), state_of(tmp_path / "run"))


def test_saving_from_a_callback_knows_where_the_log_stands(whole: Path, tmp_path: Path) -> None:
    def save(trainer: PPOTrainer) -> None:
        if trainer.env_steps == 50:
            trainer.save(tmp_path / "run" / "at50.pt")

    train(tmp_path / "run", callbacks=save)
    again = small_trainer()
    again.load(tmp_path / "run" / "at50.pt")
    again.train(TOTAL)
    again.close()
    assert metrics_of(tmp_path / "run") == metrics_of(whole)


def test_a_signal_breaks_an_evaluation_off_and_it_is_made_up_for(whole: Path, tmp_path: Path) -> None:
    trainer = small_trainer()
    run_evaluation, asked = trainer.evaluator.run, 0

    def interrupted(act: Any, should_stop: Callable[[], bool]) -> Evaluation | None:
        nonlocal asked
        asked += 1
        if asked == 4:
            signal.raise_signal(signal.SIGINT)
        return run_evaluation(act, should_stop)

    trainer.evaluator.run = interrupted  # type: ignore[assignment,method-assign]
    with pytest.raises(KeyboardInterrupt):
        trainer.train(TOTAL, tmp_path / "run")
    trainer.close()
    assert len(evaluated_steps(tmp_path / "run")) == 3
    again = small_trainer()
    again.load(tmp_path / "run")
    again.train(TOTAL)
    again.close()
    assert metrics_of(tmp_path / "run") == metrics_of(whole)
    assert same(state_of(whole), state_of(tmp_path / "run"))


def test_the_description_keeps_what_a_run_was_begun_with(tmp_path: Path) -> None:
    train(tmp_path / "run", ROLLOUT)
    begun = json.loads((tmp_path / "run" / "config.json").read_text())
    trainer = small_trainer()
    trainer.load(tmp_path / "run")
    trainer.train(2 * ROLLOUT)
    trainer.close()
    now = json.loads((tmp_path / "run" / "config.json").read_text())
    (session,) = now.pop("resumed")
    assert session["from_step"] == ROLLOUT and session["command"] == begun["command"]
    assert now.pop("total_steps") == 2 * begun.pop("total_steps")
    assert now == begun


def test_a_run_that_took_its_whole_rollouts_is_done(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    train(tmp_path / "run", 2 * ROLLOUT + 3, console=True)
    last = capsys.readouterr().out.splitlines()[-1]
    assert "done in" in last and "100.0%" in last


def test_going_on_with_another_kind_of_device_is_told(tmp_path: Path) -> None:
    train(tmp_path / "run", ROLLOUT)
    checkpoint = checkpointing.read(tmp_path / "run" / "ppo_last.pt")
    assert checkpoint["device"] == "cpu"
    checkpoint["state"]["device"], checkpoint["state"]["action_noise"] = "cuda", torch.zeros(16, dtype=torch.uint8)
    checkpoint["state"]["compiled"] = True
    checkpointing.write(tmp_path / "run" / "ppo_last.pt", checkpoint)
    trainer = small_trainer()
    trainer.load(tmp_path / "run")
    assert any("was on cuda and goes on on cpu" in note for note in trainer.notes)
    assert trainer.compiled is None  # decided anew for the other device
    assert trainer.train(2 * ROLLOUT).updates == 2
    trainer.close()


def test_compiling_is_for_adam() -> None:
    with pytest.raises(ValueError, match="compile: True needs optimizer_type 'adam', got 'sgd'"):
        small_trainer(compile=True, optimizer_type="sgd")


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
        ("eval/return_mean", 1.0, "the groups charts, eval, losses, train are the run's own, got 'eval/return_mean'"),
        ("a b", 1.0, "name: must be of letters, digits, .* got 'a b'"),
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
    assert not hasattr(trainer, "log")


def test_the_time_of_callbacks_is_left_out_of_the_pace(tmp_path: Path) -> None:
    train(tmp_path / "run", ROLLOUT, lambda trainer: time.sleep(0.1), eval_episodes=0, update_epochs=1)
    rows = [line.split(",") for line in (tmp_path / "run" / "metrics.csv").read_text().splitlines()]
    (pace,) = [float(value) for _, name, value in rows if name == "charts/SPS"]
    assert pace > ROLLOUT / 1.0  # they slept for 1.6 s


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
        run.log_to_tensorboard({"drawn_factor": 0.25, "drawn_loss": -1.5})


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
    assert scalars_of(tmp_path / "run", "drawn_loss") == [(step, -1.5) for step in steps]
    assert {"drawn_factor", "losses/value_loss", "charts/SPS"} <= set(events.Tags()["scalars"])
    assert not {"drawn_factor", "drawn_loss"} & {name for _, name, _ in metrics_of(tmp_path / "run")}


def test_arrays_are_not_written_where_nobody_asked(
    monkeypatch: pytest.MonkeyPatch, whole: Path, tmp_path: Path
) -> None:
    train(tmp_path / "scalars", ROLLOUT, Drawing(monkeypatch), tensorboard=True)
    tags = events_of(tmp_path / "scalars").Tags()
    assert tags["histograms"] == tags["images"] == [] and "drawn_loss" in tags["scalars"]
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
    with pytest.warns(RuntimeWarning, match="TensorBoardLogger failed and is off for the rest of the run") as caught:
        train(tmp_path / "run", 2 * ROLLOUT, Drawing(monkeypatch), tensorboard=True, full_tensorboard_log=True)
    assert len(caught) == 1
    assert len(logged(tmp_path / "run", "losses/value_loss")) == 2


# Schedules


@dataclass(frozen=True, kw_only=True)
class Scheduled(PPOConfig):
    bonus: Schedule = 0.1
    """A setting of every kind of schedule."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self._schedules("bonus")


class ScheduledTrainer(PPOTrainer):
    resumed_fields = (*PPOTrainer.resumed_fields, "bonus")


@pytest.mark.parametrize(
    ("first", "then", "plain", "differs"),
    [
        (0.5, 0.5, 0.5, None),
        ("lin_2.5e-4", "lin_2.5e-4", "lin_2.5e-4", None),
        (lambda share: share, lambda share: 2 * share, "function", None),  # who gives a function answers for it
        (lambda share: share, "function", "function", None),
        (0.5, "lin_0.5", 0.5, "bonus = 0.5, got lin_0.5"),
        (lambda share: share, 0.5, "function", "bonus = function, got 0.5"),
    ],
)
def test_a_schedule_goes_through_a_checkpoint(
    first: Any, then: Any, plain: Any, differs: str | None, tmp_path: Path
) -> None:
    def make(bonus: Any) -> ScheduledTrainer:
        config = Scheduled(bonus=bonus, rollout_steps=ROLLOUT, minibatch_size=8, console=False, eval_episodes=0)
        return ScheduledTrainer("Pendulum-v1", 1, "cpu", config)

    trainer = make(first)
    trainer.train(ROLLOUT, tmp_path / "run")
    trainer.close()
    config = checkpointing.read(tmp_path / "run" / "ppo_last.pt")["config"]
    assert config["bonus"] == plain
    assert json.loads((tmp_path / "run" / "config.json").read_text())["config"]["bonus"] == plain
    assert Scheduled.from_fields(None, config).to_plain() == config
    again = make(then)
    if differs is None:
        again.load(tmp_path / "run")
        assert again.updates == 1
    else:
        with pytest.raises(CheckpointError, match=differs):
            again.load(tmp_path / "run")
    again.close()
