"""Wrappers that make tasks harder on purpose, and the ids they have here."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray


class HideVelocities(gymnasium.ObservationWrapper[NDArray[Any], Any, NDArray[Any]]):
    """Takes entries out of an observation, such as velocities: what is left asks for a memory.

    Args:
        env: Its observations are vectors (a Box with one axis).
        hidden: The positions of the entries that are taken out.
    """

    def __init__(self, env: gymnasium.Env[NDArray[Any], Any], hidden: Sequence[int]) -> None:
        super().__init__(env)
        space = env.observation_space
        if not isinstance(space, spaces.Box) or len(space.shape) != 1:
            raise ValueError(f"env: must observe a vector (a Box with one axis), got {space}.")
        wrong = [position for position in hidden if not 0 <= position < space.shape[0]]
        if wrong or not 0 < len(set(hidden)) < space.shape[0]:
            raise ValueError(
                f"hidden: must name some, but not all, of the positions 0 to {space.shape[0] - 1}, got {list(hidden)}."
            )
        self._kept = np.setdiff1d(np.arange(space.shape[0]), hidden)
        self.observation_space = spaces.Box(space.low[self._kept], space.high[self._kept], dtype=np.float32)

    def observation(self, observation: NDArray[Any]) -> NDArray[Any]:
        """Give what is not hidden."""
        return np.asarray(observation[self._kept])


def cart_pole_without_velocities(**kwargs: Any) -> gymnasium.Env[Any, Any]:
    """Make CartPole that shows the cart's position and the pole's angle alone."""
    from gymnasium.envs.classic_control import CartPoleEnv

    return HideVelocities(CartPoleEnv(**kwargs), hidden=(1, 3))


def pendulum_without_velocity(**kwargs: Any) -> gymnasium.Env[Any, Any]:
    """Make Pendulum that shows the sine and cosine of its angle alone."""
    from gymnasium.envs.classic_control import PendulumEnv

    return HideVelocities(PendulumEnv(**kwargs), hidden=(2,))


def register() -> None:
    """Make the ids known to Gymnasium (nothing of the tasks is imported before one is made)."""
    for name, maker, limit in (
        ("minerva/CartPoleNoVelocity-v1", "cart_pole_without_velocities", 500),
        ("minerva/PendulumNoVelocity-v1", "pendulum_without_velocity", 200),
    ):
        if name not in gymnasium.registry:
            gymnasium.register(name, f"{__name__}:{maker}", max_episode_steps=limit)
