"""`SubprocVecEnv`: environments in worker processes."""

from __future__ import annotations

import itertools
import multiprocessing
from collections.abc import Sequence
from typing import Any

import numpy as np

from minerva.compat.auto_reset import AutoResetGroup, EnvFactory
from minerva.compat.gym.envs.registration import with_registered
from minerva.compat.stable_baselines.common.vec_env.base_vec_env import Array, Indices, VecEnv, VecEnvStepReturn
from minerva.compat.stable_baselines.common.vec_env.dummy_vec_env import check_factories
from minerva.compat.stable_baselines.common.vec_env.util import stack_observations
from minerva.environments.workers import SubprocessGroup


class SubprocVecEnv(VecEnv):
    """Environments in worker processes, one per environment, stepped in parallel.

    Each worker is a new Python interpreter, so a script needs no ``if __name__ == "__main__":``.

    Args:
        env_fns: One function per environment.
        start_method: Checked and ignored: workers always start as new interpreters.
    """

    def __init__(self, env_fns: Sequence[EnvFactory], start_method: str | None = None) -> None:
        check_factories(env_fns)
        if start_method not in (None, *multiprocessing.get_all_start_methods()):
            known = ", ".join(multiprocessing.get_all_start_methods())
            raise ValueError(f"start_method: must be one of {known} or None, got {start_method!r}.")
        self._group = SubprocessGroup(with_registered(env_fns), len(env_fns), AutoResetGroup)
        super().__init__(len(env_fns), *self._group.spaces)
        self.mask_dim = self._group.mask_dim
        self.closed = False
        self._actions: Any = None

    def step_async(self, actions: Any) -> None:
        """Store the actions of the next step, ``[N, ...]`` in the form of the action space."""
        if len(actions) != self.num_envs:
            raise ValueError(f"actions: must be {self.num_envs}, one per environment, got {len(actions)}.")
        self._actions = actions

    def step_wait(self) -> VecEnvStepReturn:
        """Take the step; where an episode ends, the observation is the first of the next one."""
        parts = self._group.ask("advance", [(self._actions[part],) for part in self._group.slices])
        observations, rewards, dones, infos = zip(*itertools.chain(*parts), strict=True)
        return (
            stack_observations(self.observation_space, observations),
            np.array(rewards, dtype=np.float32),
            np.array(dones, dtype=np.bool_),
            list(infos),
        )

    def reset(self) -> Any:
        """Reset every environment and return the first observations, ``[N, ...]``."""
        return stack_observations(self.observation_space, self._ask("reset", [()] * self.num_envs))

    def _ask(self, name: str, calls: Sequence[tuple[Any, ...] | None]) -> list[Any]:
        parts = self._group.ask("ask", [(name, calls[part]) for part in self._group.slices])
        return list(itertools.chain(*parts))

    def _ask_some(self, name: str, arguments: tuple[Any, ...], indices: Indices) -> list[Any]:
        chosen = self._get_indices(indices)
        results = self._ask(name, [arguments if i in chosen else None for i in range(self.num_envs)])
        return [results[i] for i in chosen]

    def seed(self, seed: int | None = None, indices: Indices = None) -> list[Any]:
        """Seed environment i with ``seed + i``, None at random; return what was seeded."""
        chosen = self._get_indices(indices)
        seeds = [(None if seed is None else int(seed) + i,) for i in range(self.num_envs)]
        results = self._ask("seed", [seeds[i] if i in chosen else None for i in range(self.num_envs)])
        return [results[i] for i in chosen]

    def close(self) -> None:
        """Stop the workers."""
        self._group.close()
        self.closed = True

    def get_images(self, *args: Any, **kwargs: Any) -> Sequence[Array]:
        """Return an image of each environment that can be rendered to one."""
        images = self._ask("render", [("rgb_array",)] * self.num_envs)
        return [image for image in images if isinstance(image, np.ndarray)]

    def get_attr(self, attr_name: str, indices: Indices = None) -> list[Any]:
        """Return an attribute of some environments."""
        return self._ask_some("attribute", (attr_name,), indices)

    def set_attr(self, attr_name: str, value: Any, indices: Indices = None) -> None:
        """Set an attribute of some environments, on the wrapper that has it."""
        self._ask_some("set_attribute", (attr_name, value), indices)

    def env_method(
        self, method_name: str, *method_args: Any, indices: Indices = None, **method_kwargs: Any
    ) -> list[Any]:
        """Call a method of some environments and return the results."""
        return self._ask_some("call", (method_name, method_args, method_kwargs), indices)

    def action_masks(self) -> Array:
        """Return the action masks as zeros and ones, ``[N, K]``."""
        return np.stack(self._ask("current_mask", [()] * self.num_envs))
