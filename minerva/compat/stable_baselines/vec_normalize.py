"""`VecNormalize`: observations and rewards by their running statistics."""

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
from minerva.compat.stable_baselines.vec_env import VecEnv
from minerva.compat.stable_baselines.vec_env_wrapper import Array, VecEnvWrapper, needs_box
from minerva.environments.normalizers import RewardNormalizer
from minerva.utils.running_norm import RunningNorm

_KIND = "VecNormalize"


class VecNormalize(VecEnvWrapper):
    """Normalizes observations by mean and variance, and divides rewards by the deviation of the discounted return.

    The statistics are here and not in the model: what `PPO2.predict` is given is normalized already.

    Args:
        venv: What is wrapped; its observations are from a Box.
        training: Whether the statistics still move.
        norm_obs: Whether observations are normalized.
        norm_reward: Whether rewards are.
        clip_obs: Normalized observations are clipped to ``[-clip_obs, clip_obs]``.
        clip_reward: Likewise for rewards.
        gamma: Discount of the return.
        epsilon: Added to the variance before the root.

    Attributes:
        obs_rms: Statistics of observations, flat.
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
        box = needs_box("VecNormalize", venv)
        whole = norm_obs and not np.issubdtype(box.dtype, np.floating)  # such a space does not hold what comes out
        super().__init__(venv, spaces.Box(-clip_obs, clip_obs, box.shape, np.float32) if whole else None)
        if norm_obs and box.dtype == np.uint8 and len(box.shape) == 3:
            raise ValueError(
                f"norm_obs: images are scaled by the policy and cannot be normalized here too, got True for {box}; "
                "give norm_obs=False."
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
        """Normalize observations, ``[..., *shape]``, with the statistics as they are."""
        if not self.norm_obs:
            return obs
        rows = np.asarray(obs, dtype=np.float32).reshape(-1, self.obs_rms.mean.numel())
        normalized: Array = self.obs_rms(torch.from_numpy(rows)).numpy().reshape(np.shape(obs))
        return normalized

    def normalize_reward(self, reward: Array) -> Array:
        """Normalize rewards with the statistics as they are."""
        if not self.norm_reward:
            return reward
        deviation = math.sqrt(self.ret_rms.var.item() + self._rewards.eps)
        return np.clip(np.asarray(reward) / deviation, -self._rewards.clip, self._rewards.clip)

    def get_original_obs(self) -> Array:
        """Give the newest observations as the environments gave them, ``[N, ...]``."""
        return self._old_obs.copy()

    def get_original_reward(self) -> Array:
        """Give the newest rewards as the environments gave them, ``[N]``."""
        return self._old_rewards.copy()

    def first(self, observations: Array) -> Array:
        """Forget the returns of episodes that were broken off."""
        self._rewards.discounted_return.zero_()
        return self.seen(observations, np.ones(self.num_envs, dtype=np.bool_))

    def seen(self, observations: Array, fresh: NDArray[np.bool_]) -> Array:
        """Take observations in, once each, and normalize them."""
        self._old_obs = observations
        if self.training:
            self.obs_rms.update(observations.reshape(self.num_envs, -1))
        return self.normalize_obs(observations)

    def rewarded(self, rewards: Array, ended: NDArray[np.bool_], restarting: NDArray[np.bool_]) -> Array:
        """Take rewards in, and normalize them."""
        self._old_rewards = rewards
        if not self.training:
            return self.normalize_reward(rewards)
        normalized = self._rewards.normalize(np.asarray(rewards, dtype=np.float64), ended, restarting)
        return normalized if self.norm_reward else rewards

    def state(self) -> dict[str, Any]:
        """Give the statistics."""
        # Deep: the statistics go on moving in place.
        return {"obs_rms": deepcopy(self.obs_rms.state_dict()), "rewards": deepcopy(self._rewards.state_dict())}

    def load_state(self, state: dict[str, Any]) -> None:
        """Take the statistics back."""
        self.obs_rms.load_state_dict(state["obs_rms"])
        self._rewards.load_state_dict(state["rewards"])

    def take_statistics(self, other: VecNormalize) -> None:
        """Take over the statistics of another, whatever its number of environments."""
        self.obs_rms.load_state_dict(other.obs_rms.state_dict())
        self.ret_rms.load_state_dict(other.ret_rms.state_dict())

    def save(self, save_path: str | Path) -> None:
        """Write settings and statistics to a file, without the environments."""
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
        """Read them back, for these environments.

        Raises:
            CheckpointError: The file is not one of `save`, or of other observations.
        """
        saved = checkpointing.read(Path(load_path))
        if saved["algorithm"] != _KIND:
            raise CheckpointError(f"checkpoint: {load_path} is one of {saved['algorithm']}, not of {_KIND}.")
        loaded = cls(venv, **saved["settings"])
        if loaded.obs_rms.mean.shape != saved["obs_rms"]["mean"].shape:
            raise CheckpointError(
                f"checkpoint: {load_path} has statistics of {len(saved['obs_rms']['mean'])} numbers an observation, "
                f"these environments give {len(loaded.obs_rms.mean)}."
            )
        loaded.obs_rms.load_state_dict(saved["obs_rms"])
        loaded.ret_rms.load_state_dict(saved["ret_rms"])
        return loaded


def sync_envs_normalization(env: VecEnv, eval_env: VecEnv) -> None:
    """Give the statistics of one stack of wrappers to another, layer by layer."""
    ours, theirs = env, eval_env
    while isinstance(ours, VecEnvWrapper) and isinstance(theirs, VecEnvWrapper):
        if isinstance(ours, VecNormalize) and isinstance(theirs, VecNormalize):
            theirs.take_statistics(ours)
        ours, theirs = ours.venv, theirs.venv
