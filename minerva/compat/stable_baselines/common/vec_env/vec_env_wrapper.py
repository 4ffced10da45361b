"""Wrappers that transform the observations and rewards of vector environments, in scripts and in training."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

import numpy as np
from gymnasium import Space, spaces
from numpy.typing import NDArray

from minerva.compat.auto_reset import Info
from minerva.compat.stable_baselines.common.vec_env.group_vec_env import GroupVecEnv, VecEnv, VecEnvStepReturn
from minerva.environments.base import BatchedEnvironment, Rows, Step
from minerva.environments.spaces import flat_size, row_dtype
from minerva.utils.structure import check

Array = NDArray[Any]


class VecEnvWrapper(VecEnv):
    """Base class of wrappers that transform observations (arrays) and rewards.

    Args:
        venv: The vector environment to wrap.
        observation_space: Space of the transformed observations; by default that of `venv`.

    Attributes:
        venv: The wrapped vector environment.
    """

    def __init__(self, venv: VecEnv, observation_space: Space[Any] | None = None) -> None:
        if not isinstance(venv, VecEnv):
            raise ValueError(
                "venv: must be a VecEnv of minerva.compat.stable_baselines, such as DummyVecEnv([lambda: env]); "
                f"got {type(venv).__name__}."
            )
        self.venv = venv
        self.num_envs = venv.num_envs
        self.action_space = venv.action_space
        self.observation_space = venv.observation_space if observation_space is None else observation_space

    # Transformations of a wrapper

    @abstractmethod
    def first(self, observations: Array) -> Array:
        """Transform the observations of `reset`, ``[N, ...]``."""

    @abstractmethod
    def seen(self, observations: Array, fresh: NDArray[np.bool_]) -> Array:
        """Transform the observations of a step.

        Args:
            observations: Observations ``[N, ...]``.
            fresh: Whether each is the first of an episode, ``[N]``.
        """

    def rewarded(self, rewards: Array, ended: NDArray[np.bool_], restarting: NDArray[np.bool_]) -> Array:
        """Transform rewards ``[N]``; a restarting step has none."""
        return rewards

    def ended(self, info: Info, index: int) -> Info:
        """Transform the info of an environment whose episode has ended; called before `seen`."""
        return info

    @abstractmethod
    def state(self) -> dict[str, Any]:
        """Return the wrapper's state as tensors and plain values."""

    @abstractmethod
    def load_state(self, state: dict[str, Any]) -> None:
        """Restore the wrapper's state."""

    # The VecEnv interface

    @property
    def unwrapped(self) -> GroupVecEnv:
        """The vector environment inside all wrappers."""
        return self.venv.unwrapped

    def reset(self) -> Any:
        """Reset every environment and return the first observations, ``[N, ...]``."""
        return self.first(self.venv.reset())

    def step_async(self, actions: Any) -> None:
        """Store the actions of the next step, ``[N, ...]`` in the form of the action space."""
        self.venv.step_async(actions)

    def step_wait(self) -> VecEnvStepReturn:
        """Take the step; where an episode ends, the observation is the first of the next one."""
        observations, rewards, dones, infos = self.venv.step_wait()
        infos = [self.ended(info, i) if dones[i] else info for i, info in enumerate(infos)]
        rewards = self.rewarded(rewards, dones, np.zeros_like(dones)).astype(np.float32)
        return self.seen(observations, dones), rewards, dones, infos

    def batch(self, seed: int) -> BatchedEnvironment:
        """Return the same environments with Minerva's interface, for a trainer."""
        return WrappedBatch(self.venv.batch(seed), self)


class WrappedBatch:
    """Apply a wrapper to a batched environment; action masks at the ends of rows are not changed.

    Args:
        inner: The batched environment.
        wrapper: The wrapper.
    """

    def __init__(self, inner: BatchedEnvironment, wrapper: VecEnvWrapper) -> None:
        self._inner = inner
        self._wrapper = wrapper
        self._shape = tuple(inner.raw_observation_space.shape or ())
        self.num_envs = inner.num_envs
        self.raw_observation_space = wrapper.observation_space
        self.mask_dim = inner.mask_dim
        self.observation_dim = flat_size(wrapper.observation_space) + inner.mask_dim
        self.observation_dtype = row_dtype(wrapper.observation_space)
        self.action_space = inner.action_space
        self.description = f"{inner.description}, {type(wrapper).__name__}"

    def reset(self) -> Rows:
        """Reset every environment and return the first observations, ``[N, O]``."""
        rows = self._inner.reset()
        return self._with_masks(self._wrapper.first(self._unflatten(rows)), rows)

    def step(self, actions: NDArray[np.float32]) -> Step:
        """Step every environment."""
        step = self._inner.step(actions)
        rewards = self._wrapper.rewarded(step.rewards, step.terminated | step.truncated, step.restarting)
        observations = self._wrapper.seen(self._unflatten(step.observations), step.restarting)
        return step._replace(observations=self._with_masks(observations, step.observations), rewards=rewards)

    def state_dict(self) -> dict[str, Any]:
        """Return the state as tensors and plain values."""
        return {"inner": self._inner.state_dict(), "wrapper": self._wrapper.state()}

    def check_state(self, state: Any, name: str) -> None:
        """Raise a `StructureError` if a loaded state cannot be one of these environments."""
        check(state, {"inner": self._inner.check_state, "wrapper": self._wrapper.state()}, name)

    @property
    def restarts_next(self) -> NDArray[np.bool_]:
        """Whether the next step starts a new episode in each environment, ``[N]``."""
        return self._inner.restarts_next

    def load_state_dict(self, state: dict[str, Any]) -> str | None:
        """Restore a saved state; return a sentence if the result is not exact, otherwise None."""
        self._wrapper.load_state(state["wrapper"])
        return self._inner.load_state_dict(state["inner"])

    def close(self) -> None:
        """Release processes and simulators."""
        self._inner.close()

    def _unflatten(self, rows: Rows) -> Array:
        return rows[:, : rows.shape[1] - self.mask_dim].reshape(self.num_envs, *self._shape)

    def _with_masks(self, observations: Array, rows: Rows) -> Rows:
        flat = observations.reshape(self.num_envs, -1).astype(self.observation_dtype)
        return np.concatenate([flat, rows[:, rows.shape[1] - self.mask_dim :]], axis=1) if self.mask_dim else flat


def require_box(name: str, venv: VecEnv) -> spaces.Box:
    """Check that the observation space is a Box and return it.

    Raises:
        ValueError: It is another space.
    """
    if not isinstance(venv.observation_space, spaces.Box):
        raise ValueError(f"{name}: the observation space must be a Box, got {venv.observation_space}.")
    return venv.observation_space
