"""`VecFrameStack`: stack the newest observations."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
from gymnasium import spaces

from minerva.callbacks.checks import positive_int
from minerva.compat.stable_baselines.common.vec_env.base_vec_env import Array, VecEnv, VecEnvStepReturn, VecEnvWrapper


class VecFrameStack(VecEnvWrapper):
    """Stack the newest observations along the last axis, the newest last; each episode starts with zeros.

    Args:
        venv: A vector environment with observations from a Box.
        n_stack: Number of observations in a stack.

    Attributes:
        stackedobs: The stacks, ``[N, ...]``.
    """

    handles_terminal_observation = True

    def __init__(self, venv: VecEnv, n_stack: int) -> None:
        self.n_stack = positive_int("n_stack", n_stack)
        super().__init__(venv)
        box = require_box("VecFrameStack", venv)
        low, high = (np.concatenate([bound] * self.n_stack, axis=-1) for bound in (box.low, box.high))
        self.observation_space = spaces.Box(low, high, dtype=box.dtype.type)
        self.stackedobs: Array = np.zeros((venv.num_envs, *low.shape), dtype=box.dtype)
        self._width = box.shape[-1]

    def reset(self) -> Array:
        """Reset every environment and return stacks that hold the first observations alone."""
        self.stackedobs[:] = 0
        self.stackedobs[..., -self._width :] = self.venv.reset()
        return self.stackedobs.copy()

    def step_wait(self) -> VecEnvStepReturn:
        """Finish the step and append the observations to the stacks."""
        observations, rewards, dones, infos = self.venv.step_wait()
        infos = list(infos)
        self.stackedobs[..., : -self._width] = self.stackedobs[..., self._width :].copy()
        for i in np.flatnonzero(dones):
            if "terminal_observation" in infos[i]:
                before, last = self.stackedobs[i, ..., : -self._width], infos[i]["terminal_observation"]
                infos[i] = {**infos[i], "terminal_observation": np.concatenate([before, last], axis=-1)}
            else:
                warnings.warn(
                    'VecFrameStack: infos of the wrapped environments have no "terminal_observation"', stacklevel=2
                )
            self.stackedobs[i] = 0
        self.stackedobs[..., -self._width :] = observations
        return self.stackedobs.copy(), rewards, dones, infos


def require_box(name: str, venv: VecEnv) -> spaces.Box:
    """Check that the observation space is a Box and return it.

    Raises:
        ValueError: It is another space.
    """
    space: Any = venv.observation_space
    if not isinstance(space, spaces.Box):
        raise ValueError(f"{name}: the observation space must be a Box, got {space}.")
    return space
