"""The interface of vector environments, and the base class of wrappers around them."""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import Any, ClassVar

import cloudpickle
import numpy as np
from gymnasium import Space
from numpy.typing import NDArray

from minerva.compat.auto_reset import Info
from minerva.compat.stable_baselines.common.tile_images import tile_images

Array = NDArray[Any]
Indices = int | np.integer[Any] | Iterable[int] | None
"""The index of one environment, several indices, or None for all; negative ones count from the end."""
VecEnvStepReturn = tuple[Any, Array, NDArray[np.bool_], list[Info]]
"""Observations ``[N, ...]``, rewards ``[N]``, dones ``[N]`` and infos."""


class AlreadySteppingError(Exception):
    """`step_async` was called twice."""

    def __init__(self) -> None:
        super().__init__("step_async was called again before step_wait")


class NotSteppingError(Exception):
    """`step_wait` was called without `step_async`."""

    def __init__(self) -> None:
        super().__init__("step_wait was called before step_async")


class VecEnv(ABC):
    """N environments that are stepped together and reset automatically.

    Where an episode ends, `step` returns the first observation of the next one; ``infos[i]["terminal_observation"]``
    is the last observation of the episode, and ``infos[i]["TimeLimit.truncated"]`` tells a time limit.

    Args:
        num_envs: Number of environments, N.
        observation_space: Observation space of one environment.
        action_space: Action space of one environment.
    """

    metadata: dict[str, Any] = {"render.modes": ["human", "rgb_array"]}  # noqa: RUF012

    def __init__(self, num_envs: int, observation_space: Space[Any], action_space: Space[Any]) -> None:
        self.num_envs = num_envs
        self.observation_space = observation_space
        self.action_space = action_space

    @abstractmethod
    def reset(self) -> Any:
        """Reset every environment and return the first observations, ``[N, ...]``."""

    @abstractmethod
    def step_async(self, actions: Any) -> None:
        """Start a step with actions ``[N, ...]`` in the form of the action space."""

    @abstractmethod
    def step_wait(self) -> VecEnvStepReturn:
        """Finish the step."""

    @abstractmethod
    def close(self) -> None:
        """Close every environment."""

    @abstractmethod
    def get_attr(self, attr_name: str, indices: Indices = None) -> list[Any]:
        """Return an attribute of some environments."""

    @abstractmethod
    def set_attr(self, attr_name: str, value: Any, indices: Indices = None) -> None:
        """Set an attribute of some environments."""

    @abstractmethod
    def env_method(
        self, method_name: str, *method_args: Any, indices: Indices = None, **method_kwargs: Any
    ) -> list[Any]:
        """Call a method of some environments and return the results."""

    def seed(self, seed: int | None = None, indices: Indices = None) -> list[Any]:
        """Seed environment i with ``seed + i``, None at random; return what the environments return."""
        return [
            self.env_method("seed", None if seed is None else int(seed) + i, indices=i)[0]
            for i in self._get_indices(indices)
        ]

    def step(self, actions: Any) -> VecEnvStepReturn:
        """Step every environment."""
        self.step_async(actions)
        return self.step_wait()

    def get_images(self, *args: Any, **kwargs: Any) -> Sequence[Array]:
        """Return an image of each environment."""
        raise NotImplementedError

    def render(self, mode: str = "human", *args: Any, **kwargs: Any) -> Any:
        """Render the environments.

        Args:
            mode: "rgb_array" returns one image of all environments, ``[H, W, 3]``; "human" shows it in a window.
            *args: Passed to `get_images`.
            **kwargs: Passed to `get_images`.
        """
        try:
            images = self.get_images(*args, **kwargs)
        except NotImplementedError:
            warnings.warn(f"{type(self).__name__} cannot render", RuntimeWarning, stacklevel=2)
            return None
        if mode not in ("human", "rgb_array"):
            raise NotImplementedError(f"mode: must be 'human' or 'rgb_array', got {mode!r}.")
        if not images:
            return None
        if mode == "rgb_array":
            return tile_images(images)
        _show(tile_images(images))
        return None

    @property
    def unwrapped(self) -> VecEnv:
        """The vector environment inside all wrappers."""
        return self

    def getattr_depth_check(self, name: str, already_found: bool) -> str | None:
        """Return the class whose attribute a wrapper hides, or None."""
        return _class_name(self) if already_found and hasattr(self, name) else None

    def _get_indices(self, indices: Indices) -> list[int]:
        if indices is None:
            return list(range(self.num_envs))
        chosen = [indices] if isinstance(indices, (int, np.integer)) else list(indices)
        for i in chosen:
            if not isinstance(i, (int, np.integer)) or not -self.num_envs <= i < self.num_envs:
                raise IndexError(f"indices: must be from {-self.num_envs} to {self.num_envs - 1}, got {i!r}.")
        return [int(i) % self.num_envs for i in chosen]


