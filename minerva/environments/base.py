"""The interface of a batched environment, the same for every backend.

Every backend follows Gymnasium's NEXT_STEP autoreset. When an episode ends at step t, that step returns the last
observation of the episode. The next step ignores its action, returns the first observation of the next episode and is
marked `restarting`. So the observation after every step that is not restarting is the true successor of the one before
it, and a time limit is no special case.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

import numpy as np
from gymnasium import Space, spaces
from numpy.typing import NDArray

Rows = NDArray[Any]
"""Flat observations: float32, or uint8 for images. The action mask, if there is one, is at the end of each row."""


LARGEST = float(np.finfo(np.float32).max)
"""The largest number that rollouts and networks can hold."""


class EnvironmentFailureError(RuntimeError):
    """An environment raised an error, returned a value that is not a number, or its process died."""


class Episode(NamedTuple):
    """An episode that has just ended."""

    env_index: int  # which environment of the batch
    episode_return: float  # of raw rewards
    length: int


class Step(NamedTuple):
    """The result of one step of N environments."""

    observations: Rows  # [N, O], flat
    rewards: NDArray[np.float64]  # [N], raw; 0 where restarting
    terminated: NDArray[np.bool_]  # [N]
    truncated: NDArray[np.bool_]  # [N]
    restarting: NDArray[np.bool_]  # [N]: this step crossed into a new episode, its action was ignored
    episodes: list[Episode]  # that ended in this step


class BatchedEnvironment(Protocol):
    """N environments that step together; each backend implements this protocol.

    Attributes:
        num_envs: N.
        raw_observation_space: The space of one environment before flattening.
        observation_dim: O, the length of a row: a flattened observation and its action mask, if there is one.
        observation_dtype: The dtype of a row: uint8 for images, else float32.
        mask_dim: K, the length of the action mask at the end of a row (0: none). 1 allows an action, 0 forbids it, in
            the order of the categories; the masks of a `MultiDiscrete` space are concatenated.
        action_space: The action space of one environment. Actions are ``[N, A]``: flat numbers for a `Box`; indices
            from 0 for discrete spaces, even if the space starts at another number; 0 or 1 for `MultiBinary`.
        description: One line that names the backend and vectorization.
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
        """Return which environments the next step restarts, ``[N]``."""
        ...

    def reset(self) -> Rows:
        """Start an episode in every environment and return the first observations, ``[N, O]``."""
        ...

    def step(self, actions: NDArray[np.float32]) -> Step:
        """Step every environment (``actions``: ``[N, A]``, clipped to the box here)."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """Return the state to resume from, as tensors and plain values."""
        ...

    def check_state(self, state: Any, name: str) -> None:
        """Raise a `StructureError` if a loaded state cannot be one of this batch; nothing is changed."""
        ...

    def load_state_dict(self, state: dict[str, Any]) -> str | None:
        """Resume from a saved state; return a sentence if that is not exact, else None."""
        ...

    def close(self) -> None:
        """Close processes and simulators."""
        ...


STATE_KEYS = {"episode_seeds", "generation", "simulations"}
"""What the saved state of a backend is known by: Gymnasium's, EnvPool's, MuJoCo's."""


def is_of_another_backend(state: Any, own: str) -> bool:
    """Return whether a loaded state is another backend's than the one with this key."""
    return isinstance(state, dict) and own not in state and not STATE_KEYS.isdisjoint(state)


class EpisodeStatistics:
    """Track returns and lengths of episodes from raw rewards."""

    def __init__(self, num_envs: int) -> None:
        self.returns = np.zeros(num_envs, dtype=np.float64)
        self.lengths = np.zeros(num_envs, dtype=np.int64)

    def add(
        self, rewards: NDArray[np.float64], ended: NDArray[np.bool_], restarting: NDArray[np.bool_]
    ) -> list[Episode]:
        """Add one step and return the episodes that it ended."""
        self.returns += rewards
        self.lengths += 1
        if True in restarting.tolist():  # for a few environments, a tenth of the time of `any`
            self.lengths[restarting] -= 1
        if True not in ended.tolist():
            return []
        finished = [Episode(int(i), float(self.returns[i]), int(self.lengths[i])) for i in np.flatnonzero(ended)]
        self.returns[ended] = 0.0
        self.lengths[ended] = 0
        return finished


def box_bounds(space: Space[Any]) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Return the bounds of a Box, flat and as float32 (infinite for any other space)."""
    if not isinstance(space, spaces.Box):
        return np.array([-np.inf], dtype=np.float32), np.array([np.inf], dtype=np.float32)
    low, high = space.low.reshape(-1), space.high.reshape(-1)
    low32, high32 = low.astype(np.float32), high.astype(np.float32)
    # A bound that float32 cannot represent must neither turn actions into float64 nor let them leave the box.
    return (
        np.where(low32 < low, np.nextafter(low32, np.float32(np.inf)), low32),
        np.where(high32 > high, np.nextafter(high32, np.float32(-np.inf)), high32),
    )


def clip_to_box(actions: NDArray[np.float32], space: Space[Any]) -> NDArray[np.float32]:
    """Clip ``[N, A]`` actions to a Box (no change for other spaces)."""
    low, high = box_bounds(space)
    clipped: NDArray[np.float32] = np.minimum(np.maximum(actions, low), high)
    return clipped


def check_finite(observations: Rows, rewards: NDArray[np.float64]) -> None:
    """Check that observations and rewards are finite, also as float32.

    Raises:
        EnvironmentFailureError: A value is not finite; the message says where.
    """
    # No number is larger than a small sum of squares. Where the sum is large, the search below may find nothing.
    total = np.vdot(rewards, rewards)
    if observations.dtype.kind == "f":  # every byte is a number
        total += np.vdot(observations, observations)
    if total <= LARGEST:  # not where it is NaN
        return
    for i, (observation, reward) in enumerate(zip(observations, rewards, strict=True)):
        if not np.abs(reward) <= LARGEST:  # NaN too
            raise EnvironmentFailureError(f"environment {i} returned the reward {reward}")
        wrong = np.flatnonzero(~np.isfinite(observation))
        if wrong.size:
            where = int(wrong[0])
            raise EnvironmentFailureError(
                f"environment {i} returned an observation with {observation[where]} at position {where}"
            )
