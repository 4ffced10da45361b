"""`VecFrameStack`: the newest observations side by side."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from numpy.typing import NDArray

from minerva.compat.stable_baselines.old_env import Info
from minerva.compat.stable_baselines.vec_env import VecEnv
from minerva.compat.stable_baselines.vec_env_wrapper import Array, VecEnvWrapper, needs_box


class VecFrameStack(VecEnvWrapper):
    """Shows the newest observations side by side along the last axis, the newest last; zeros before an episode's first.

    Args:
        venv: What is wrapped; its observations are from a Box.
        n_stack: How many.
    """

    def __init__(self, venv: VecEnv, n_stack: int) -> None:
        if isinstance(n_stack, bool) or not isinstance(n_stack, int) or n_stack < 1:
            raise ValueError(f"n_stack: must be a whole number from 1 on, got {n_stack!r}.")
        box = needs_box("VecFrameStack", venv)
        low, high = (np.concatenate([bound] * n_stack, axis=-1) for bound in (box.low, box.high))
        super().__init__(venv, spaces.Box(low, high, dtype=box.dtype.type))
        self.n_stack = n_stack
        self._width = box.shape[-1]
        self._frames = np.zeros((venv.num_envs, *low.shape), dtype=box.dtype)

    def first(self, observations: Array) -> Array:
        """Begin all stacks."""
        return self.seen(observations, np.ones(self.num_envs, dtype=np.bool_))

    def seen(self, observations: Array, fresh: NDArray[np.bool_]) -> Array:
        """Put observations at the stacks' ends; those of fresh episodes begin with nothing else."""
        self._frames[..., : -self._width] = self._frames[..., self._width :]
        self._frames[fresh] = 0
        self._frames[..., -self._width :] = observations
        return self._frames.copy()

    def ended(self, info: Info, index: int) -> Info:
        """Show an episode's last observation with those before it."""
        last = np.concatenate([self._frames[index, ..., self._width :], info["terminal_observation"]], axis=-1)
        return {**info, "terminal_observation": last}

    def state(self) -> dict[str, Any]:
        """Give the stacks."""
        return {"frames": torch.from_numpy(self._frames.copy())}

    def load_state(self, state: dict[str, Any]) -> None:
        """Take the stacks back."""
        self._frames[:] = state["frames"].numpy()
