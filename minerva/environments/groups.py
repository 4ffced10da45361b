"""Groups of environments: the orders that they take, what they return, and their interface."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import gymnasium
import numpy as np
from numpy.typing import NDArray

from minerva.environments.base import Rows
from minerva.environments.spaces import flat_size, row_dtype

STEP = -1
"""Order: step this environment with its action. An order of 0 or more means: reset it with that seed."""
IDLE = -2
"""Order: do nothing with this environment."""
CONTINUE = -3
"""Order: reset this environment without a seed, because its game continues after a lost life."""


class Outcome(NamedTuple):
    """What a group of environments returned for one round of orders; idle environments keep their previous values."""

    observations: Rows  # [n, O]
    rewards: NDArray[np.float64]  # [n]
    terminated: NDArray[np.bool_]  # [n]
    truncated: NDArray[np.bool_]  # [n]
    goes_on: NDArray[np.bool_]  # [n]: the episode ended with a lost life and the game continues
    scores: NDArray[np.float64]  # [n]: the rewards before any clipping, summed into the episode's return

    @classmethod
    def empty(cls, n: int, observation_space: gymnasium.Space[Any], mask_dim: int) -> Outcome:
        """Allocate the arrays for n environments."""
        rows = np.zeros((n, flat_size(observation_space) + mask_dim), dtype=row_dtype(observation_space))
        terminated, truncated, goes_on = np.zeros((3, n), dtype=np.bool_)
        return cls(rows, np.zeros(n), terminated, truncated, goes_on, np.zeros(n))


class RunningEpisode(NamedTuple):
    """An episode to replay when a run resumes: its seed and the actions since."""

    seed: int
    actions: NDArray[np.float32]  # [T, A]
    continued: Sequence[int]  # the steps that are resets without a seed; T if the next one will be


class Replayed(NamedTuple):
    """Where the replay of episodes has led when a run resumes."""

    observations: Rows  # [n, O]
    problems: list[str | None]  # why an environment did not come to the end of its episode's actions


class Group(Protocol):
    """Environments that follow orders, in this process or in others."""

    spaces: tuple[gymnasium.Space[Any], gymnasium.Space[Any]]
    mask_dim: int
    description: str

    def apply(self, actions: NDArray[np.float32], orders: NDArray[np.int64]) -> Outcome:
        """Apply one order to each environment; the next call overwrites the returned arrays."""
        ...

    def replay(self, episodes: Sequence[RunningEpisode | None]) -> Replayed:
        """Reset each environment with its episode's seed and repeat the actions (None: leave it alone)."""
        ...

    def where(self) -> str:
        """Return which environments the newest call is busy with; may be asked from another thread."""
        ...

    def close(self) -> None:
        """Close every environment."""
        ...
