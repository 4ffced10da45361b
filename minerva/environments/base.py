"""What a batched environment is, whichever backend stands behind it.

Every backend follows Gymnasium's NEXT_STEP autoreset. When an episode ends at step t, the observation returned by that
step is the episode's last one; the next step ignores its action, returns the first observation of the next episode and
is marked `restarting`. So the observation after every step that is not restarting is the true successor of the one
before it, and nothing special happens at a time limit.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple, Protocol

import numpy as np
from gymnasium import Space, spaces
from numpy.typing import NDArray

Rows = NDArray[Any]
"""Observations, flat: float32, or uint8 for images. An action mask, where there is one, stands at the end of each."""


class EnvironmentFailureError(RuntimeError):
    """An environment raised, returned something that is not a number, or its process died."""


class Episode(NamedTuple):
    """An episode that has just ended."""

    env_index: int  # which environment of the batch
    episode_return: float  # of raw rewards
    length: int


class Step(NamedTuple):
    """What one step of N environments gave."""

    observations: Rows  # [N, O], flat
    rewards: NDArray[np.float64]  # [N], as the environment gives them; 0 where restarting
    terminated: NDArray[np.bool_]  # [N]
    truncated: NDArray[np.bool_]  # [N]
    restarting: NDArray[np.bool_]  # [N]: this step crossed into a new episode, its action was ignored
    episodes: list[Episode]  # those that ended in this step


class BatchedEnvironment(Protocol):
    """N environments that are stepped together. A backend is one file that provides this.

    Attributes:
        num_envs: N.
        raw_observation_space: The space of one environment before flattening.
        observation_dim: O, the length of a row: a flattened observation, and its action mask where there is one.
        observation_dtype: Of a row: uint8 for images, else float32.
        mask_dim: K, the length of the action mask at a row's end (0: none). An entry of 1 allows an action, 0 forbids
            it; they stand in the order of the categories, those of a `MultiDiscrete` space one after the other.
        action_space: The action space of one environment. Actions are ``[N, A]``: for a `Box` its numbers, flat; for
            the discrete spaces indices counted from 0, whatever number the space starts from; for `MultiBinary` 0 or 1.
        description: One line that says what runs (backend, vectorization).
    """

    num_envs: int
    raw_observation_space: Space[Any]
    observation_dim: int
    observation_dtype: np.dtype[Any]
    mask_dim: int
    action_space: Space[Any]
    description: str

    @property
    def restarts_next(self) -> NDArray[np.bool_]:
        """Which environments the next step takes into a new episode, ``[N]``."""
        ...

    def reset(self) -> Rows:
        """Start an episode everywhere and return the first observations, ``[N, O]``."""
        ...

    def step(self, actions: NDArray[np.float32]) -> Step:
        """Step everywhere (``actions``: ``[N, A]``, clipped to the box here)."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """Give all that is needed to go on from here, as tensors and plain values."""
        ...

    def load_state_dict(self, state: dict[str, Any]) -> str | None:
        """Go on from a saved state; returns a sentence where that is not exact, else None."""
        ...

    def close(self) -> None:
        """Release processes and simulators."""
        ...


class EpisodeStatistics:
    """Returns and lengths of episodes, from raw rewards."""

    def __init__(self, num_envs: int) -> None:
        self.returns = np.zeros(num_envs, dtype=np.float64)
        self.lengths = np.zeros(num_envs, dtype=np.int64)

    def add(
        self, rewards: NDArray[np.float64], ended: NDArray[np.bool_], restarting: NDArray[np.bool_]
    ) -> list[Episode]:
        """Take in one step and return the episodes that it ended."""
        self.returns += rewards
        self.lengths += ~restarting
        if not ended.any():
            return []
        finished = [Episode(int(i), float(self.returns[i]), int(self.lengths[i])) for i in np.flatnonzero(ended)]
        self.returns[ended] = 0.0
        self.lengths[ended] = 0
        return finished


def box_bounds(space: Space[Any]) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Give the bounds of a Box, flat and as float32 (no bounds for any other space)."""
    if not isinstance(space, spaces.Box):
        return np.array([-np.inf], dtype=np.float32), np.array([np.inf], dtype=np.float32)
    low, high = space.low.reshape(-1), space.high.reshape(-1)
    low32, high32 = low.astype(np.float32), high.astype(np.float32)
    # A bound that float32 cannot hold must neither turn the actions into float64 nor let them out of the box.
    return (
        np.where(low32 < low, np.nextafter(low32, np.float32(np.inf)), low32),
        np.where(high32 > high, np.nextafter(high32, np.float32(-np.inf)), high32),
    )


def clip_to_box(actions: NDArray[np.float32], space: Space[Any]) -> NDArray[np.float32]:
    """Clip ``[N, A]`` actions to a Box (other spaces pass)."""
    low, high = box_bounds(space)
    clipped: NDArray[np.float32] = np.minimum(np.maximum(actions, low), high)
    return clipped


def check_finite(observations: Rows, rewards: NDArray[np.float64]) -> None:
    """Check what environments returned.

    Raises:
        EnvironmentFailureError: There is a value that is not finite; the message says where.
    """
    # A sum of squares is not finite where one of its terms is not. Where it overflows, the search below finds nothing.
    total = np.vdot(rewards, rewards)
    if observations.dtype != np.uint8:  # every byte is a number
        total += np.vdot(observations, observations)
    if math.isfinite(total):
        return
    for i, (observation, reward) in enumerate(zip(observations, rewards, strict=True)):
        if not np.isfinite(reward):
            raise EnvironmentFailureError(f"environment {i} returned the reward {reward}")
        wrong = np.flatnonzero(~np.isfinite(observation))
        if wrong.size:
            where = int(wrong[0])
            raise EnvironmentFailureError(
                f"environment {i} returned an observation with {observation[where]} at position {where}"
            )
