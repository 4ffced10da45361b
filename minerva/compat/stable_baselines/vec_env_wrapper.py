"""What changes the observations and rewards of vector environments, for both of their faces alike."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

import numpy as np
from gymnasium import Space, spaces
from numpy.typing import NDArray

from minerva.compat.stable_baselines.old_env import Info
from minerva.compat.stable_baselines.vec_env import GroupVecEnv, OldStep, VecEnv
from minerva.environments.base import BatchedEnvironment, Rows, Step
from minerva.environments.spaces import flat_size, row_dtype

Array = NDArray[Any]


class VecEnvWrapper(VecEnv):
    """Vector environments whose observations (arrays) and rewards are changed on their way out.

    Args:
        venv: What is wrapped.
        observation_space: Of what comes out; by default that of `venv`.

    Attributes:
        venv: What is wrapped.
    """

    def __init__(self, venv: VecEnv, observation_space: Space[Any] | None = None) -> None:
        if not isinstance(venv, VecEnv):
            raise ValueError(
                "venv: must be one of these vector environments, such as DummyVecEnv([lambda: env]); "
                f"got {type(venv).__name__}."
            )
        self.venv = venv
        self.num_envs = venv.num_envs
        self.action_space = venv.action_space
        self.observation_space = venv.observation_space if observation_space is None else observation_space

    # What a wrapper does

    @abstractmethod
    def first(self, observations: Array) -> Array:
        """Change the first observations of a run, ``[N, ...]``."""

    @abstractmethod
    def seen(self, observations: Array, fresh: NDArray[np.bool_]) -> Array:
        """Change the observations of a step.

        Args:
            observations: ``[N, ...]``.
            fresh: ``[N]``, which of them are the first of an episode.
        """

    def rewarded(self, rewards: Array, ended: NDArray[np.bool_], restarting: NDArray[np.bool_]) -> Array:
        """Change rewards ``[N]``; a restarting step has none."""
        return rewards

    def ended(self, info: Info, index: int) -> Info:
        """Change the info of an environment whose episode has ended, before `seen` is asked."""
        return info

    @abstractmethod
    def state(self) -> dict[str, Any]:
        """Give what the wrapper remembers, as tensors and plain values."""

    @abstractmethod
    def load_state(self, state: dict[str, Any]) -> None:
        """Take it back."""

    # The two faces

    @property
    def unwrapped(self) -> GroupVecEnv:
        """What stands behind all wrappers."""
        return self.venv.unwrapped

    def reset(self) -> Any:
        """Start an episode everywhere and return the first observations, ``[N, ...]``."""
        return self.first(self.venv.reset())

    def step_async(self, actions: Any) -> None:
        """Take the actions for the next step, ``[N, ...]`` in the action space's own form."""
        self.venv.step_async(actions)

    def step_wait(self) -> OldStep:
        """Take that step; where an episode ends, the observation is the first of the next one."""
        observations, rewards, ends, infos = self.venv.step_wait()
        infos = [self.ended(info, i) if ends[i] else info for i, info in enumerate(infos)]
        rewards = self.rewarded(rewards, ends, np.zeros_like(ends)).astype(np.float32)
        return self.seen(observations, ends), rewards, ends, infos

    def batch(self, seed: int) -> BatchedEnvironment:
        """Give the same environments as a trainer sees them."""
        return WrappedBatch(self.venv.batch(seed), self)


class WrappedBatch:
    """A batched environment behind a wrapper; masks at the ends of rows pass as they are.

    Args:
        inner: What is wrapped.
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
        """Start an episode everywhere and return the first observations, ``[N, O]``."""
        rows = self._inner.reset()
        return self._joined(self._wrapper.first(self._unflat(rows)), rows)

    def step(self, actions: NDArray[np.float32]) -> Step:
        """Step everywhere."""
        step = self._inner.step(actions)
        rewards = self._wrapper.rewarded(step.rewards, step.terminated | step.truncated, step.restarting)
        observations = self._wrapper.seen(self._unflat(step.observations), step.restarting)
        return step._replace(observations=self._joined(observations, step.observations), rewards=rewards)

    def state_dict(self) -> dict[str, Any]:
        """Give all that is needed to go on from here, as tensors and plain values."""
        return {"inner": self._inner.state_dict(), "wrapper": self._wrapper.state()}

    @property
    def restarts_next(self) -> NDArray[np.bool_]:
        """Which environments the next step takes into a new episode, ``[N]``."""
        return self._inner.restarts_next

    def load_state_dict(self, state: dict[str, Any]) -> str | None:
        """Go on from a saved state; returns a sentence where that is not exact, else None."""
        self._wrapper.load_state(state["wrapper"])
        return self._inner.load_state_dict(state["inner"])

    def close(self) -> None:
        """Release processes and simulators."""
        self._inner.close()

    def _unflat(self, rows: Rows) -> Array:
        return rows[:, : rows.shape[1] - self.mask_dim].reshape(self.num_envs, *self._shape)

    def _joined(self, observations: Array, rows: Rows) -> Rows:
        flat = observations.reshape(self.num_envs, -1).astype(self.observation_dtype)
        return np.concatenate([flat, rows[:, rows.shape[1] - self.mask_dim :]], axis=1) if self.mask_dim else flat


def needs_box(name: str, venv: VecEnv) -> spaces.Box:
    """Give the observation space, a Box.

    Raises:
        ValueError: It is another.
    """
    if not isinstance(venv.observation_space, spaces.Box):
        raise ValueError(f"{name}: needs observations from a Box, got {venv.observation_space}.")
    return venv.observation_space
