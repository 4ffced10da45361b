"""Runs of a second: Pendulum-v1, tiny networks, short rollouts."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

from minerva import checkpointing
from minerva.trainers.vmpo.trainer import VMPOTrainer
from tests.trainers.ppo.small_run import metrics_of, same

ROLLOUT = 16


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


def state_of(folder: Path, which: str = "last") -> dict[str, Any]:
    """A checkpoint's state, less the log's length in bytes, which the clock's numbers change."""
    state: dict[str, Any] = checkpointing.read(folder / f"vmpo_{which}.pt")["state"]
    del state["log_position"]
    return state


def same_run(one: Path, other: Path) -> bool:
    return same(state_of(one), state_of(other)) and repr(metrics_of(one)) == repr(metrics_of(other))


def interrupt_at(step: int) -> Callable[[Any], None]:
    def look(trainer: Any) -> None:
        if trainer.env_steps == step:
            signal.raise_signal(signal.SIGTERM)

    return look
