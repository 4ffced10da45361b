"""Environments and wrappers with gym's older interface."""

from __future__ import annotations

import os
import sys
from abc import abstractmethod
from typing import Any, ClassVar

import gymnasium
import numpy as np
from gymnasium import Space

__all__ = [
    "ActionWrapper",
    "Env",
    "GoalEnv",
    "GymnasiumAdapter",
    "ObservationWrapper",
    "OldInterface",
    "RewardWrapper",
    "Space",
    "Wrapper",
    "with_old_interface",
]

StepReturn = tuple[Any, Any, Any, dict[str, Any]]


class Env:
    """Base class of environments: a subclass defines `step`, `reset` and the two spaces."""

    metadata: dict[str, Any] = {"render.modes": []}  # noqa: RUF012 - subclasses replace it, as an instance or a class
    reward_range: tuple[float, float] = (-float("inf"), float("inf"))
    spec: Any = None
    action_space: Any
    observation_space: Any

    def step(self, action: Any) -> Any:
        """Take a step and return observation, reward, whether the episode is over, and info."""
        raise NotImplementedError

    def reset(self) -> Any:
        """Start an episode and return its first observation."""
        raise NotImplementedError

    def render(self, mode: str = "human") -> Any:
        """Show the environment, or return a picture of it."""
        raise NotImplementedError

    def close(self) -> Any:
        """Release what the environment holds."""

    def seed(self, seed: int | None = None) -> Any:
        """Seed the environment's random numbers."""

    @property
    def unwrapped(self) -> Any:
        """The environment inside all wrappers."""
        return self

    def __str__(self) -> str:
        return f"<{type(self).__name__} instance>" if self.spec is None else f"<{type(self).__name__}<{self.spec.id}>>"

    def __enter__(self) -> Env:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


class GoalEnv(Env):
    """Base class of environments whose observations are dicts with the goal."""

    def reset(self) -> Any:
        """Check the observation space."""
        for key in ("observation", "achieved_goal", "desired_goal"):
            if (
                not isinstance(self.observation_space, gymnasium.spaces.Dict)
                or key not in self.observation_space.spaces
            ):
                raise gymnasium.error.Error(f"observation_space: must be a Dict with {key!r}, got it without.")

    @abstractmethod
    def compute_reward(self, achieved_goal: Any, desired_goal: Any, info: dict[str, Any]) -> Any:
        """Return the reward for a goal and what was achieved."""


class Wrapper(Env):
    """Base class of wrappers; attributes that it does not have are those of the wrapped environment.

    Args:
        env: The environment. One of Gymnasium gets the older interface.
    """

    def __init__(self, env: Any) -> None:
        self.env = with_old_interface(env)
        self.action_space = self.env.action_space
        self.observation_space = self.env.observation_space
        self.reward_range = getattr(self.env, "reward_range", Env.reward_range)
        self.metadata = getattr(self.env, "metadata", Env.metadata)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name == "env":  # also while it is unpickled, before it has an environment
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return getattr(self.env, name)

    @property
    def spec(self) -> Any:
        """What the environment was registered with."""
        return getattr(self.env, "spec", None)

    @classmethod
    def class_name(cls) -> str:
        """Return the name of the wrapper."""
        return cls.__name__

    def step(self, action: Any) -> Any:
        """Take a step."""
        return self.env.step(action)

    def reset(self, **kwargs: Any) -> Any:
        """Start an episode."""
        return self.env.reset(**kwargs)

    def render(self, mode: str = "human", **kwargs: Any) -> Any:
        """Show the environment, or return a picture of it."""
        return self.env.render(mode, **kwargs)

    def close(self) -> Any:
        """Release what the environment holds."""
        return self.env.close()

    def seed(self, seed: int | None = None) -> Any:
        """Seed the environment's random numbers."""
        return self.env.seed(seed)

    def compute_reward(self, achieved_goal: Any, desired_goal: Any, info: dict[str, Any]) -> Any:
        """Return the reward for a goal and what was achieved."""
        return self.env.compute_reward(achieved_goal, desired_goal, info)

    def __str__(self) -> str:
        return f"<{type(self).__name__}{self.env}>"

    __repr__ = __str__

    @property
    def unwrapped(self) -> Any:
        """The environment inside all wrappers."""
        return self.env.unwrapped


class ObservationWrapper(Wrapper):
    """Base class of wrappers that change observations."""

    def reset(self, **kwargs: Any) -> Any:
        """Start an episode."""
        return self.observation(self.env.reset(**kwargs))

    def step(self, action: Any) -> StepReturn:
        """Take a step."""
        observation, reward, done, info = self.env.step(action)
        return self.observation(observation), reward, done, info

    @abstractmethod
    def observation(self, observation: Any) -> Any:
        """Return the changed observation."""
        raise NotImplementedError


class RewardWrapper(Wrapper):
    """Base class of wrappers that change rewards."""

    def step(self, action: Any) -> StepReturn:
        """Take a step."""
        observation, reward, done, info = self.env.step(action)
        return observation, self.reward(reward), done, info

    @abstractmethod
    def reward(self, reward: Any) -> Any:
        """Return the changed reward."""
        raise NotImplementedError


class ActionWrapper(Wrapper):
    """Base class of wrappers that change actions."""

    def step(self, action: Any) -> Any:
        """Take a step."""
        return self.env.step(self.action(action))

    @abstractmethod
    def action(self, action: Any) -> Any:
        """Return the changed action."""
        raise NotImplementedError

    def reverse_action(self, action: Any) -> Any:
        """Return the action before the change."""
        raise NotImplementedError


