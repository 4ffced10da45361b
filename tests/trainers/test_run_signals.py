from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from minerva.evaluation import Evaluation
from tests.trainers.ppo.small_run import (
    ROLLOUT,
    TOTAL,
    evaluated_steps,
    metrics_of,
    resume,
    same,
    same_run,
    small_trainer,
    state_of,
    train,
)


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
