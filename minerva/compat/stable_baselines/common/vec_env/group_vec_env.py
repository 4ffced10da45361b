"""Vector environments with the interface of stable-baselines: `step` returns four values and resets automatically.

For training, `batch` returns the same environments with Minerva's interface, which keeps the last observation of an
episode and does not treat a time limit as termination.
"""

from __future__ import annotations

import multiprocessing
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import Any

import gymnasium
import numpy as np
from gymnasium import Space, spaces
from numpy.typing import NDArray

from minerva.compat.auto_reset import EnvFactory, Info, with_auto_reset
from minerva.environments.base import BatchedEnvironment
from minerva.environments.groups import Group
from minerva.environments.gymnasium_backend import GymnasiumBatch
from minerva.environments.workers import LocalGroup, SubprocessGroup

Indices = int | Iterable[int] | None
"""The index of one environment, several indices, or None for all."""
VecEnvStepReturn = tuple[Any, NDArray[np.float32], NDArray[np.bool_], list[Info]]
"""Observations ``[N, ...]``, rewards ``[N]``, dones ``[N]`` and infos."""


class VecEnv(ABC):
    """N environments that are stepped together.

    Attributes:
        num_envs: Number of environments, N.
        observation_space: Observation space of one environment.
        action_space: Action space of one environment.
    """

    num_envs: int
    observation_space: Space[Any]
    action_space: Space[Any]

    @abstractmethod
    def reset(self) -> Any:
        """Reset every environment and return the first observations, ``[N, ...]``."""

    @abstractmethod
    def step_async(self, actions: Any) -> None:
        """Store the actions of the next step, ``[N, ...]`` in the form of the action space."""

    @abstractmethod
    def step_wait(self) -> VecEnvStepReturn:
        """Take the step; where an episode ends, the observation is the first of the next one."""

    def step(self, actions: Any) -> VecEnvStepReturn:
        """Step every environment; where an episode ends, the observation is the first of the next one."""
        self.step_async(actions)
        return self.step_wait()

    @abstractmethod
    def batch(self, seed: int) -> BatchedEnvironment:
        """Return the same environments with Minerva's interface, for a trainer."""

    @property
    @abstractmethod
    def unwrapped(self) -> GroupVecEnv:
        """The vector environment inside all wrappers."""

    # Calls to single environments

    def env_method(self, method_name: str, *args: Any, indices: Indices = None, **kwargs: Any) -> list[Any]:
        """Call a method of some environments or of a wrapper around them, and return the results."""
        return self.unwrapped.call(method_name, args, kwargs, indices)

    def get_attr(self, attr_name: str, indices: Indices = None) -> list[Any]:
        """Return an attribute of some environments."""
        return self.env_method("get_wrapper_attr", attr_name, indices=indices)

    def set_attr(self, attr_name: str, value: Any, indices: Indices = None) -> None:
        """Set an attribute of some environments, on the wrapper that has it."""
        self.env_method("set_wrapper_attr", attr_name, value, indices=indices)

    def seed(self, seed: int, indices: Indices = None) -> list[int]:
        """Seed the next `reset`: environment i with ``seed + i``; return the seeds."""
        return self.unwrapped.seed_next(seed, indices)

    def get_images(self) -> list[NDArray[np.uint8]]:
        """Return an image of each environment that was made with the render mode "rgb_array"."""
        return [image for image in self.env_method("render") if isinstance(image, np.ndarray)]

    def render(self, mode: str = "human") -> NDArray[np.uint8] | None:
        """Render each environment in its own ``render_mode``.

        Args:
            mode: "rgb_array" returns one image of all environments, ``[H, W, 3]``; "human" returns None.
        """
        images = self.get_images()
        return tile_images(images) if mode == "rgb_array" and images else None

    def close(self) -> None:
        """Close every environment."""
        self.unwrapped.group.close()


