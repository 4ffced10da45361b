"""Minerva: policy optimization in PyTorch that can be read, trusted and resumed."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from minerva.utils.cores import wait_briefly

if TYPE_CHECKING:
    from minerva.api import Policy, load, sweep, train, tune
    from minerva.callbacks import Callback
    from minerva.compat.stable_baselines.ppo2.ppo2 import PPO2
    from minerva.trainers.mpo.config import MPOConfig
    from minerva.trainers.mpo.trainer import MPOTrainer
    from minerva.trainers.ppo.config import PPOConfig
    from minerva.trainers.ppo.trainer import PPOTrainer
    from minerva.trainers.vmpo.config import VMPOConfig
    from minerva.trainers.vmpo.trainer import VMPOTrainer

__version__ = "0.1.0"

wait_briefly()

_WHERE = {
    "Callback": "minerva.callbacks",
    "MPOConfig": "minerva.trainers.mpo.config",
    "MPOTrainer": "minerva.trainers.mpo.trainer",
    "PPO2": "minerva.compat.stable_baselines.ppo2.ppo2",
    "PPOConfig": "minerva.trainers.ppo.config",
    "PPOTrainer": "minerva.trainers.ppo.trainer",
    "Policy": "minerva.api",
    "VMPOConfig": "minerva.trainers.vmpo.config",
    "VMPOTrainer": "minerva.trainers.vmpo.trainer",
    "load": "minerva.api",
    "sweep": "minerva.api",
    "train": "minerva.api",
    "tune": "minerva.api",
}

__all__ = [
    "PPO2", "Callback", "MPOConfig", "MPOTrainer", "PPOConfig", "PPOTrainer", "Policy", "VMPOConfig", "VMPOTrainer",
    "__version__", "load", "sweep", "train", "tune",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    # Lazily, so that `import minerva` and `minerva --help` do not wait for torch.
    if name in _WHERE:
        return getattr(importlib.import_module(_WHERE[name]), name)
    from minerva.utils.suggestions import suggest

    near = suggest(name, __all__)
    hint = f". Did you mean {' or '.join(near)}?" if near else ""
    raise AttributeError(f"module 'minerva' has no attribute {name!r}{hint}")


def __dir__() -> list[str]:
    return __all__
