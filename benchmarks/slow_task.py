"""An environment that sleeps, as one that waits for a simulator elsewhere. Its id is benchmarks.slow_task:Slow-v0."""

from __future__ import annotations

import time
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

ENV = "benchmarks.slow_task:Slow-v0"
OBSERVATION, ACTION = 17, 6  # as HalfCheetah-v5 has


class Slow(gymnasium.Env[NDArray[np.float32], NDArray[np.float32]]):
    """Drift about under the actions; the reward is the distance from the origin, negative.

    Args:
        seconds: How long a step sleeps.
    """

    observation_space = spaces.Box(-np.inf, np.inf, (OBSERVATION,), np.float32)
    action_space = spaces.Box(-1.0, 1.0, (ACTION,), np.float32)

    def __init__(self, seconds: float = 0.01) -> None:
        self._seconds = seconds
        self._place = np.zeros(OBSERVATION, np.float32)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Begin at a random place."""
        super().reset(seed=seed)
        self._place = self.np_random.normal(size=OBSERVATION).astype(np.float32)
        return self._place.copy(), {}

    def step(self, action: NDArray[np.float32]) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Sleep, and move."""
        time.sleep(self._seconds)
        self._place[:ACTION] += 0.1 * action
        self._place += 0.01 * self.np_random.normal(size=OBSERVATION).astype(np.float32)
        return self._place.copy(), -float(np.square(self._place).mean()), False, False, {}


gymnasium.register("Slow-v0", entry_point="benchmarks.slow_task:Slow", max_episode_steps=100)
