"""The base class of callbacks, and lists of callbacks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Union

CallbackLike = Union["Callback", Callable[[Any], "bool | None"], Sequence["CallbackLike"], None]
"""A `Callback`, a function of the trainer (called at every step), a list of these, or None."""


class Callback:
    """Base class of callbacks: override the methods you need. Each receives the trainer.

    A callback may read everything: `trainer.env_steps`, `trainer.updates`, `trainer.agent`, `trainer.last_step` (the
    observations, raw rewards and episode ends of the newest step). `trainer.log("my/name", 0.5)` logs a value of its
    own, wherever the run logs. Callbacks are not saved with the run.
    """

    def on_training_start(self, trainer: Any) -> None:
        """Run before the first step of a call of `train`."""

    def on_rollout_start(self, trainer: Any) -> None:
        """Run before the first step of a rollout."""

    def on_step(self, trainer: Any) -> bool | None:
        """Run after each step of all environments; return False to save everything and stop training."""
        return None

    def on_rollout_end(self, trainer: Any) -> None:
        """Run when a rollout is complete, before the update."""

    def on_training_end(self, trainer: Any) -> None:
        """Run after the last step, also when training stopped early."""


class CallbackList(Callback):
    """Call several callbacks as one; training stops when any of them returns False."""

    def __init__(self, callbacks: CallbackLike = None) -> None:
        self.callbacks: list[Callback] = list(_flatten(callbacks))

    def on_training_start(self, trainer: Any) -> None:
        for callback in self.callbacks:
            callback.on_training_start(trainer)

    def on_rollout_start(self, trainer: Any) -> None:
        for callback in self.callbacks:
            callback.on_rollout_start(trainer)

    def on_step(self, trainer: Any) -> bool:
        """Call `on_step` of each callback; return False if any of them does."""
        results = [callback.on_step(trainer) for callback in self.callbacks]
        return all(result is not False for result in results)

    def on_rollout_end(self, trainer: Any) -> None:
        for callback in self.callbacks:
            callback.on_rollout_end(trainer)

    def on_training_end(self, trainer: Any) -> None:
        for callback in self.callbacks:
            callback.on_training_end(trainer)


class _FunctionCallback(Callback):
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
        return [_FunctionCallback(callbacks)]
    if isinstance(callbacks, (list, tuple)):
        return [callback for item in callbacks for callback in _flatten(item)]
    raise ValueError(
        f"callbacks: must be a Callback, a function of the trainer, or a list of these; got {type(callbacks).__name__}."
    )
