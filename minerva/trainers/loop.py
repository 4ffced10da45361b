"""The two loops that drive an algorithm: on-policy and off-policy."""

from __future__ import annotations

from typing import TYPE_CHECKING

from minerva.utils.seeding import as_global_generator

if TYPE_CHECKING:
    from minerva.trainers.off_policy import OffPolicyTrainer
    from minerva.trainers.on_policy import OnPolicyTrainer
    from minerva.trainers.run import Run


def on_policy_loop(trainer: OnPolicyTrainer, run: Run, total_updates: int) -> None:
    """Collect a rollout, learn from it, repeat; may be left and entered again at any step."""
    rollout = trainer.collector.rollout
    while run.state.updates < total_updates and not run.stopping():
        if rollout.position == 0:
            run.callbacks.on_rollout_start(trainer)
        while not rollout.full and not run.stopping() and trainer.collector.wait(run.stopping):
            trainer.last_step = trainer.collector.step()
            run.step_done(trainer.last_step)
        if run.stopping():
            break
        run.callbacks.on_rollout_end(trainer)
        with run.updating(1), as_global_generator(trainer.layer_noise):
            trainer.collector.merge()
            metrics = trainer.update(total_updates)
            rollout.carry_over()
        run.update_done(metrics)


def off_policy_loop(trainer: OffPolicyTrainer, run: Run, total_steps: int) -> None:
    """Make the updates that are due, take a step, repeat; may be left and entered again at any step.

    Updates come first: a run that was left after a step makes the updates of that step when it resumes. With
    `act_before_update` the next action is chosen before them, so that a GPU can learn while the environments step.
    """
    run.callbacks.on_rollout_start(trainer)
    while not run.stopping():
        if trainer.act_before_update:  # at the end as well: a run may be given more steps
            trainer.collector.act()
        count = trainer.updates_due()
        if count > 0:
            run.callbacks.on_rollout_end(trainer)
            with run.updating(count):
                metrics = trainer.update(count)
            run.update_done(metrics)
            run.callbacks.on_rollout_start(trainer)
        if run.state.env_steps >= total_steps or run.stopping() or not trainer.collector.wait(run.stopping):
            break
        trainer.last_step = trainer.collector.step()
        run.step_done(trainer.last_step)
