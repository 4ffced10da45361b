"""Environments in which the right action is the last observation, for tests."""

from __future__ import annotations

from typing import Any

import numpy as np

from minerva.compat.gym import spaces
from minerva.compat.gym.core import Env


class IdentityEnv(Env):
    """Reward 1 for the action that equals the last observation.

    Args:
        dim: Number of actions and observations (default: 1); only without `space`.
        space: Space of actions and observations.
        ep_length: Steps per episode.
    """

    def __init__(self, dim: int | None = None, space: Any = None, ep_length: int = 100) -> None:
        if space is not None and dim is not None:
            raise AssertionError(f"dim: must be None where a space is given, got {dim}.")
        self.action_space = self.observation_space = spaces.Discrete(dim or 1) if space is None else space
        self.ep_length = ep_length
        self.num_resets = -1  # the first reset is the one below
        self.reset()

    def reset(self) -> Any:
        """Start an episode."""
        self.current_step = 0
        self.num_resets += 1
        self._choose_next_state()
        return self.state

    def step(self, action: Any) -> tuple[Any, float, bool, dict[str, Any]]:
        """Take a step."""
        reward = self._get_reward(action)
        self._choose_next_state()
        self.current_step += 1
        return self.state, reward, self.current_step >= self.ep_length, {}

    def seed(self, seed: int | None = None) -> list[int]:
        """Seed the observations."""
        seeds = self.action_space.seed(seed)
        return [int(seeds)] if isinstance(seeds, int) else list(seeds)

    def render(self, mode: str = "human") -> None:
        """Show nothing."""

    def _choose_next_state(self) -> None:
        self.state = self.action_space.sample()

    def _get_reward(self, action: Any) -> float:
        return 1.0 if np.all(self.state == action) else 0.0


class IdentityEnvBox(IdentityEnv):
    """Reward 1 for an action that is close to the last observation.

    Args:
        low: Lower bound.
        high: Upper bound.
        eps: The largest distance that is rewarded.
        ep_length: Steps per episode.
    """

    def __init__(self, low: float = -1, high: float = 1, eps: float = 0.05, ep_length: int = 100) -> None:
        self.eps = eps
        super().__init__(space=spaces.Box(low, high, (1,), np.float32), ep_length=ep_length)

    def _get_reward(self, action: Any) -> float:
        return 1.0 if np.all(np.abs(self.state - action) <= self.eps) else 0.0


class IdentityEnvMultiDiscrete(IdentityEnv):
    """`IdentityEnv` with two actions of `dim` values.

    Args:
        dim: Number of values.
        ep_length: Steps per episode.
    """

    def __init__(self, dim: int = 1, ep_length: int = 100) -> None:
        super().__init__(space=spaces.MultiDiscrete([dim, dim]), ep_length=ep_length)


class IdentityEnvMultiBinary(IdentityEnv):
    """`IdentityEnv` with `dim` binary actions.

    Args:
        dim: Number of actions.
        ep_length: Steps per episode.
    """

    def __init__(self, dim: int = 1, ep_length: int = 100) -> None:
        super().__init__(space=spaces.MultiBinary(dim), ep_length=ep_length)