class GroupVecEnv(VecEnv):
    """Environments in this process or in worker processes.

    Args:
        env_fns: One function per environment; each makes a `gymnasium.Env`.
        group: The environments made by these functions.

    Attributes:
        moved: Whether `reset` or `step` was called since training last started.
        first_seed: The seed that was set, or None.
    """

    def __init__(self, env_fns: Sequence[EnvFactory], group: Group) -> None:
        self.group = group
        self.num_envs = len(env_fns)
        self.observation_space, self.action_space = group.spaces
        self.moved = False
        self.first_seed: int | None = None
        self._factories = list(env_fns)
        self._actions: list[Any] = []

    @property
    def unwrapped(self) -> GroupVecEnv:
        """This vector environment itself."""
        return self

    def reset(self) -> Any:
        """Reset every environment and return the first observations, ``[N, ...]``."""
        self.moved = True
        return stack_observations(self.observation_space, self.call("restart"))

    def step_async(self, actions: Any) -> None:
        """Store the actions of the next step, ``[N, ...]`` in the form of the action space."""
        if len(actions) != self.num_envs:
            raise ValueError(f"actions: must be {self.num_envs}, one per environment, got {len(actions)}.")
        self._actions = list(actions)

    def step_wait(self) -> VecEnvStepReturn:
        """Take the step; where an episode ends, the observation is the first of the next one."""
        self.moved = True
        results = self.group.call("advance", [((action,), {}) for action in self._actions])
        observations, rewards, dones, infos = zip(*results, strict=True)
        return (
            stack_observations(self.observation_space, observations),
            np.array(rewards, dtype=np.float32),
            np.array(dones, dtype=np.bool_),
            list(infos),
        )

    def batch(self, seed: int) -> BatchedEnvironment:
        """Return the same environments with Minerva's interface, for a trainer."""
        return GymnasiumBatch(self._factories, seed, group=self.group)

    def call(
        self, name: str, args: Sequence[Any] = (), kwargs: Info | None = None, indices: Indices = None
    ) -> list[Any]:
        """Call a method of some environments or of a wrapper around them, and return the results."""
        chosen = chosen_indices(indices, self.num_envs)
        arguments = (tuple(args), kwargs or {})
        results = self.group.call(name, [arguments if i in chosen else None for i in range(self.num_envs)])
        return [results[i] for i in chosen]

    def seed_next(self, seed: int, indices: Indices = None) -> list[int]:
        """Seed the next `reset`: environment i with ``seed + i``; return the seeds."""
        self.first_seed = seed
        seeds = [seed + i for i in range(self.num_envs)]
        chosen = chosen_indices(indices, self.num_envs)
        self.group.call("seed_next", [((seeds[i],), {}) if i in chosen else None for i in range(self.num_envs)])
        return [seeds[i] for i in chosen]


class DummyVecEnv(GroupVecEnv):
    """Environments in this process, stepped one after the other.

    Args:
        env_fns: One function per environment; each makes a `gymnasium.Env`.
    """

    def __init__(self, env_fns: Sequence[EnvFactory]) -> None:
        factories = checked_factories(env_fns)
        self._local = LocalGroup(factories)
        super().__init__(factories, self._local)

    @property
    def envs(self) -> list[gymnasium.Env[Any, Any]]:
        """The environments, without the wrapper for automatic reset."""
        return [env.env for env in self._local.envs if isinstance(env, gymnasium.Wrapper)]


class SubprocVecEnv(GroupVecEnv):
    """Environments in worker processes, one per environment, stepped in parallel.

    Each worker is a new Python interpreter, so a script needs no ``if __name__ == "__main__":``.

    Args:
        env_fns: One function per environment; each makes a `gymnasium.Env`.
        start_method: Checked and ignored: workers always start as new interpreters.
    """

    def __init__(self, env_fns: Sequence[EnvFactory], start_method: str | None = None) -> None:
        factories = checked_factories(env_fns)
        if start_method not in (None, *multiprocessing.get_all_start_methods()):
            known = ", ".join(multiprocessing.get_all_start_methods())
            raise ValueError(f"start_method: must be one of {known} or None, got {start_method!r}.")
        super().__init__(factories, SubprocessGroup(factories, num_workers=len(factories)))


def checked_factories(env_fns: Sequence[EnvFactory]) -> list[EnvFactory]:
    """Check the functions and wrap the environments that they make.

    Raises:
        ValueError: `env_fns` is not a list of functions.
    """
    if not isinstance(env_fns, (list, tuple)) or not env_fns or not all(callable(make) for make in env_fns):
        raise ValueError(
            "env_fns: must be a list of functions that each make an environment, such as [lambda: env]; "
            f"got {env_fns!r}."
        )
    return [with_auto_reset(make) for make in env_fns]


def chosen_indices(indices: Indices, count: int) -> list[int]:
    """Return the indices as a list."""
    if indices is None:
        return list(range(count))
    return [indices] if isinstance(indices, int) else list(indices)


def stack_observations(space: Space[Any], observations: Sequence[Any]) -> Any:
    """Stack observations of one space into an array ``[N, ...]``, or a dict or tuple of arrays."""
    if isinstance(space, spaces.Dict):
        return {key: stack_observations(s, [obs[key] for obs in observations]) for key, s in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(stack_observations(s, [obs[i] for obs in observations]) for i, s in enumerate(space.spaces))
    return np.stack([np.asarray(obs, dtype=space.dtype) for obs in observations])


def tile_images(images: Sequence[NDArray[np.uint8]]) -> NDArray[np.uint8]:
    """Tile images ``[H, W, C]`` of one size into a square grid, row by row; empty cells are black."""
    side = int(np.ceil(np.sqrt(len(images))))
    rows = int(np.ceil(len(images) / side))
    height, width, channels = images[0].shape
    sheet = np.zeros((rows * height, side * width, channels), dtype=np.uint8)
    for k, image in enumerate(images):
        y, x = divmod(k, side)
        sheet[y * height : (y + 1) * height, x * width : (x + 1) * width] = image
    return sheet
