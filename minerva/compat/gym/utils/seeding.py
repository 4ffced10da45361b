"""Random numbers of environments."""

from __future__ import annotations

import numpy as np

from minerva.compat.gym.core import random_seed


def np_random(seed: int | None = None) -> tuple[np.random.RandomState, int]:
    """Return a generator with the methods that older environments call (``randint``, ``rand``, …), and its seed."""
    if seed is not None and seed < 0:
        raise ValueError(f"seed: must be at least 0 or None, got {seed}.")
    seed = random_seed() if seed is None else int(seed)
    return np.random.RandomState(seed % 2**32), seed
