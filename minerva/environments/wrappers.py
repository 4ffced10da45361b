"""Wrappers that make tasks partially observable, and the ids of such tasks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray


class HideVelocities(gymnasium.ObservationWrapper[NDArray[Any], Any, NDArray[Any]]):
    """Remove entries such as velocities from observations, so that the task needs a recurrent policy.

    Args:
        env: An environment whose observations are vectors (a Box with one axis).
        hidden: The positions of the entries to remove.
    """

    def __init__(self, env: gymnasium.Env[NDArray[Any], Any], hidden: Sequence[int]) -> None:
        super().__init__(env)
        space = env.observation_space
        if not isinstance(space, spaces.Box) or len(space.shape) != 1:
            raise ValueError(f"env: its observations must be vectors (a Box with one axis), got {space}.")
        wrong = [position for position in hidden if not 0 <= position < space.shape[0]]
        if wrong or not 0 < len(set(hidden)) < space.shape[0]:
            raise ValueError(
                f"hidden: must name some, but not all, of the positions 0 to {space.shape[0] - 1}, got {list(hidden)}."
            )
        self._kept = np.setdiff1d(np.arange(space.shape[0]), hidden)
        self.observation_space = spaces.Box(space.low[self._kept], space.high[self._kept], dtype=np.float32)

    def observation(self, observation: NDArray[Any]) -> NDArray[Any]:
        """Return the entries that are not hidden."""
        return np.asarray(observation[self._kept])


def cart_pole_without_velocities(**kwargs: Any) -> gymnasium.Env[Any, Any]:
    """Build CartPole with observations of the cart position and pole angle only."""
    from gymnasium.envs.classic_control import CartPoleEnv

    return HideVelocities(CartPoleEnv(**kwargs), hidden=(1, 3))


def pendulum_without_velocity(**kwargs: Any) -> gymnasium.Env[Any, Any]:
    """Build Pendulum with observations of the cosine and sine of its angle only."""
    from gymnasium.envs.classic_control import PendulumEnv

    return HideVelocities(PendulumEnv(**kwargs), hidden=(2,))


def register() -> None:
    """Register the ids with Gymnasium, without importing the tasks."""
    for name, maker, limit in (
        ("minerva/CartPoleNoVelocity-v1", "cart_pole_without_velocities", 500),
        ("minerva/PendulumNoVelocity-v1", "pendulum_without_velocity", 200),
    ):
        if name not in gymnasium.registry:
            gymnasium.register(name, f"{__name__}:{maker}", max_episode_steps=limit)
