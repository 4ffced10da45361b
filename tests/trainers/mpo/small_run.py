"""Runs of a second: Pendulum-v1, tiny networks, a replay that overflows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from minerva.trainers.mpo.trainer import MPOTrainer
from tests.trainers.ppo.small_run import trained

TOTAL = 160


def fields(**more: Any) -> dict[str, Any]:
    return {
        "policy_layer_sizes": (8, 8),
        "critic_layer_sizes": (8, 8),
        "replay_size": 100,  # it overflows
        "update_after": 20,
        "batch_size": 8,
        "action_samples": 4,
        "log_interval": 10,
        "eval_episodes": 1,
        "eval_max_steps": 5,
        "console": False,
        "compile": False,
        **more,
    }


def small_trainer(env_id: Any = "Pendulum-v1", seed: int = 1, **more: Any) -> MPOTrainer:
    return MPOTrainer(env_id, seed, "cpu", **fields(**more))


def train(folder: Path, total_steps: int = TOTAL, callbacks: Any = None, **more: Any) -> MPOTrainer:
    return trained(small_trainer(**more), total_steps, folder, callbacks)


VARIANTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "several environments": {"num_envs": 3, "n_step": 3, "normalize_obs": True, "update_interval": 4},
    "retrace": {"use_retrace": True, "retrace_steps": 4, "action_penalization": True, "updates_per_step": 0.3},
    "overlap": {"overlap": True, "num_envs": 2, "update_interval": 6},
    "moving average": {"target_tau": 0.01, "m_steps": 2, "optimizer_type": "sgd", "updates_per_step": 1.7},
}
