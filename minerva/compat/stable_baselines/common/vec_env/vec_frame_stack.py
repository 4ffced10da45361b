"""`VecFrameStack`: stack the newest observations."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from numpy.typing import NDArray

from minerva.callbacks.checks import positive_int
from minerva.compat.auto_reset import Info
from minerva.compat.stable_baselines.common.vec_env.group_vec_env import VecEnv
from minerva.compat.stable_baselines.common.vec_env.vec_env_wrapper import Array, VecEnvWrapper, require_box


class VecFrameStack(VecEnvWrapper):
    """Stack the newest observations along the last axis, the newest last; each episode starts with zeros.

    Args:
        venv: A vector environment with observations from a Box.
        n_stack: Number of observations in a stack.
    """

    def __init__(self, venv: VecEnv, n_stack: int) -> None:
        positive_int("n_stack", n_stack)
        box = require_box("VecFrameStack", venv)
        low, high = (np.concatenate([bound] * n_stack, axis=-1) for bound in (box.low, box.high))
        super().__init__(venv, spaces.Box(low, high, dtype=box.dtype.type))
        self.n_stack = n_stack
        self._width = box.shape[-1]
        self._frames = np.zeros((venv.num_envs, *low.shape), dtype=box.dtype)

    def first(self, observations: Array) -> Array:
        """Start all stacks with the observations of `reset`."""
        return self.seen(observations, np.ones(self.num_envs, dtype=np.bool_))

    def seen(self, observations: Array, fresh: NDArray[np.bool_]) -> Array:
        """Append the observations to the stacks; clear those of new episodes first."""
        self._frames[..., : -self._width] = self._frames[..., self._width :]
        self._frames[fresh] = 0
        self._frames[..., -self._width :] = observations
        return self._frames.copy()

    def ended(self, info: Info, index: int) -> Info:
        """Stack an episode's last observation with those before it."""
        last = np.concatenate([self._frames[index, ..., self._width :], info["terminal_observation"]], axis=-1)
        return {**info, "terminal_observation": last}

    def state(self) -> dict[str, Any]:
        """Return the stacks."""
        return {"frames": torch.from_numpy(self._frames.copy())}

    def load_state(self, state: dict[str, Any]) -> None:
        """Restore the stacks."""
        self._frames[:] = state["frames"].numpy()
