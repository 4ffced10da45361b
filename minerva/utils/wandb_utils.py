"""Logging to Weights & Biases from anywhere, without depending on it."""

from __future__ import annotations

import sys
from collections.abc import Mapping

GLOBAL_STEP = "global_step"


def log_wandb(metrics: Mapping[str, float], step: int | None = None) -> bool:
    """Log metrics to the active W&B run, if there is one.

    The package is never imported here: when nobody has imported it, no run can be active.

    Args:
        metrics: Values by name.
        step: The environment step. It is logged as the metric ``global_step`` rather than as W&B's own step, which may
            only grow and so would silently drop the rows that a resumed run logs again.

    Returns:
        Whether there was an active run to log to.
    """
    wandb = sys.modules.get("wandb")
    # None while the package is still being imported, and where something else has put an empty module of that name.
    run = getattr(wandb, "run", None)
    if run is None:
        return False
    row = {name: float(value) for name, value in metrics.items()}
    if step is not None:
        row[GLOBAL_STEP] = step
    run.log(row)
    return True
