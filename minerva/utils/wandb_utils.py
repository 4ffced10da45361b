"""Logging to Weights & Biases without depending on it."""

from __future__ import annotations

import sys
from collections.abc import Mapping

GLOBAL_STEP = "global_step"


def log_wandb(metrics: Mapping[str, float], step: int | None = None) -> bool:
    """Log metrics to the active W&B run, if there is one.

    The package is never imported here: if it is not imported yet, no run can be active.

    Args:
        metrics: Values by name.
        step: The environment step. It is logged as the metric ``global_step`` and not as W&B's own step, which must
            increase: W&B would silently drop the rows that a resumed run logs again.

    Returns:
        Whether there was an active run.
    """
    wandb = sys.modules.get("wandb")
    # None during the import of the package, and if another module of that name is empty.
    run = getattr(wandb, "run", None)
    if run is None:
        return False
    row = {name: float(value) for name, value in metrics.items()}
    if step is not None:
        row[GLOBAL_STEP] = step
    run.log(row)
    return True
