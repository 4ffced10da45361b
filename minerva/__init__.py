"""Minerva: policy optimisation in PyTorch that can be read, trusted and resumed."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from minerva.api import Policy, load, train
    from minerva.trainers.ppo.trainer import PPOTrainer

__version__ = "0.1.0"

_WHERE = {
    "PPOTrainer": "minerva.trainers.ppo.trainer",
    "Policy": "minerva.api",
    "load": "minerva.api",
    "train": "minerva.api",
}

__all__ = ["PPOTrainer", "Policy", "__version__", "load", "train"]


def __getattr__(name: str) -> Any:
    # Lazily, so that `import minerva` and `minerva --help` do not wait for torch.
    if name in _WHERE:
        return getattr(importlib.import_module(_WHERE[name]), name)
    raise AttributeError(f"module 'minerva' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
