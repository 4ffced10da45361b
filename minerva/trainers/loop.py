"""The loops that drive an algorithm."""

from __future__ import annotations

from typing import Protocol

from minerva.environments import Step
from minerva.trainers.collector import Collector
from minerva.trainers.run import Run


class OnPolicy(Protocol):
    """What the on-policy loop drives."""

    collector: Collector
    env_steps: int
    updates: int
    last_step: Step | None

    def update(self, total_updates: int) -> dict[str, float]:
        """Learn from the full rollout and return what is to be logged."""
        ...


def on_policy_loop(trainer: OnPolicy, run: Run, total_updates: int) -> None:
    """Fill a rollout, learn from it, repeat; may be left and entered again at any step."""
    rollout = trainer.collector.rollout
    while trainer.updates < total_updates and not run.stopping():
        if rollout.position == 0:
            run.callbacks.on_rollout_start(trainer)
        while not rollout.full and not run.stopping():
            trainer.last_step = step = trainer.collector.step()
            trainer.env_steps += len(step.rewards)
            run.step_done(step)
        if run.stopping():
            break
        run.callbacks.on_rollout_end(trainer)
        with run.updating():
            metrics = trainer.update(total_updates)
            rollout.carry_over()
            trainer.updates += 1
        run.update_done(metrics)
