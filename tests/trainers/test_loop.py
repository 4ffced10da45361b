from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from minerva.callbacks import Callback, CallbackList
from minerva.environments import Step
from minerva.trainers.loop import on_policy_loop


class FakeRollout:
    def __init__(self, steps: int) -> None:
        self.steps, self.position = steps, 0

    @property
    def full(self) -> bool:
        return self.position == self.steps

    def carry_over(self) -> None:
        self.position = 0


class FakeTrainer:
    """Two environments, three steps a rollout; everything that happens is written down."""

    def __init__(self) -> None:
        self.events: list[str] = []
        self.env_steps = self.updates = 0
        self.last_step: Step | None = None
        self.collector: Any = self
        self.rollout = FakeRollout(3)

    def step(self) -> Step:
        self.events.append("step")
        self.rollout.position += 1
        flags = np.zeros(2, dtype=np.bool_)
        return Step(np.zeros((2, 1), dtype=np.float32), np.zeros(2), flags, flags, flags, [])

    def update(self, total_updates: int) -> dict[str, float]:
        assert self.rollout.full
        self.events.append(f"update of {total_updates}")
        return {"loss": 1.0}


class FakeRun(Callback):
    def __init__(self, trainer: FakeTrainer, stop_after: int | None = None) -> None:
        self.trainer, self.stop_after = trainer, stop_after
        self.callbacks = CallbackList(self)

    def stopping(self) -> bool:
        return self.stop_after is not None and self.trainer.events.count("step") >= self.stop_after

    def step_done(self, step: Step) -> None:
        assert self.trainer.last_step is step
        self.trainer.events.append(f"at {self.trainer.env_steps}")

    @contextmanager
    def updating(self) -> Iterator[None]:
        self.trainer.events.append("(")
        yield
        # Counted and carried over inside: a checkpoint after it never sees half of that.
        assert self.trainer.rollout.position == 0
        self.trainer.events.append(f"{self.trainer.updates})")

    def update_done(self, metrics: dict[str, float]) -> None:
        self.trainer.events.append(f"logged {metrics}")

    def on_rollout_start(self, trainer: Any) -> None:
        trainer.events.append("start")

    def on_rollout_end(self, trainer: Any) -> None:
        trainer.events.append("end")


def rollout_events(first_step: int, update: int, total: int) -> list[str]:
    steps = [event for k in (1, 2, 3) for event in ("step", f"at {first_step + 2 * k}")]
    return ["start", *steps, "end", "(", f"update of {total}", f"{update})", "logged {'loss': 1.0}"]


def loop(trainer: Any, run: Any, total: int) -> None:
    on_policy_loop(trainer, run, total)


def test_order_of_events() -> None:
    trainer = FakeTrainer()
    loop(trainer, FakeRun(trainer), 2)
    assert trainer.events == [*rollout_events(0, 1, 2), *rollout_events(6, 2, 2)]
    assert (trainer.env_steps, trainer.updates) == (12, 2)


def test_no_updates_left_means_no_step() -> None:
    trainer = FakeTrainer()
    trainer.updates = 2
    loop(trainer, FakeRun(trainer), 2)
    assert trainer.events == []


def test_left_and_entered_again_at_any_step() -> None:
    whole = [*rollout_events(0, 1, 2), *rollout_events(6, 2, 2)]
    for stop_after in range(1, 6):
        trainer = FakeTrainer()
        loop(trainer, FakeRun(trainer, stop_after), 2)
        assert trainer.events.count("step") == stop_after
        # A rollout that is full when the end is asked for is not learned from: that may take long.
        assert trainer.updates == (stop_after - 1) // 3
        loop(trainer, FakeRun(trainer), 2)
        assert trainer.events == whole, stop_after
