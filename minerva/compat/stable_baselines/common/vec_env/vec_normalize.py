"""`VecNormalize`: normalize observations and rewards with running statistics."""

from __future__ import annotations

import warnings
from copy import deepcopy
from pathlib import Path
from typing import Any, Self

import numpy as np
from gymnasium import spaces

from minerva.compat.stable_baselines.common.running_mean_std import RunningMeanStd
from minerva.compat.stable_baselines.common.vec_env.base_vec_env import Array, VecEnv, VecEnvStepReturn, VecEnvWrapper
from minerva.compat.stable_baselines.common.vec_env.vec_frame_stack import require_box

_KIND = "VecNormalize"
_SETTINGS = ("training", "norm_obs", "norm_reward", "clip_obs", "clip_reward", "gamma", "epsilon")


class VecNormalize(VecEnvWrapper):
    """Normalize observations by mean and variance, and divide rewards by the standard deviation of the return.

    The statistics belong to this wrapper, not to the model: `PPO2.predict` expects normalized observations. A pickled
    wrapper is without environments; `set_venv` gives it new ones. ``infos[i]["terminal_observation"]`` is normalized.

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
        obs_rms: Statistics of observations.
        ret_rms: Statistics of the discounted return.
        ret: Discounted return so far, ``[N]``.
        old_obs: Newest observations before normalization.
        old_rews: Newest rewards before normalization.
    """

    handles_terminal_observation = True

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
        self.training = training
        self.norm_obs = norm_obs
        self.norm_reward = norm_reward
        self.clip_obs = clip_obs
        self.clip_reward = clip_reward
        self.gamma = gamma
        self.epsilon = epsilon
        self._wrap(venv)
        self.obs_rms = RunningMeanStd(shape=self._shape)
        self.ret_rms = RunningMeanStd()

    def _wrap(self, venv: VecEnv) -> None:
        super().__init__(venv)
        box = require_box("VecNormalize", venv)
        if self.norm_obs and box.dtype == np.uint8 and len(box.shape) == 3:
            raise ValueError(
                f"norm_obs: must be False for images, which the policy scales itself, got True for {box}; pass "
                "norm_obs=False."
            )
        if self.norm_obs and not np.issubdtype(box.dtype, np.floating):  # such a Box cannot hold the results
            self.observation_space = spaces.Box(-self.clip_obs, self.clip_obs, box.shape, np.float32)
        self._shape = box.shape
        self.ret = np.zeros(venv.num_envs)
        self.old_obs: Array = np.zeros((venv.num_envs, *box.shape), dtype=box.dtype)
        self.old_rews: Array = np.zeros(venv.num_envs)

    def __getstate__(self) -> dict[str, Any]:
        """Return everything but the environments and what depends on their number."""
        left_out = ("venv", "ret", "old_obs", "old_rews")
        return {name: value for name, value in self.__dict__.items() if name not in left_out}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Restore a pickled wrapper; it needs `set_venv` before it is used."""
        self.__dict__.update(state)
        self.__dict__["venv"] = None

    def set_venv(self, venv: VecEnv) -> None:
        """Wrap environments, after the wrapper was unpickled.

        Raises:
            ValueError: It wraps some already, or their observations have another shape.
        """
        if self.__dict__.get("venv") is not None:
            raise ValueError("venv: is set already; make another VecNormalize for other environments.")
        if require_box("VecNormalize", venv).shape != self.obs_rms.mean.shape:
            raise ValueError(
                f"venv: its observations must have the shape of the statistics, {self.obs_rms.mean.shape}, got "
                f"{venv.observation_space.shape}."
            )
        self._wrap(venv)

    def step_wait(self) -> VecEnvStepReturn:
        """Finish the step, update the statistics and normalize with them."""
        obs, rewards, dones, infos = self.venv.step_wait()
        self.old_obs, self.old_rews = obs, rewards
        if self.training:
            self.obs_rms.update(np.asarray(obs))
            self._update_reward(np.asarray(rewards))
        ended = np.flatnonzero(dones)
        if self.norm_obs and ended.size:
            infos = list(infos)
            for i in ended:
                if "terminal_observation" in infos[i]:
                    last = self.normalize_obs(np.asarray(infos[i]["terminal_observation"]))
                    infos[i] = {**infos[i], "terminal_observation": last}
        self.ret[ended] = 0
        return self.normalize_obs(obs), self.normalize_reward(rewards), dones, infos

    def reset(self) -> Any:
        """Reset every environment and normalize the first observations."""
        obs = self.venv.reset()
        self.old_obs = obs
        self.ret = np.zeros(self.num_envs)
        if self.training:
            self._update_reward(self.ret)
        return self.normalize_obs(obs)

    def _update_reward(self, reward: Array) -> None:
        self.ret = self.ret * self.gamma + reward
        self.ret_rms.update(self.ret)

    def normalize_obs(self, obs: Any) -> Any:
        """Normalize observations, ``[..., *shape]``, without updating the statistics."""
        if not self.norm_obs:
            return obs
        centered = (obs - self.obs_rms.mean) / np.sqrt(self.obs_rms.var + self.epsilon)
        return np.clip(centered, -self.clip_obs, self.clip_obs)

    def normalize_reward(self, reward: Any) -> Any:
        """Normalize rewards without updating the statistics."""
        if not self.norm_reward:
            return reward
        return np.clip(reward / np.sqrt(self.ret_rms.var + self.epsilon), -self.clip_reward, self.clip_reward)

    def get_original_obs(self) -> Array:
        """Return the newest observations before normalization, ``[N, ...]``."""
        return np.array(self.old_obs)

    def get_original_reward(self) -> Array:
        """Return the newest rewards before normalization, ``[N]``."""
        return np.array(self.old_rews)

    def save(self, save_path: str | Path) -> None:
        """Save settings and statistics to a file, without the environments."""
        settings = {name: getattr(self, name) for name in _SETTINGS}
        _write(Path(save_path), {"settings": settings, "obs_rms": self.obs_rms, "ret_rms": self.ret_rms})

    @classmethod
    def load(cls, load_path: str | Path, venv: VecEnv) -> Self:
        """Load settings and statistics from a file of `save`, and wrap `venv`.

        Raises:
            CheckpointError: The file is of another kind, or its observations have another shape.
        """
        saved = _read(Path(load_path))
        loaded = cls(venv, **saved["settings"])
        loaded._take(saved, load_path)
        return loaded

    def _take(self, saved: dict[str, Any], path: str | Path) -> None:
        from minerva.checkpointing import CheckpointError

        shape = saved["obs_rms"].mean.shape
        if shape != self._shape:
            raise CheckpointError(
                f"checkpoint: {path} has statistics of observations of shape {shape}, but these environments return "
                f"{self._shape}."
            )
        self.obs_rms, self.ret_rms = saved["obs_rms"], saved["ret_rms"]

    def save_running_average(self, path: str | Path) -> None:
        """Save the statistics to a folder (old name; `save` keeps the settings too)."""
        warnings.warn("save_running_average: use save instead", DeprecationWarning, stacklevel=2)
        self.save(Path(path) / "running_average.pkl")

    def load_running_average(self, path: str | Path) -> None:
        """Load the statistics from a folder of `save_running_average`."""
        warnings.warn("load_running_average: use load instead", DeprecationWarning, stacklevel=2)
        file = Path(path) / "running_average.pkl"
        self._take(_read(file), file)


def _write(path: Path, parts: dict[str, Any]) -> None:
    import torch

    from minerva import checkpointing

    plain = {
        name: {"mean": torch.tensor(part.mean), "var": torch.tensor(part.var), "count": float(part.count)}
        for name, part in parts.items()
        if isinstance(part, RunningMeanStd)
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    checkpointing.write(path, {"algorithm": _KIND, **parts, **plain})


def _read(path: Path) -> dict[str, Any]:
    from minerva import checkpointing

    saved = checkpointing.read(path)
    if saved["algorithm"] != _KIND:
        raise checkpointing.CheckpointError(f"checkpoint: {path} was saved by {saved['algorithm']}, not by {_KIND}.")
    for name in ("obs_rms", "ret_rms"):
        statistics = RunningMeanStd()
        statistics.mean, statistics.var = (np.array(saved[name][part].numpy()) for part in ("mean", "var"))
        statistics.count = float(saved[name]["count"])
        saved[name] = statistics
    return saved


def unwrap_vec_normalize(env: Any) -> VecNormalize | None:
    """Return the outermost `VecNormalize` around environments, or None."""
    while isinstance(env, VecEnvWrapper):
        if isinstance(env, VecNormalize):
            return env
        env = env.venv
    return None


def sync_envs_normalization(env: Any, eval_env: Any) -> None:
    """Copy the observation statistics of each `VecNormalize` of one stack of wrappers to those of another stack."""
    ours, theirs = env, eval_env
    while isinstance(ours, VecEnvWrapper) and isinstance(theirs, VecEnvWrapper):
        if isinstance(ours, VecNormalize) and isinstance(theirs, VecNormalize):
            theirs.obs_rms = deepcopy(ours.obs_rms)
        ours, theirs = ours.venv, theirs.venv
