"""An end for runs that are good enough."""

from __future__ import annotations

from collections import deque
from typing import Any

from minerva.callbacks.base import Callback
from minerva.callbacks.checks import number, whole_number
from minerva.loggers.csv_file import read_values


class StopOnReturn(Callback):
    """Ends the run when the newest training episodes have reached a mean return.

    A resumed run finds those before it in its log, and so stops where it would have stopped in one go.

    Args:
        stop_at: The mean return.
        episodes: How many episodes the mean is taken of; with fewer, the run goes on.

    Raises:
        ValueError: An argument breaks a rule.
    """

    def __init__(self, stop_at: float, episodes: int = 100) -> None:
        self.stop_at = number("stop_at", stop_at)
        self.returns: deque[float] = deque(maxlen=whole_number("episodes", episodes))

    def on_training_start(self, trainer: Any) -> None:
        """Take in the episodes before a resumed run."""
        self.returns.clear()
        self.returns.extend(read_values(trainer.out_dir / "metrics.csv", "train/episode_return"))

    def on_step(self, trainer: Any) -> bool:
        """Take in the episodes that have ended; False where they are good enough."""
        ended = trainer.last_step.episodes
        self.returns.extend(episode.episode_return for episode in ended)
        enough = bool(ended) and len(self.returns) == self.returns.maxlen
        return not (enough and sum(self.returns) / len(self.returns) >= self.stop_at)
