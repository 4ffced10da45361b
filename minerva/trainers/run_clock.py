"""How long a run takes, evaluation apart. The time adds up over calls of `train` and over resumes."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol


class RunTime(Protocol):
    """Where the time is kept: a part of the run's state."""

    env_steps: int
    seconds: float
    evaluation_seconds: float


class RunClock:
    """Add the time of one call of `train` to a run's state."""

    def __init__(self, state: RunTime) -> None:
        self._state = state
        self._newest = time.perf_counter()
        self._evaluates = False

    def read(self) -> None:
        """Add the time since the newest reading."""
        now = time.perf_counter()
        self._state.seconds += now - self._newest
        if self._evaluates:
            self._state.evaluation_seconds += now - self._newest
        self._newest = now

    @contextmanager
    def evaluating(self) -> Iterator[None]:
        """Count the time of a `with` block as evaluation too."""
        self.read()
        self._evaluates = True
        try:
            yield
        finally:
            self.read()
            self._evaluates = False

    def metrics(self) -> dict[str, float]:
        """Return the run's seconds, and its environment steps per second with and without evaluation."""
        self.read()
        state, whole = self._state, {"time/seconds": self._state.seconds}
        if state.env_steps == 0:
            return whole
        training = max(state.seconds - state.evaluation_seconds, 1e-9)
        pace = {"charts/SPS": state.env_steps / max(state.seconds, 1e-9)}
        return {**whole, **pace, "charts/SPS_training": state.env_steps / training}
