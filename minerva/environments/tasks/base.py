"""What a task of the batched MuJoCo backend is: a model, and functions of batched arrays."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from minerva.environments.tasks.arrays import Array

if TYPE_CHECKING:
    import mujoco

Place = tuple[slice, tuple[int, ...]]
"""Where a derived quantity is among the columns, and its shape."""


class State:
    """What a task sees of N simulations.

    ``state["name"]`` is a sensor of the model by its name, ``[N, size]``, or one of the task's `fields`, ``[N, ...]``.

    Attributes:
        qpos: Positions, ``[N, nq]``.
        qvel: Velocities, ``[N, nv]``.
        memory: What `Task.reset` has drawn for the whole episode, ``[N, memory_size]``.
    """

    __slots__ = ("_derived", "_places", "memory", "qpos", "qvel")

    def __init__(self, qpos: Array, qvel: Array, memory: Array, derived: Array, places: Mapping[str, Place]) -> None:
        self.qpos, self.qvel, self.memory = qpos, qvel, memory
        self._derived, self._places = derived, places

    def __getitem__(self, name: str) -> Array:
        columns, shape = self._places[name]
        return self._derived[:, columns].reshape(len(self._derived), *shape)


class Start(NamedTuple):
    """How n episodes begin."""

    qpos: Array  # [n, nq]
    qvel: Array  # [n, nv]
    memory: Array | None = None  # [n, memory_size]


class Draws:
    """Random numbers for the environments that restart, each from its environment's own generator.

    Args:
        generators: One per environment that restarts.
        environments: Their numbers.
    """

    def __init__(self, generators: Sequence[np.random.Generator], environments: NDArray[np.int64]) -> None:
        self._generators = generators
        self.environments = environments

    def uniform(self, low: Any, high: Any, size: int) -> NDArray[np.float64]:
        """Draw ``[n, size]`` numbers; bounds are numbers or arrays ``[size]``."""
        return np.stack([generator.uniform(low, high, size) for generator in self._generators])

    def normal(self, size: int) -> NDArray[np.float64]:
        """Draw ``[n, size]`` numbers from the standard normal distribution."""
        return np.stack([generator.standard_normal(size) for generator in self._generators])


class Task:
    """A task: a model, and how episodes begin, what is observed, what is rewarded and when an episode ends.

    Every function takes and returns arrays of all environments at once and must treat each row alone. Written with the
    operators that NumPy arrays and torch tensors share, and the functions of `minerva.environments.tasks.arrays`, it
    runs on both. A subclass implements `build`, `reset`, `observation` and `reward`; its constructor, if it has one,
    takes keyword arguments with defaults, which are the task's `env_kwargs`, and calls this one at its end.

    Attributes:
        frame_skip: Simulation steps per environment step.
        fields: Names of fields of `mujoco.MjData` that the task reads, such as ``"xpos"``. Where a sensor can measure
            it, a sensor is faster: with fields, each simulation passes through Python once per environment step.
        refresh: Whether sensors and fields belong to the state after the step. Otherwise they are as `mj_step` leaves
            them: of the state before its last simulation step. (Sensors of forces and accelerations always are.)
        memory_size: How many numbers `reset` keeps per environment for the whole episode.
        settle_steps: Simulation steps without control before an episode begins.
        without_contacts: Whether a start is drawn again while it has contacts.
        model: What `build` has returned.
    """

    frame_skip: int = 1
    fields: tuple[str, ...] = ()
    refresh: bool = True
    memory_size: int = 0
    settle_steps: int = 0
    without_contacts: bool = False

    def __init__(self) -> None:
        self.model = self.build()

    def build(self) -> mujoco.MjModel:
        """Return the model of MuJoCo."""
        raise NotImplementedError(f"{type(self).__name__} must have a function build that returns a mujoco.MjModel")

    def reset(self, random: Draws) -> Start:
        """Draw the first states of n episodes."""
        raise NotImplementedError(f"{type(self).__name__} must have a function reset(random) that returns a Start")

    def observation(self, now: State) -> Array | dict[str, Array]:
        """Return the observations, ``[N, O]``, or a dict of named parts, ``[N, ...]`` each."""
        raise NotImplementedError(f"{type(self).__name__} must have a function observation(now)")

    def reward(self, before: State, actions: Array, now: State) -> Array:
        """Return the rewards of the step from one state to the next, ``[N]``; actions are ``[N, A]``."""
        raise NotImplementedError(f"{type(self).__name__} must have a function reward(before, actions, now)")

    def terminated(self, now: State) -> Array | None:
        """Return where the step has ended the task, ``[N]`` of bool; None: nowhere."""
        return None

    def truncated(self, now: State) -> Array | None:
        """Return where the episode is cut off, beside the time limit, ``[N]`` of bool; None: nowhere."""
        return None

    @property
    def dt(self) -> float:
        """The seconds of an environment step."""
        return float(self.model.opt.timestep * self.frame_skip)
