"""Runs of a second: Pendulum-v1, tiny networks, short rollouts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from minerva.trainers.vmpo.trainer import VMPOTrainer
from tests.trainers.ppo.small_run import trained

ROLLOUT = 16
TOTAL = ROLLOUT * 5


def small_trainer(env_id: Any = "Pendulum-v1", seed: int = 1, **fields: Any) -> VMPOTrainer:
    defaults: dict[str, Any] = {
        "policy_layer_sizes": (8, 8),
        "value_layer_sizes": (8, 8),
        "rollout_steps": ROLLOUT,
        "m_steps": 2,
        "eval_episodes": 1,
        "eval_max_steps": 5,
        "console": False,
        "compile": False,
    }
    return VMPOTrainer(env_id, seed, "cpu", **{**defaults, **fields})


def train(folder: Path, total_steps: int = TOTAL, callbacks: Any = None, **fields: Any) -> VMPOTrainer:
    return trained(small_trainer(**fields), total_steps, folder, callbacks)
