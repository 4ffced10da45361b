from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import torch

from minerva.callbacks import Callback, CallbackList
from minerva.environments import Step
from minerva.trainers.loop import off_policy_loop, on_policy_loop
from minerva.trainers.run import RunState


def empty_step() -> Step:
    flags = np.zeros(2, dtype=np.bool_)
    return Step(np.zeros((2, 1), dtype=np.float32), np.zeros(2), flags, flags, flags, [])


class FakeTrainer:
    """Two environments; everything that happens is written down."""

    def __init__(self) -> None:
        self.events: list[str] = []
        self.run_state = RunState()
        self.last_step: Step | None = None
        self.collector: Any = self
        self.waits_in_vain = self.waited = False

    def wait(self, stopping: Callable[[], bool]) -> bool:
        self.waited = self.waits_in_vain
        return not (self.waits_in_vain and stopping())

    def step(self) -> Step:
        self.events.append("step")
        return empty_step()


class FakeRun(Callback):
    def __init__(self, trainer: FakeTrainer, stop_after: int | None = None) -> None:
        self.trainer, self.stop_after, self.state = trainer, stop_after, trainer.run_state
        self.callbacks = CallbackList(self)

    def stopping(self) -> bool:
        stopped = self.stop_after is not None and self.trainer.events.count("step") >= self.stop_after
        return stopped or self.trainer.waited

    def step_done(self, step: Step) -> None:
        assert self.trainer.last_step is step
        self.state.env_steps += len(step.rewards)
        self.trainer.events.append(f"at {self.state.env_steps}")

    @contextmanager
    def updating(self, count: int) -> Iterator[None]:
        self.trainer.events.append("(")
        yield
        self.state.updates += count
        if isinstance(self.trainer, FakeOnPolicy):
            # Carried over inside: a checkpoint after it never sees half of that.
            assert self.trainer.rollout.position == 0
        self.trainer.events.append(f"{self.state.updates})")

    def update_done(self, metrics: dict[str, float]) -> None:
        self.trainer.events.append(f"logged {metrics}")

    def on_rollout_start(self, trainer: Any) -> None:
        trainer.events.append("start")

    def on_rollout_end(self, trainer: Any) -> None:
        trainer.events.append("end")


# On-policy


class FakeRollout:
    def __init__(self, steps: int) -> None:
        self.steps, self.position = steps, 0

    @property
    def full(self) -> bool:
        return self.position == self.steps

    def carry_over(self) -> None:
        self.position = 0


class FakeOnPolicy(FakeTrainer):
    """Three steps per rollout."""

    def __init__(self) -> None:
        super().__init__()
        self.rollout = FakeRollout(3)
        self.layer_noise = torch.Generator()

    def step(self) -> Step:
        self.rollout.position += 1
        return super().step()

    def merge(self) -> None:
        assert self.rollout.full
        self.events.append("merge")

    def update(self, total_updates: int) -> dict[str, float]:
        assert self.rollout.full
        self.events.append(f"update of {total_updates}")
        return {"loss": 1.0}


def rollout_events(first_step: int, update: int, total: int) -> list[str]:
    steps = [event for k in (1, 2, 3) for event in ("step", f"at {first_step + 2 * k}")]
    return ["start", *steps, "end", "(", "merge", f"update of {total}", f"{update})", "logged {'loss': 1.0}"]


def on_policy(trainer: Any, run: Any, total: int) -> None:
    on_policy_loop(trainer, run, total)


def test_order_of_events() -> None:
    trainer = FakeOnPolicy()
    on_policy(trainer, FakeRun(trainer), 2)
    assert trainer.events == [*rollout_events(0, 1, 2), *rollout_events(6, 2, 2)]
    assert (trainer.run_state.env_steps, trainer.run_state.updates) == (12, 2)


def test_no_updates_left_means_no_step() -> None:
    trainer = FakeOnPolicy()
    trainer.run_state.updates = 2
    on_policy(trainer, FakeRun(trainer), 2)
    assert trainer.events == []


def test_a_run_that_stops_while_a_step_is_awaited_takes_none() -> None:
    cases: list[tuple[FakeTrainer, Any]] = [(FakeOnPolicy(), on_policy), (FakeOffPolicy(False), off_policy)]
    for trainer, loop in cases:
        trainer.waits_in_vain = True
        loop(trainer, FakeRun(trainer), 20)
        assert trainer.events == ["start"]


def test_left_and_entered_again_at_any_step() -> None:
    whole = [*rollout_events(0, 1, 2), *rollout_events(6, 2, 2)]
    for stop_after in range(1, 6):
        trainer = FakeOnPolicy()
        on_policy(trainer, FakeRun(trainer, stop_after), 2)
        assert trainer.events.count("step") == stop_after
        # A rollout that is full when the end is asked for is not learned from: that may take long.
        assert trainer.run_state.updates == (stop_after - 1) // 3
        on_policy(trainer, FakeRun(trainer), 2)
        assert trainer.events == whole, stop_after


# Off-policy


class FakeOffPolicy(FakeTrainer):
    """Three updates are due every second step."""

    def __init__(self, act_before_update: bool) -> None:
        super().__init__()
        self.act_before_update = act_before_update
        self.updated_at = 0

    def act(self) -> None:
        self.events.append("act")

    def updates_due(self) -> int:
        return 3 if self.run_state.env_steps >= self.updated_at + 4 else 0

    def update(self, count: int) -> dict[str, float]:
        self.updated_at = self.run_state.env_steps
        self.events.append(f"update of {count}")
        return {"loss": 1.0}


def off_policy(trainer: Any, run: Any, total: int) -> None:
    off_policy_loop(trainer, run, total)


@pytest.mark.parametrize("act_before_update", [False, True])
def test_order_of_events_off_policy(act_before_update: bool) -> None:
    trainer = FakeOffPolicy(act_before_update)
    off_policy(trainer, FakeRun(trainer), 7)
    act = ["act"] * act_before_update

    def steps(first: int) -> list[str]:
        return [*act, "step", f"at {first + 2}", *act, "step", f"at {first + 4}", *act]

    # The updates of the last step are made too, whether or not it completes the number of steps asked for.
    assert trainer.events == [
        "start", *steps(0), "end", "(", "update of 3", "3)", "logged {'loss': 1.0}", "start", *steps(4)[len(act):],
        "end", "(", "update of 3", "6)", "logged {'loss': 1.0}", "start",
    ]  # fmt: skip
    assert (trainer.run_state.env_steps, trainer.run_state.updates) == (8, 6)


@pytest.mark.parametrize("stop_after", [1, 2, 3])
def test_the_updates_of_a_step_that_was_the_last_are_made_when_it_is_entered_again(stop_after: int) -> None:
    whole, parts = FakeOffPolicy(False), FakeOffPolicy(False)
    off_policy(whole, FakeRun(whole), 8)
    off_policy(parts, FakeRun(parts, stop_after), 8)
    assert parts.run_state.env_steps == 2 * stop_after and parts.run_state.updates == 3 * ((stop_after - 1) // 2)
    off_policy(parts, FakeRun(parts), 8)
    assert (parts.run_state, parts.updated_at) == (whole.run_state, whole.updated_at)
