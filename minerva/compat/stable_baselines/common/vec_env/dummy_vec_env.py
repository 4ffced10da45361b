"""`DummyVecEnv`: environments in this process."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

import numpy as np

from minerva.compat.auto_reset import AutoResetEnv, EnvFactory, Info
from minerva.compat.stable_baselines.common.vec_env.base_vec_env import Array, Indices, VecEnv, VecEnvStepReturn
from minerva.compat.stable_baselines.common.vec_env.util import copy_obs_dict, dict_to_obs, obs_space_info
from minerva.environments.checks import described


def check_factories(env_fns: Sequence[EnvFactory]) -> None:
    """Check the functions that make environments.

    Raises:
        ValueError: `env_fns` is not a list of functions.
    """
    if not isinstance(env_fns, (list, tuple)) or not env_fns or not all(callable(make) for make in env_fns):
        raise ValueError(
            "env_fns: must be a list of functions that each make an environment, such as [lambda: env]; "
            f"got {env_fns!r}."
        )


class DummyVecEnv(VecEnv):
    """Environments in this process, stepped one after the other.

    Args:
        env_fns: One function per environment.

    Attributes:
        envs: The environments, as they were made.
    """

    def __init__(self, env_fns: Sequence[EnvFactory]) -> None:
        check_factories(env_fns)
        self.envs = [make() for make in env_fns]
        self._hosts = [AutoResetEnv(env) for env in self.envs]
        first = self._hosts[0]
        super().__init__(len(self.envs), first.observation_space, first.action_space)
        self.metadata = getattr(self.envs[0], "metadata", VecEnv.metadata)
        self.mask_dim = first.mask_dim
        self.keys, self._shapes, dtypes = obs_space_info(self.observation_space)
        self.buf_obs: OrderedDict[Any, Array] = OrderedDict(
            (key, np.zeros((self.num_envs, *self._shapes[key]), dtype=dtypes[key])) for key in self.keys
        )
        self.buf_dones = np.zeros(self.num_envs, dtype=np.bool_)
        self.buf_rews = np.zeros(self.num_envs, dtype=np.float32)
        self.buf_infos: list[Info] = [{} for _ in self.envs]
        self.actions: Any = None

    def step_async(self, actions: Any) -> None:
        """Store the actions of the next step, ``[N, ...]`` in the form of the action space."""
        if len(actions) != self.num_envs:
            raise ValueError(f"actions: must be {self.num_envs}, one per environment, got {len(actions)}.")
        self.actions = actions

    def step_wait(self) -> VecEnvStepReturn:
        """Take the step; where an episode ends, the observation is the first of the next one."""
        actions, rewards, dones, infos = self.actions, self.buf_rews, self.buf_dones, self.buf_infos
        if self._hosts[0].int_actions and isinstance(actions, np.ndarray):
            actions = actions.tolist()
        for i, host in enumerate(self._hosts):
            observation, rewards[i], dones[i], infos[i] = host.advance(actions[i])
            self._save_obs(i, observation)
        return self._obs_from_buf(), rewards.copy(), dones.copy(), infos.copy()

    def reset(self) -> Any:
        """Reset every environment and return the first observations, ``[N, ...]``."""
        for i, host in enumerate(self._hosts):
            self._save_obs(i, host.reset())
        return self._obs_from_buf()

    def _save_obs(self, i: int, observation: Any) -> None:
        for key, shape in self._shapes.items():
            part = observation if key is None else observation[key]
            if (part.shape if part.__class__ is np.ndarray else np.shape(part)) != shape:
                raise ValueError(
                    f"env: its observation{'' if key is None else f' {key!r}'} must have the shape {shape} of its "
                    f"observation_space, got {described(part)}."
                )
            self.buf_obs[key][i] = part

    def _obs_from_buf(self) -> Any:
        return dict_to_obs(self.observation_space, copy_obs_dict(self.buf_obs))

    def seed(self, seed: int | None = None, indices: Indices = None) -> list[Any]:
        """Seed environment i with ``seed + i``, None at random; return what was seeded."""
        return [self._hosts[i].seed(None if seed is None else int(seed) + i) for i in self._get_indices(indices)]

    def close(self) -> None:
        """Close every environment."""
        for env in self.envs:
            close = getattr(env, "close", None)
            if close is not None:
                close()

    def get_images(self, *args: Any, **kwargs: Any) -> Sequence[Array]:
        """Return an image of each environment that can be rendered to one."""
        return [image for host in self._hosts if isinstance(image := host.render("rgb_array"), np.ndarray)]

    def render(self, mode: str = "human", *args: Any, **kwargs: Any) -> Any:
        """Render the environments: a single one as it renders itself, several as one image (see `VecEnv.render`)."""
        if self.num_envs == 1:
            return self._hosts[0].render(mode)
        return super().render(mode, *args, **kwargs)

    def get_attr(self, attr_name: str, indices: Indices = None) -> list[Any]:
        """Return an attribute of some environments."""
        return [self._hosts[i].attribute(attr_name) for i in self._get_indices(indices)]

    def set_attr(self, attr_name: str, value: Any, indices: Indices = None) -> None:
        """Set an attribute of some environments, on the wrapper that has it."""
        for i in self._get_indices(indices):
            self._hosts[i].set_attribute(attr_name, value)

    def env_method(
        self, method_name: str, *method_args: Any, indices: Indices = None, **method_kwargs: Any
    ) -> list[Any]:
        """Call a method of some environments and return the results."""
        return [self._hosts[i].call(method_name, method_args, method_kwargs) for i in self._get_indices(indices)]

    def action_masks(self) -> Array:
        """Return the action masks as zeros and ones, ``[N, K]``."""
        return np.stack([host.current_mask() for host in self._hosts])
