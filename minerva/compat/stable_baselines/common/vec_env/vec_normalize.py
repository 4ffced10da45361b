"""`VecNormalize`: normalize observations and rewards with running statistics."""

from __future__ import annotations

import math
from copy import deepcopy
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from gymnasium import spaces
from numpy.typing import NDArray

from minerva import checkpointing
from minerva.checkpointing import CheckpointError
from minerva.compat.stable_baselines.common.vec_env.group_vec_env import VecEnv
from minerva.compat.stable_baselines.common.vec_env.vec_env_wrapper import Array, VecEnvWrapper, require_box
from minerva.environments.normalizers import RewardNormalizer
from minerva.utils.running_norm import RunningNorm

_KIND = "VecNormalize"


class VecNormalize(VecEnvWrapper):
    """Normalize observations by mean and variance, and divide rewards by the standard deviation of the return.

    The statistics belong to this wrapper, not to the model: `PPO2.predict` expects normalized observations.

    Args:
        venv: A vector environment with observations from a Box.
        training: Whether to update the statistics.
        norm_obs: Whether to normalize observations.
        norm_reward: Whether to normalize rewards.
        clip_obs: Normalized observations are clipped to ``[-clip_obs, clip_obs]``.
        clip_reward: Normalized rewards are clipped to ``[-clip_reward, clip_reward]``.
        gamma: Discount of the return.
        epsilon: Added to the variance before the square root.

    Attributes:
        obs_rms: Statistics of the flattened observations.
        ret_rms: Statistics of the discounted return.
    """

    def __init__(
        self,
        venv: VecEnv,
        training: bool = True,
        norm_obs: bool = True,
        norm_reward: bool = True,
        clip_obs: float = 10.0,
        clip_reward: float = 10.0,
        gamma: float = 0.99,
        epsilon: float = 1e-8,
    ) -> None:
        box = require_box("VecNormalize", venv)
        from_integers = norm_obs and not np.issubdtype(box.dtype, np.floating)  # such a Box cannot hold the results
        super().__init__(venv, spaces.Box(-clip_obs, clip_obs, box.shape, np.float32) if from_integers else None)
        if norm_obs and box.dtype == np.uint8 and len(box.shape) == 3:
            raise ValueError(
                f"norm_obs: must be False for images, which the policy scales itself, got True for {box}; pass "
                "norm_obs=False."
            )
        self.training = training
        self.norm_obs = norm_obs
        self.norm_reward = norm_reward
        self.obs_rms = RunningNorm(math.prod(box.shape), clip_obs, epsilon)
        self._rewards = RewardNormalizer(venv.num_envs, gamma, clip_reward, epsilon)
        self._old_obs: Array = np.zeros((venv.num_envs, *box.shape), dtype=box.dtype)
        self._old_rewards: Array = np.zeros(venv.num_envs)

    @property
    def ret_rms(self) -> RunningNorm:
        """Statistics of the discounted return."""
        return self._rewards.statistics

    def normalize_obs(self, obs: Array) -> Array:
        """Normalize observations, ``[..., *shape]``, without updating the statistics."""
        if not self.norm_obs:
            return obs
        rows = np.asarray(obs, dtype=np.float32).reshape(-1, self.obs_rms.mean.numel())
        normalized: Array = self.obs_rms(torch.from_numpy(rows)).numpy().reshape(np.shape(obs))
        return normalized

    def normalize_reward(self, reward: Array) -> Array:
        """Normalize rewards without updating the statistics."""
        if not self.norm_reward:
            return reward
        deviation = math.sqrt(self.ret_rms.var.item() + self._rewards.eps)
        return np.clip(np.asarray(reward) / deviation, -self._rewards.clip, self._rewards.clip)

    def get_original_obs(self) -> Array:
        """Return the newest observations before normalization, ``[N, ...]``."""
        return self._old_obs.copy()

    def get_original_reward(self) -> Array:
        """Return the newest rewards before normalization, ``[N]``."""
        return self._old_rewards.copy()

    def first(self, observations: Array) -> Array:
        """Clear the discounted returns and normalize the observations of `reset`."""
        self._rewards.discounted_return.zero_()
        return self.seen(observations, np.ones(self.num_envs, dtype=np.bool_))

    def seen(self, observations: Array, fresh: NDArray[np.bool_]) -> Array:
        """Update the statistics with the observations and normalize them."""
        self._old_obs = observations
        if self.training:
            self.obs_rms.update(observations.reshape(self.num_envs, -1))
        return self.normalize_obs(observations)

    def rewarded(self, rewards: Array, ended: NDArray[np.bool_], restarting: NDArray[np.bool_]) -> Array:
        """Update the statistics with the rewards and normalize them."""
        self._old_rewards = rewards
        if not self.training:
            return self.normalize_reward(rewards)
        normalized = self._rewards.normalize(np.asarray(rewards, dtype=np.float64), ended, restarting)
        return normalized if self.norm_reward else rewards

    def state(self) -> dict[str, Any]:
        """Return the statistics."""
        # A deep copy, because the statistics are updated in place.
        return {"obs_rms": deepcopy(self.obs_rms.state_dict()), "rewards": deepcopy(self._rewards.state_dict())}

    def load_state(self, state: dict[str, Any]) -> None:
        """Restore the statistics."""
        self.obs_rms.load_state_dict(state["obs_rms"])
        self._rewards.load_state_dict(state["rewards"])

    def copy_statistics(self, other: VecNormalize) -> None:
        """Copy the statistics of another wrapper, whatever its number of environments."""
        self.obs_rms.load_state_dict(other.obs_rms.state_dict())
        self.ret_rms.load_state_dict(other.ret_rms.state_dict())

    def save(self, save_path: str | Path) -> None:
        """Save settings and statistics to a file, without the environments."""
        path = Path(save_path)
        path.parent.mkdir(parents=True, exist_ok=True)
        checkpointing.write(
            path,
            {
                "algorithm": _KIND,
                "settings": {
                    "training": self.training,
                    "norm_obs": self.norm_obs,
                    "norm_reward": self.norm_reward,
                    "clip_obs": self.obs_rms.clip,
                    "clip_reward": self._rewards.clip,
                    "gamma": self._rewards.gamma,
                    "epsilon": self._rewards.eps,
                },
                "obs_rms": self.obs_rms.state_dict(),
                "ret_rms": self.ret_rms.state_dict(),
            },
        )

    @classmethod
    def load(cls, load_path: str | Path, venv: VecEnv) -> Self:
        """Load settings and statistics from a file of `save`, and wrap `venv`.

        Raises:
            CheckpointError: The file is of another kind, or its observations have another size.
        """
        saved = checkpointing.read(Path(load_path))
        if saved["algorithm"] != _KIND:
            raise CheckpointError(f"checkpoint: {load_path} was saved by {saved['algorithm']}, not by {_KIND}.")
        loaded = cls(venv, **saved["settings"])
        if loaded.obs_rms.mean.shape != saved["obs_rms"]["mean"].shape:
            raise CheckpointError(
                f"checkpoint: {load_path} has statistics of {len(saved['obs_rms']['mean'])} numbers per observation, "
                f"but these environments return {len(loaded.obs_rms.mean)}."
            )
        loaded.obs_rms.load_state_dict(saved["obs_rms"])
        loaded.ret_rms.load_state_dict(saved["ret_rms"])
        return loaded


def sync_envs_normalization(env: VecEnv, eval_env: VecEnv) -> None:
    """Copy the `VecNormalize` statistics of one stack of wrappers to another, layer by layer."""
    ours, theirs = env, eval_env
    while isinstance(ours, VecEnvWrapper) and isinstance(theirs, VecEnvWrapper):
        if isinstance(ours, VecNormalize) and isinstance(theirs, VecNormalize):
            theirs.copy_statistics(ours)
        ours, theirs = ours.venv, theirs.venv
