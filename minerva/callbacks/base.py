"""The points of a run at which a user's own code may look at it, or end it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Union

CallbackLike = Union["Callback", Callable[[Any], "bool | None"], Sequence["CallbackLike"], None]
"""A `Callback`, a plain function (called at every step), a list of these, or nothing."""


class Callback:
    """Override what you need. Each method is given the trainer.

    A callback may read everything: `trainer.env_steps`, `trainer.updates`, `trainer.agent`, `trainer.last_step` (the
    observations, raw rewards and episode ends of the newest step). With `trainer.log("my/name", 0.5)` it may log
    numbers of its own, wherever the run logs. It is not saved with the run.
    """

    def on_training_start(self, trainer: Any) -> None:
        """Look at the trainer before the first step of this call of `train`."""

    def on_rollout_start(self, trainer: Any) -> None:
        """Look at the trainer before the first step of a rollout."""

    def on_step(self, trainer: Any) -> bool | None:
        """Look at the trainer after a step of all environments; return False to end training, everything saved."""
        return None

    def on_rollout_end(self, trainer: Any) -> None:
        """Look at the trainer when a rollout is full, before it is learned from."""

    def on_training_end(self, trainer: Any) -> None:
        """Look at the trainer after the last step, whatever ended the run."""


class CallbackList(Callback):
    """Several callbacks as one; all of them are called, and one False is enough."""

    def __init__(self, callbacks: CallbackLike = None) -> None:
        self.callbacks: list[Callback] = list(_flatten(callbacks))

    def on_training_start(self, trainer: Any) -> None:
        """Pass it on."""
        for callback in self.callbacks:
            callback.on_training_start(trainer)

    def on_rollout_start(self, trainer: Any) -> None:
        """Pass it on."""
        for callback in self.callbacks:
            callback.on_rollout_start(trainer)

    def on_step(self, trainer: Any) -> bool:
        """Pass it on; False if any of them says so."""
        answers = [callback.on_step(trainer) for callback in self.callbacks]
        return all(answer is not False for answer in answers)

    def on_rollout_end(self, trainer: Any) -> None:
        """Pass it on."""
        for callback in self.callbacks:
            callback.on_rollout_end(trainer)

    def on_training_end(self, trainer: Any) -> None:
        """Pass it on."""
        for callback in self.callbacks:
            callback.on_training_end(trainer)


class _EveryStep(Callback):
    def __init__(self, function: Callable[[Any], bool | None]) -> None:
        self._function = function

    def on_step(self, trainer: Any) -> bool | None:
        return self._function(trainer)


def _flatten(callbacks: CallbackLike) -> Sequence[Callback]:
    if callbacks is None:
        return []
    if isinstance(callbacks, Callback):
        return [callbacks]
    if callable(callbacks):
        return [_EveryStep(callbacks)]
    if isinstance(callbacks, (list, tuple)):
        return [callback for item in callbacks for callback in _flatten(item)]
    raise ValueError(
        f"callbacks: must be a Callback, a function of the trainer, or a list of these; got {type(callbacks).__name__}."
    )
