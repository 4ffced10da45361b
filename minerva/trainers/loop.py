"""The loops that drive an algorithm."""

from __future__ import annotations

from typing import Protocol

from minerva.environments import Step
from minerva.trainers.collector import Collector, ReplayCollector
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


class OffPolicy(Protocol):
    """What the off-policy loop drives."""

    collector: ReplayCollector
    env_steps: int
    updates: int
    last_step: Step | None

    @property
    def acts_first(self) -> bool:
        """Whether the next action is chosen before the updates that are due."""
        ...

    def updates_due(self) -> int:
        """Give how many updates are to be made now; asking changes nothing."""
        ...

    def update(self, count: int, run: Run) -> dict[str, float]:
        """Make so many updates and return what is to be logged, if anything is."""
        ...


def off_policy_loop(trainer: OffPolicy, run: Run, total_steps: int) -> None:
    """Make the updates that are due, take a step, repeat; may be left and entered again at any step.

    Updates come first: a run that was left after a step makes those of that step when it goes on. With `acts_first` the
    next action is chosen before them: nothing that comes after then waits for them, as long as a GPU makes them.
    """
    run.callbacks.on_rollout_start(trainer)
    while not run.stopping():
        if trainer.acts_first:  # at the end as well: a run may be given more steps
            trainer.collector.act()
        count = trainer.updates_due()
        if count > 0:
            run.callbacks.on_rollout_end(trainer)
            with run.updating():
                metrics = trainer.update(count, run)
                trainer.updates += count
            run.update_done(metrics)
            run.callbacks.on_rollout_start(trainer)
        if trainer.env_steps >= total_steps or run.stopping():
            break
        trainer.last_step = step = trainer.collector.step()
        trainer.env_steps += len(step.rewards)
        run.step_done(step)
