"""A progress bar for runs that have switched their own off."""

from __future__ import annotations

import atexit
from typing import TYPE_CHECKING, Any, TextIO

from minerva.callbacks.base import Callback

if TYPE_CHECKING:
    from minerva.loggers import ConsoleLogger


class ProgressBar(Callback):
    """Shows how far a run has come: a bar in a terminal, plain lines elsewhere.

    It is the one that ``console=True`` shows, without its messages and evaluations. A run that shows that one gets no
    second.

    Args:
        stream: Where to write; standard output by default.
    """

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream
        self._console: ConsoleLogger | None = None

    def on_training_start(self, trainer: Any) -> None:
        """Show it."""
        from minerva.loggers import ConsoleLogger

        self._close()
        if not trainer.config.console:
            title = f"{trainer.algorithm} {trainer.env_name}"
            total = trainer.final_step(trainer.total_steps)
            self._console = ConsoleLogger(total, trainer.env_steps, title, self._stream)
            # After an error in the middle of an update there is no `on_training_end`.
            atexit.register(self._console.close)

    def on_step(self, trainer: Any) -> None:
        """Move it."""
        if self._console is not None:
            for episode in trainer.last_step.episodes:
                self._console.log({"train/episode_return": episode.episode_return}, trainer.env_steps)
            self._console.progress(trainer.env_steps)

    def on_training_end(self, trainer: Any) -> None:
        """Give the terminal back."""
        self._close()

    def _close(self) -> None:
        if self._console is not None:
            self._console.close()
            atexit.unregister(self._console.close)
            self._console = None
