"""A callback that stops training at a target return."""

from __future__ import annotations

from collections import deque
from typing import Any

from minerva.callbacks.base import Callback
from minerva.callbacks.checks import number, positive_int
from minerva.loggers.csv_file import read_values


class StopOnReturn(Callback):
    """Stop the run when the mean return of the newest training episodes reaches a target.

    A resumed run reads the earlier episodes from its log, so it stops where an uninterrupted run would.

    Args:
        stop_at: The target mean return.
        episodes: Number of episodes in the mean; with fewer, training continues.

    Raises:
        ValueError: An argument is invalid.
    """

    def __init__(self, stop_at: float, episodes: int = 100) -> None:
        self.stop_at = number("stop_at", stop_at)
        self.returns: deque[float] = deque(maxlen=positive_int("episodes", episodes))

    def on_training_start(self, trainer: Any) -> None:
        """Read the episodes logged before the run was resumed."""
        self.returns.clear()
        self.returns.extend(read_values(trainer.out_dir / "metrics.csv", "train/episode_return"))

    def on_step(self, trainer: Any) -> bool:
        """Record the episodes that ended; return False when their mean return reaches the target."""
        ended = trainer.last_step.episodes
        self.returns.extend(episode.episode_return for episode in ended)
        enough = bool(ended) and len(self.returns) == self.returns.maxlen
        return not (enough and sum(self.returns) / len(self.returns) >= self.stop_at)
