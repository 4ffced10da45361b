"""Vector environments with the face of stable-baselines: `step` returns four values and restarts by itself.

For training they have a second face, `batch`: the same environments as the rest of Minerva sees them, where the last
observation of an episode is not lost and a time limit is not an end.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import Any

import gymnasium
import numpy as np
from gymnasium import Space, spaces
from numpy.typing import NDArray

from minerva.compat.stable_baselines.groups import CallableGroup, CallableLocalGroup, ProcessGroup
from minerva.compat.stable_baselines.old_env import EnvFactory, Info, with_old_face
from minerva.environments.base import BatchedEnvironment
from minerva.environments.gymnasium_backend import GymnasiumBatch

Indices = int | Iterable[int] | None
"""Which environments: one, some, or all."""
OldStep = tuple[Any, NDArray[np.float32], NDArray[np.bool_], list[Info]]
"""Observations, rewards ``[N]``, ends ``[N]`` and infos."""


class VecEnv(ABC):
    """N environments that are stepped together.

    Attributes:
        num_envs: N.
        observation_space: Of one environment.
        action_space: Of one environment.
    """

    num_envs: int
    observation_space: Space[Any]
    action_space: Space[Any]

    @abstractmethod
    def reset(self) -> Any:
        """Start an episode everywhere and return the first observations, ``[N, ...]``."""

    @abstractmethod
    def step_async(self, actions: Any) -> None:
        """Take the actions for the next step, ``[N, ...]`` in the action space's own form."""

    @abstractmethod
    def step_wait(self) -> OldStep:
        """Take that step; where an episode ends, the observation is the first of the next one."""

    def step(self, actions: Any) -> OldStep:
        """Step everywhere; where an episode ends, the observation is the first of the next one."""
        self.step_async(actions)
        return self.step_wait()

    @abstractmethod
    def batch(self, seed: int) -> BatchedEnvironment:
        """Give the same environments as a trainer sees them."""

    @property
    @abstractmethod
    def unwrapped(self) -> GroupVecEnv:
        """What stands behind all wrappers."""

    # What is asked of each environment

    def env_method(self, method_name: str, *args: Any, indices: Indices = None, **kwargs: Any) -> list[Any]:
        """Call a method of some environments, or of a wrapper around them."""
        return self.unwrapped.call(method_name, args, kwargs, indices)

    def get_attr(self, attr_name: str, indices: Indices = None) -> list[Any]:
        """Read an attribute of some environments."""
        return self.env_method("get_wrapper_attr", attr_name, indices=indices)

    def set_attr(self, attr_name: str, value: Any, indices: Indices = None) -> None:
        """Set an attribute of some environments, on the wrapper that has it."""
        self.env_method("set_wrapper_attr", attr_name, value, indices=indices)

    def seed(self, seed: int, indices: Indices = None) -> list[int]:
        """Seed the next `reset`: environment i with ``seed + i``."""
        return self.unwrapped.seed_next(seed, indices)

    def get_images(self) -> list[NDArray[np.uint8]]:
        """Render each environment; nothing of those that were made without the render mode "rgb_array"."""
        return [image for image in self.env_method("render") if isinstance(image, np.ndarray)]

    def render(self, mode: str = "human") -> NDArray[np.uint8] | None:
        """Render each environment, in the way that it was made for (``render_mode``).

        Args:
            mode: "rgb_array" for one picture of all, ``[H, W, 3]``; "human" where they have windows of their own.
        """
        images = self.get_images()
        return tiled(images) if mode == "rgb_array" and images else None

    def close(self) -> None:
        """Close every environment."""
        self.unwrapped.group.close()


