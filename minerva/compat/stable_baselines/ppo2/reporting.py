"""The output of `learn`: PPO2's table, and TensorBoard with PPO2's names."""

from __future__ import annotations

import re
import time
from collections import deque
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium import Space
from numpy.typing import NDArray
from torch import Tensor, nn

from minerva.compat.stable_baselines.logger import dumpkvs, getkvs, is_number, logkvs
from minerva.loggers import TensorBoardLogger, open_tensorboard
from minerva.networks.cnn import image_layout
from minerva.trainers.ppo.config import PPOConfig
from minerva.trainers.ppo.update import Batch, UpdateResult

Numbers = dict[str, float]
EpisodeInfo = dict[str, float]
EPISODES = 100
"""Number of newest episodes that means are taken over."""


class Reporter:
    """Write the metrics of one call of `learn`: the table to the current logger, all of them to TensorBoard.

    Values that callbacks have logged are in both.

    Args:
        verbose: 1 to write tables.
        log_interval: Updates between tables.
        tensorboard: Folder of the event file, or None.
        full: Whether to write histograms and images to TensorBoard too.
        episodes: The newest episodes.
    """

    def __init__(
        self,
        verbose: int,
        log_interval: int,
        tensorboard: Path | None,
        full: bool,
        episodes: deque[EpisodeInfo],
    ) -> None:
        self._verbose = verbose
        self._log_interval = log_interval
        self._full = full
        self._episodes = episodes
        self._writer: TensorBoardLogger | None = None if tensorboard is None else open_tensorboard(tensorboard)
        self._begin = self._update_begin = time.perf_counter()

    def episodes_done(self, episodes: list[EpisodeInfo], num_timesteps: int) -> None:
        """Write the returns of episodes that have just ended."""
        if self._writer is not None:
            for episode in episodes:
                self._writer.log({"episode_reward": float(episode["r"])}, num_timesteps)

    def update_done(
        self,
        result: UpdateResult,
        agent: nn.Module,
        config: PPOConfig,
        remaining: float,
        updates: int,
        num_timesteps: int,
        observation_space: Space[Any],
    ) -> None:
        """Write the metrics of an update.

        Args:
            result: Result of the update.
            agent: The networks, for histograms of their weights.
            config: The settings.
            remaining: Remaining fraction of training, the argument of schedules.
            updates: Updates made in this call of `learn`.
            num_timesteps: Environment steps taken.
            observation_space: The observation space before flattening, for images.
        """
        now = time.perf_counter()
        table: Numbers = {
            "serial_timesteps": updates * config.rollout_steps,
            "n_updates": updates,
            "total_timesteps": num_timesteps,
            "fps": int(config.batch_size / max(now - self._update_begin, 1e-9)),
            "explained_variance": result.metrics["losses/explained_variance"],
            **self._episode_means(),
            "time_elapsed": now - self._begin,
            "policy_loss": result.means["policy"],
            "value_loss": result.means["value"],
            "policy_entropy": result.means["entropy"],
            "approxkl": result.means["square_kl"],
            "clipfrac": result.means["clipfrac"],
        }
        recorded = {name: float(value) for name, value in getkvs().items() if is_number(value)}
        if self._verbose < 1:
            getkvs().clear()
        elif updates == 1 or updates % self._log_interval == 0:
            logkvs(table)
            dumpkvs()
        if self._writer is not None:
            self._writer.log({**table, **recorded, **graph_numbers(result, config, remaining)}, num_timesteps)
            if self._full:
                self._write_arrays(result.batch, agent, observation_space, num_timesteps)
        self._update_begin = time.perf_counter()

    def close(self) -> None:
        """Close the event file."""
        if self._writer is not None:
            self._writer.close()

    def _episode_means(self) -> Numbers:
        if not self._episodes:
            return {}
        returns, lengths = ([episode[key] for episode in self._episodes] for key in ("r", "l"))
        return {"ep_reward_mean": float(np.mean(returns)), "ep_len_mean": float(np.mean(lengths))}

    def _write_arrays(self, batch: Batch, agent: nn.Module, space: Space[Any], num_timesteps: int) -> None:
        assert self._writer is not None
        arrays: dict[str, Tensor] = {f"weights/{name}": weight for name, weight in agent.named_parameters()}
        arrays |= {f"inputs/{name}": numbers for name, numbers in batch_inputs(batch).items()}
        layout = image_layout(space)
        if layout is None:
            arrays["inputs/observation"] = batch.obs
        for name, numbers in arrays.items():
            self._writer.write_histogram(num_timesteps, name, numbers.detach().cpu().numpy())
        if layout is not None:
            first = batch.obs.flatten(0, -2)[0].cpu().numpy()
            self._writer.write_image(num_timesteps, "observation", as_picture(first, space, layout == "hwc"))


def batch_inputs(batch: Batch) -> dict[str, Tensor]:
    """Return the tensors of a batch by PPO2's names, in the batch's shape."""
    return {
        "advantage": batch.advantages,
        "old_neglog_action_probability": -batch.log_probs,
        "old_value_pred": batch.values,
        "discounted_rewards": batch.returns,
    }


def graph_numbers(result: UpdateResult, config: PPOConfig, remaining: float) -> Numbers:
    """Return what PPO2's graph wrote to TensorBoard: losses over all minibatches, settings, means of the inputs."""
    means, batch = result.means, result.batch
    numbers = {
        "entropy_loss": means["entropy"],
        "policy_gradient_loss": means["policy"],
        "value_function_loss": means["value"],
        "approximate_kullback-leibler": means["square_kl"],
        "clip_factor": means["clipfrac"],
        "loss": means["total"],
        "learning_rate": config.policy_lr_at(remaining),
        "clip_range": config.clip_ratio_at(remaining),
    }
    if config.clip_vloss:
        numbers["clip_range_vf"] = config.clip_ratio_vf_at(remaining)
    inputs = batch_inputs(batch).items()
    return {**numbers, **{name: values.mean().item() for name, values in inputs}}


def as_picture(row: NDArray[Any], space: Space[Any], channels_last: bool) -> NDArray[np.uint8]:
    """Convert a flattened image to ``[H, W, C]``: its colors if it has three channels, else its newest channel."""
    size = int(np.prod(space.shape or ()))
    image = row[:size].reshape(space.shape).astype(np.uint8)
    if image.ndim == 2:
        return image[..., None]
    if not channels_last:
        image = np.moveaxis(image, 0, -1)
    return image if image.shape[-1] in (1, 3) else image[..., -1:]


def new_run_folder(root: str | Path, name: str) -> Path:
    """Return the folder of a new run's event file: ``<name>_<number>``, with the next number.

    Args:
        root: Folder that contains the runs.
        name: Prefix of the folder's name.
    """
    folder = Path(root)
    found = [re.fullmatch(re.escape(name) + r"_(\d+)", path.name) for path in folder.glob("*")]
    return folder / f"{name}_{max((int(match[1]) for match in found if match is not None), default=0) + 1}"
