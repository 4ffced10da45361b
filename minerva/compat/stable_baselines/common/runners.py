"""`AbstractEnvRunner`: what collects experience."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any

import numpy as np

from minerva.compat.stable_baselines.common.vec_env.base_vec_env import VecEnv

if TYPE_CHECKING:
    from minerva.compat.stable_baselines.common.callbacks import BaseCallback


class AbstractEnvRunner(ABC):
    """Collect rollouts of `n_steps` steps of each environment; a subclass defines `_run`.

    Args:
        env: The environments; they are reset.
        model: The model that acts.
        n_steps: Steps per environment and rollout.

    Attributes:
        obs: The newest observations, ``[N, ...]``.
        dones: Whether an episode ended with the newest step, ``[N]``.
        states: The recurrent state before `obs`, ``[N, S]``, or None.
        continue_training: Whether no callback has stopped the newest rollout.
    """

    def __init__(self, *, env: VecEnv, model: Any, n_steps: int) -> None:
        self.env = env
        self.model = model
        self.n_envs = env.num_envs
        self.n_steps = n_steps
        self.batch_ob_shape = (self.n_envs * n_steps, *(env.observation_space.shape or ()))
        self.obs: Any = env.reset()
        self.states: Any = model.initial_state
        self.dones: Any = np.zeros(self.n_envs, dtype=np.bool_)
        self.callback: BaseCallback | None = None
        self.continue_training = True

    def run(self, callback: BaseCallback | None = None) -> Any:
        """Collect a rollout.

        Args:
            callback: Called at every step; the rollout is stopped if it returns False.
        """
        self.callback = callback
        self.continue_training = True
        return self._run()

    @abstractmethod
    def _run(self) -> Any:
        """Collect a rollout."""