class GroupVecEnv(VecEnv):
    """Environments of this process or of worker processes.

    Args:
        env_fns: One function an environment; each makes a `gymnasium.Env`.
        group: The environments that these made.

    Attributes:
        moved: Whether they were reset or stepped through this face since a trainer last began with them.
        first_seed: The seed that was given, if one was.
    """

    def __init__(self, env_fns: Sequence[EnvFactory], group: CallableGroup) -> None:
        self.group = group
        self.num_envs = len(env_fns)
        self.observation_space, self.action_space = group.spaces
        self.moved = False
        self.first_seed: int | None = None
        self._factories = list(env_fns)
        self._actions: list[Any] = []

    @property
    def unwrapped(self) -> GroupVecEnv:
        """These themselves."""
        return self

    def reset(self) -> Any:
        """Start an episode everywhere and return the first observations, ``[N, ...]``."""
        self.moved = True
        return stacked(self.observation_space, self.call("restart"))

    def step_async(self, actions: Any) -> None:
        """Take the actions for the next step, ``[N, ...]`` in the action space's own form."""
        if len(actions) != self.num_envs:
            raise ValueError(f"actions: must be one for each of the {self.num_envs} environments, got {len(actions)}.")
        self._actions = list(actions)

    def step_wait(self) -> OldStep:
        """Take that step; where an episode ends, the observation is the first of the next one."""
        self.moved = True
        answers = self.group.call("advance", [((action,), {}) for action in self._actions])
        observations, rewards, ends, infos = zip(*answers, strict=True)
        return (
            stacked(self.observation_space, observations),
            np.array(rewards, dtype=np.float32),
            np.array(ends, dtype=np.bool_),
            list(infos),
        )

    def batch(self, seed: int) -> BatchedEnvironment:
        """Give the same environments as a trainer sees them."""
        return GymnasiumBatch(self._factories, seed, group=self.group)

    def call(
        self, name: str, args: Sequence[Any] = (), kwargs: Info | None = None, indices: Indices = None
    ) -> list[Any]:
        """Call a method of some environments, or of a wrapper around them."""
        chosen = chosen_indices(indices, self.num_envs)
        given = (tuple(args), kwargs or {})
        answers = self.group.call(name, [given if i in chosen else None for i in range(self.num_envs)])
        return [answers[i] for i in chosen]

    def seed_next(self, seed: int, indices: Indices = None) -> list[int]:
        """Seed the next `reset`: environment i with ``seed + i``."""
        self.first_seed = seed
        seeds = [seed + i for i in range(self.num_envs)]
        chosen = chosen_indices(indices, self.num_envs)
        self.group.call("seed_next", [((seeds[i],), {}) if i in chosen else None for i in range(self.num_envs)])
        return [seeds[i] for i in chosen]


class DummyVecEnv(GroupVecEnv):
    """Environments of this process, stepped one after the other.

    Args:
        env_fns: One function an environment; each makes a `gymnasium.Env`.
    """

    def __init__(self, env_fns: Sequence[EnvFactory]) -> None:
        factories = checked(env_fns)
        self._local = CallableLocalGroup(factories)
        super().__init__(factories, self._local)

    @property
    def envs(self) -> list[gymnasium.Env[Any, Any]]:
        """The environments, as they were made."""
        return [env.env for env in self._local.envs if isinstance(env, gymnasium.Wrapper)]


class SubprocVecEnv(GroupVecEnv):
    """Environments of worker processes, one each, which step at the same time.

    As ever with processes of Python, a script that makes one does so under ``if __name__ == "__main__":``.

    Args:
        env_fns: One function an environment; each makes a `gymnasium.Env`.
        start_method: How processes are started: "forkserver" (None), "spawn" or "fork".
    """

    def __init__(self, env_fns: Sequence[EnvFactory], start_method: str | None = None) -> None:
        factories = checked(env_fns)
        super().__init__(factories, ProcessGroup(factories, start_method))


def checked(env_fns: Sequence[EnvFactory]) -> list[EnvFactory]:
    """Wrap what each function makes.

    Raises:
        ValueError: They are no list of functions.
    """
    if not isinstance(env_fns, (list, tuple)) or not env_fns or not all(callable(make) for make in env_fns):
        raise ValueError(
            "env_fns: must be a list of functions that each make an environment, such as [lambda: env]; "
            f"got {env_fns!r}."
        )
    return [with_old_face(make) for make in env_fns]


def chosen_indices(indices: Indices, count: int) -> list[int]:
    """Name the environments that are meant."""
    if indices is None:
        return list(range(count))
    return [indices] if isinstance(indices, int) else list(indices)


def stacked(space: Space[Any], observations: Sequence[Any]) -> Any:
    """Stack observations of one space: an array ``[N, ...]``, or a dict or tuple of them."""
    if isinstance(space, spaces.Dict):
        return {key: stacked(child, [one[key] for one in observations]) for key, child in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(stacked(child, [one[i] for one in observations]) for i, child in enumerate(space.spaces))
    return np.stack([np.asarray(one, dtype=space.dtype) for one in observations])


def tiled(images: Sequence[NDArray[np.uint8]]) -> NDArray[np.uint8]:
    """Lay pictures ``[H, W, C]`` of one size out in a square of them, row by row, black where none is left."""
    side = int(np.ceil(np.sqrt(len(images))))
    rows = int(np.ceil(len(images) / side))
    height, width, channels = images[0].shape
    sheet = np.zeros((rows * height, side * width, channels), dtype=np.uint8)
    for k, image in enumerate(images):
        y, x = divmod(k, side)
        sheet[y * height : (y + 1) * height, x * width : (x + 1) * width] = image
    return sheet
