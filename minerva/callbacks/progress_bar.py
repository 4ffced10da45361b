"""A progress bar for runs with ``console=False``."""

from __future__ import annotations

import atexit
from typing import TYPE_CHECKING, Any, TextIO

from minerva.callbacks.base import Callback

if TYPE_CHECKING:
    from minerva.loggers import ConsoleLogger


class ProgressBar(Callback):
    """Show a run's progress: a bar in a terminal, plain lines elsewhere.

    It is the bar that ``console=True`` shows, without messages and evaluations. With ``console=True`` this callback
    shows nothing.

    Args:
        stream: Output stream; standard output by default.
    """

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream
        self._console: ConsoleLogger | None = None

    def on_training_start(self, trainer: Any) -> None:
        """Show the progress bar."""
        from minerva.loggers import ConsoleLogger

        self._close()
        if not trainer.config.console:
            title = f"{trainer.algorithm} {trainer.env_name}"
            total = trainer.final_step(trainer.total_steps)
            self._console = ConsoleLogger(total, trainer.env_steps, title, self._stream)
            # `on_training_end` is not called after an error in the middle of an update.
            atexit.register(self._console.close)

    def on_step(self, trainer: Any) -> None:
        """Update the progress bar."""
        if self._console is not None:
            for episode in trainer.last_step.episodes:
                self._console.log({"train/episode_return": episode.episode_return}, trainer.env_steps)
            self._console.progress(trainer.env_steps)

    def on_training_end(self, trainer: Any) -> None:
        """Remove the progress bar and restore the terminal."""
        self._close()

    def _close(self) -> None:
        if self._console is not None:
            self._console.close()
            atexit.unregister(self._console.close)
            self._console = None
