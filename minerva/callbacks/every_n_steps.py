"""A callback that calls a function every n environment steps."""

from __future__ import annotations

from typing import Any

from minerva.callbacks.base import CallbackLike, CallbackList
from minerva.callbacks.checks import positive_int


class EveryNSteps(CallbackList):
    """Call a function of the trainer every n environment steps: at the first step at or after each multiple of n.

    The calls depend only on the step counter, so a resumed run makes them at the same steps.

    Args:
        n: Environment steps, summed over all environments.
        function: A function of the trainer that may return False to stop the run, or callbacks, whose `on_step` is
            called.

    Raises:
        ValueError: n is not a positive integer.
    """

    def __init__(self, n: int, function: CallbackLike) -> None:
        super().__init__(function)
        self.n = positive_int("n", n)

    def on_step(self, trainer: Any) -> bool:
        """Call the function if this step reached a multiple of n."""
        return super().on_step(trainer) if reached_multiple(trainer, self.n) else True


def reached_multiple(trainer: Any, n: int) -> bool:
    """Return whether the newest step of all environments reached or passed a multiple of n."""
    before = trainer.env_steps - len(trainer.last_step.rewards)
    return bool(trainer.env_steps // n > before // n)
