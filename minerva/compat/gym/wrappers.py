"""Wrappers of environments with the older interface."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from gymnasium import spaces

from minerva.compat.gym.core import ActionWrapper, ObservationWrapper, RewardWrapper, StepReturn, Wrapper


class TimeLimit(Wrapper):
    """End an episode after a number of steps, with ``TimeLimit.truncated`` in the info.

    Args:
        env: The environment.
        max_episode_steps: Length of an episode (default: the one that the environment was registered with).
    """

    def __init__(self, env: Any, max_episode_steps: int | None = None) -> None:
        super().__init__(env)
        self._max_episode_steps = self.spec.max_episode_steps if max_episode_steps is None else max_episode_steps
        self._elapsed_steps: int | None = None

    def reset(self, **kwargs: Any) -> Any:
        """Start an episode."""
        self._elapsed_steps = 0
        return self.env.reset(**kwargs)

    def step(self, action: Any) -> StepReturn:
        """Take a step."""
        if self._elapsed_steps is None:
            raise RuntimeError("step: reset must be called before the first step.")
        observation, reward, done, info = self.env.step(action)
        self._elapsed_steps += 1
        if self._elapsed_steps >= self._max_episode_steps:
            info = {**info, "TimeLimit.truncated": not done}
            done = True
        return observation, reward, done, info


class FlattenObservation(ObservationWrapper):
    """Flatten observations to a vector."""

    def __init__(self, env: Any) -> None:
        super().__init__(env)
        self.observation_space = spaces.flatten_space(self.env.observation_space)

    def observation(self, observation: Any) -> Any:
        """Return the vector."""
        return spaces.flatten(self.env.observation_space, observation)


class TransformObservation(ObservationWrapper):
    """Apply a function to observations.

    Args:
        env: The environment.
        f: The function.
    """

    def __init__(self, env: Any, f: Callable[[Any], Any]) -> None:
        super().__init__(env)
        self.f = f

    def observation(self, observation: Any) -> Any:
        """Return the changed observation."""
        return self.f(observation)


class TransformReward(RewardWrapper):
    """Apply a function to rewards.

    Args:
        env: The environment.
        f: The function.
    """

    def __init__(self, env: Any, f: Callable[[Any], Any]) -> None:
        super().__init__(env)
        self.f = f

    def reward(self, reward: Any) -> Any:
        """Return the changed reward."""
        return self.f(reward)


class ClipAction(ActionWrapper):
    """Clip actions to the bounds of the action space."""

    def action(self, action: Any) -> Any:
        """Return the clipped action."""
        return np.clip(action, self.action_space.low, self.action_space.high)


class RescaleAction(ActionWrapper):
    """Rescale actions from ``[a, b]`` to the bounds of the action space.

    Args:
        env: The environment.
        a: Lower bound.
        b: Upper bound.
    """

    def __init__(self, env: Any, a: float, b: float) -> None:
        super().__init__(env)
        inner = self.env.action_space
        self.a = np.full(inner.shape, a, inner.dtype)
        self.b = np.full(inner.shape, b, inner.dtype)
        self.action_space = spaces.Box(self.a, self.b, dtype=inner.dtype)

    def action(self, action: Any) -> Any:
        """Return the action in the environment's bounds."""
        inner = self.env.action_space
        share = (np.clip(action, self.a, self.b) - self.a) / (self.b - self.a)
        return np.clip(inner.low + share * (inner.high - inner.low), inner.low, inner.high)


class Monitor(Wrapper):
    """Not available: it raises a ValueError that names what is."""

    def __init__(self, env: Any, *args: Any, **kwargs: Any) -> None:
        raise ValueError(
            "gym.wrappers.Monitor: is not available; stable_baselines.bench.Monitor records episodes, and "
            "VecVideoRecorder records videos."
        )