def old_step(result: Any) -> Any:
    """Convert the five values of a Gymnasium step to the four of the older interface; four are returned as they are."""
    if len(result) != 5:
        return result
    observation, reward, terminated, truncated, info = result
    if truncated:
        info = {**info, "TimeLimit.truncated": not terminated}
    return observation, reward, bool(terminated or truncated), info


def old_reset(result: Any) -> Any:
    """Return the observation of a reset, with or without the info of Gymnasium's."""
    pair = isinstance(result, tuple) and len(result) == 2 and isinstance(result[1], dict)
    return result[0] if pair else result


class GymnasiumAdapter(Env):
    """A Gymnasium environment with the older interface; other attributes are the environment's.

    Args:
        env: The Gymnasium environment.

    Attributes:
        gymnasium_env: It.
    """

    _OWN: ClassVar[set[str]] = {"gymnasium_env", "_seed", "action_space", "observation_space", "metadata", "spec"}

    def __init__(self, env: gymnasium.Env[Any, Any]) -> None:
        self.gymnasium_env = env
        self._seed: int | None = None
        self.action_space = env.action_space
        self.observation_space = env.observation_space
        self.spec = env.spec
        self.metadata = {**env.metadata, "render.modes": env.metadata.get("render_modes", [])}

    def __getattr__(self, name: str) -> Any:
        if name in GymnasiumAdapter._OWN or (name.startswith("__") and name.endswith("__")):
            raise AttributeError(name)
        return self.gymnasium_env.get_wrapper_attr(name)

    def __setattr__(self, name: str, value: Any) -> None:
        if name in GymnasiumAdapter._OWN:
            object.__setattr__(self, name, value)
        elif not self.gymnasium_env.set_wrapper_attr(name, value, force=False):
            setattr(self.gymnasium_env.unwrapped, name, value)

    def step(self, action: Any) -> Any:
        """Take a step; ``info["TimeLimit.truncated"]`` is present where a limit ended the episode."""
        return old_step(self.gymnasium_env.step(action))

    def reset(self, **kwargs: Any) -> Any:
        """Start an episode, with the seed set for it if any."""
        return old_reset(self.gymnasium_env.reset(**{"seed": self.take_seed(), **kwargs}))

    def take_seed(self) -> int | None:
        """Return the seed of the next reset, once."""
        seed, self._seed = self._seed, None
        return seed

    def seed(self, seed: int | None = None) -> list[int]:
        """Set the seed of the next reset."""
        self._seed = random_seed() if seed is None else int(seed)
        return [self._seed]

    def render(self, mode: str = "human", **kwargs: Any) -> Any:
        """Show the environment, or return a picture of it."""
        if mode == "human" and not has_display():
            return None
        self.gymnasium_env.unwrapped.render_mode = mode
        return self.gymnasium_env.render(**kwargs)

    def close(self) -> None:
        """Release what the environment holds."""
        self.gymnasium_env.close()

    @property
    def env(self) -> Any:
        """What the outermost wrapper wraps, with the older interface."""
        if not isinstance(self.gymnasium_env, gymnasium.Wrapper):
            raise AttributeError("env: there is no wrapper around this environment.")
        return with_old_interface(self.gymnasium_env.env)

    @property
    def unwrapped(self) -> Any:
        """The environment inside all wrappers, with the older interface."""
        return (
            self
            if self.gymnasium_env.unwrapped is self.gymnasium_env
            else with_old_interface(self.gymnasium_env.unwrapped)
        )

    def __str__(self) -> str:
        return str(self.gymnasium_env)


class OldInterface:
    """Add the older interface to a class of Gymnasium, as its first base class."""

    _next_seed: int | None = None

    def step(self, action: Any) -> Any:
        """Take a step."""
        return old_step(super().step(action))  # type: ignore[misc]

    def reset(self) -> Any:
        """Start an episode, with the seed set for it if any."""
        seed, self._next_seed = self._next_seed, None
        return old_reset(super().reset(seed=seed))  # type: ignore[misc]

    def seed(self, seed: int | None = None) -> list[int]:
        """Set the seed of the next reset."""
        self._next_seed = random_seed() if seed is None else int(seed)
        return [self._next_seed]

    def render(self, mode: str = "human") -> Any:
        """Show the environment, or return a picture of it."""
        if mode == "human" and not has_display():
            return None
        self.render_mode = mode
        return super().render()  # type: ignore[misc]


def with_old_interface(env: Any) -> Any:
    """Return an environment with the older interface."""
    is_new = isinstance(env, gymnasium.Env) and not isinstance(env, OldInterface)
    return GymnasiumAdapter(env) if is_new else env


def random_seed() -> int:
    """Return a random seed, from the operating system's random numbers."""
    return int(np.random.SeedSequence().generate_state(1)[0] >> 1)


_said_no_display = False


def has_display() -> bool:
    """Return whether a window can be opened; say once if not."""
    global _said_no_display
    if not sys.platform.startswith("linux") or any(
        os.environ.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY", "SDL_VIDEODRIVER")
    ):
        return True
    if not _said_no_display:
        print(
            "render: there is no display, so nothing is shown; render('rgb_array') returns pictures.", file=sys.stderr
        )
        _said_no_display = True
    return False