class VecEnvWrapper(VecEnv):
    """Base class of wrappers around vector environments: a subclass defines `reset` and `step_wait`.

    Attributes that the wrapper does not have are those of the environments that it wraps.

    Args:
        venv: The vector environment to wrap.
        observation_space: Space of the observations; by default that of `venv`.
        action_space: Space of the actions; by default that of `venv`.

    Attributes:
        venv: The wrapped vector environment.
        handles_terminal_observation: Whether the wrapper changes ``infos[i]["terminal_observation"]`` as it changes all
            observations, or changes none. A subclass that defines `reset` or `step_wait` says so itself. Where it does
            not, PPO2 treats a time limit as a termination, because it cannot value the last observation.
    """

    handles_terminal_observation: ClassVar[bool] = False

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if not {"reset", "step_wait"}.isdisjoint(vars(cls)) and "handles_terminal_observation" not in vars(cls):
            cls.handles_terminal_observation = False

    def __init__(
        self, venv: VecEnv, observation_space: Space[Any] | None = None, action_space: Space[Any] | None = None
    ) -> None:
        if not isinstance(venv, VecEnv):
            raise ValueError(f"venv: must be a VecEnv, such as DummyVecEnv([lambda: env]); got {type(venv).__name__}.")
        self.venv = venv
        super().__init__(
            venv.num_envs,
            venv.observation_space if observation_space is None else observation_space,
            venv.action_space if action_space is None else action_space,
        )

    def step_async(self, actions: Any) -> None:
        """Start a step with actions ``[N, ...]`` in the form of the action space."""
        self.venv.step_async(actions)

    @abstractmethod
    def reset(self) -> Any:
        """Reset every environment and return the first observations, ``[N, ...]``."""

    @abstractmethod
    def step_wait(self) -> VecEnvStepReturn:
        """Finish the step."""

    def seed(self, seed: int | None = None, indices: Indices = None) -> list[Any]:
        """Seed environment i with ``seed + i``, None at random; return what the environments return."""
        return self.venv.seed(seed) if indices is None else self.venv.seed(seed, indices)

    def close(self) -> None:
        """Close every environment."""
        self.venv.close()

    def render(self, *args: Any, **kwargs: Any) -> Any:
        """Render the environments."""
        return self.venv.render(*args, **kwargs)

    def get_images(self, *args: Any, **kwargs: Any) -> Sequence[Array]:
        """Return an image of each environment."""
        return self.venv.get_images(*args, **kwargs)

    def get_attr(self, attr_name: str, indices: Indices = None) -> list[Any]:
        """Return an attribute of some environments."""
        return self.venv.get_attr(attr_name, indices)

    def set_attr(self, attr_name: str, value: Any, indices: Indices = None) -> None:
        """Set an attribute of some environments."""
        self.venv.set_attr(attr_name, value, indices)

    def env_method(
        self, method_name: str, *method_args: Any, indices: Indices = None, **method_kwargs: Any
    ) -> list[Any]:
        """Call a method of some environments and return the results."""
        return self.venv.env_method(method_name, *method_args, indices=indices, **method_kwargs)

    @property
    def unwrapped(self) -> VecEnv:
        """The vector environment inside all wrappers."""
        return self.venv.unwrapped

    def __getattr__(self, name: str) -> Any:
        if name == "venv" or name.startswith("__"):  # while the object is built, copied or unpickled
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        hidden = self.getattr_depth_check(name, already_found=False)
        if hidden is not None:
            raise AttributeError(
                f"{name}: is an attribute of {hidden} and of a wrapper around it, so {_class_name(self)}.{name} is "
                "ambiguous; ask the one you mean, such as env.venv."
            )
        return self.getattr_recursive(name)

    def _has_own(self, name: str) -> bool:
        return name in self.__dict__ or hasattr(type(self), name)

    def getattr_recursive(self, name: str) -> Any:
        """Return an attribute of this wrapper or of the first that it wraps which has it."""
        if self._has_own(name):
            return getattr(self, name)
        return self.venv.getattr_recursive(name) if isinstance(self.venv, VecEnvWrapper) else getattr(self.venv, name)

    def getattr_depth_check(self, name: str, already_found: bool) -> str | None:
        """Return the class whose attribute a wrapper hides, or None."""
        own = self._has_own(name)
        if own and already_found:
            return _class_name(self)
        return self.venv.getattr_depth_check(name, own or already_found)


class CloudpickleWrapper:
    """Hold an object that is pickled with cloudpickle, by value where it cannot be imported.

    Args:
        var: The object.
    """

    def __init__(self, var: Any) -> None:
        self.var = var

    def __getstate__(self) -> bytes:
        state: bytes = cloudpickle.dumps(self.var)
        return state

    def __setstate__(self, state: bytes) -> None:
        self.var = cloudpickle.loads(state)


def _class_name(venv: VecEnv) -> str:
    return f"{type(venv).__module__}.{type(venv).__name__}"


def _show(image: NDArray[np.uint8]) -> None:
    """Show an image in a window of OpenCV."""
    try:
        import cv2
    except ImportError as error:
        raise ValueError(
            "mode: 'human' needs OpenCV to show several environments in a window: pip install opencv-python; or use "
            "mode='rgb_array'."
        ) from error
    cv2.imshow("vecenv", image[:, :, ::-1])
    cv2.waitKey(1)
