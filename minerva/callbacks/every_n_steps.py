"""Something to do every so many environment steps."""

from __future__ import annotations

from typing import Any

from minerva.callbacks.base import CallbackLike, CallbackList
from minerva.callbacks.checks import whole_number


class EveryNSteps(CallbackList):
    """Calls a function of the trainer every n environment steps: at the first step at or past each multiple of n.

    When that is follows from the step counter alone, so a resumed run calls it at the same steps.

    Args:
        n: Environment steps, of all environments together.
        function: A function of the trainer, whose False ends the run; or callbacks, whose `on_step` is then called.

    Raises:
        ValueError: n is not a whole number from 1 on.
    """

    def __init__(self, n: int, function: CallbackLike) -> None:
        super().__init__(function)
        self.n = whole_number("n", n)

    def on_step(self, trainer: Any) -> bool:
        """Call it where a multiple of n has been reached by this step."""
        return super().on_step(trainer) if reached_multiple(trainer, self.n) else True


def reached_multiple(trainer: Any, n: int) -> bool:
    """Whether the newest step of all environments has reached or passed a multiple of n."""
    before = trainer.env_steps - len(trainer.last_step.rewards)
    return bool(trainer.env_steps // n > before // n)
