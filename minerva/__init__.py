"""Minerva: policy optimization in PyTorch that can be read, trusted and resumed."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from minerva.utils.cores import wait_briefly

if TYPE_CHECKING:
    from minerva.api import Policy, load, train
    from minerva.compat.stable_baselines.ppo2 import PPO2
    from minerva.trainers.mpo.trainer import MPOTrainer
    from minerva.trainers.ppo.trainer import PPOTrainer
    from minerva.trainers.vmpo.trainer import VMPOTrainer

__version__ = "0.1.0"

wait_briefly()

_WHERE = {
    "MPOTrainer": "minerva.trainers.mpo.trainer",
    "PPO2": "minerva.compat.stable_baselines.ppo2",
    "PPOTrainer": "minerva.trainers.ppo.trainer",
    "Policy": "minerva.api",
    "VMPOTrainer": "minerva.trainers.vmpo.trainer",
    "load": "minerva.api",
    "train": "minerva.api",
}

__all__ = ["PPO2", "MPOTrainer", "PPOTrainer", "Policy", "VMPOTrainer", "__version__", "load", "train"]


def __getattr__(name: str) -> Any:
    # Lazily, so that `import minerva` and `minerva --help` do not wait for torch.
    if name in _WHERE:
        return getattr(importlib.import_module(_WHERE[name]), name)
    raise AttributeError(f"module 'minerva' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
