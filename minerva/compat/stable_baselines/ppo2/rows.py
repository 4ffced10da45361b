"""Convert actions from the shapes of scripts to flat rows."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import Space, spaces
from numpy.typing import NDArray

Array = NDArray[Any]


def stored_actions(space: Space[Any], actions: Any, count: int) -> NDArray[np.float32]:
    """Convert `count` actions of a space into rows ``[count, A]``, from which log-probabilities are computed.

    Raises:
        ValueError: The number of actions is not `count`.
    """
    values = np.asarray(actions, dtype=np.float32)
    if isinstance(space, (spaces.Discrete, spaces.MultiDiscrete)):
        values = values - np.asarray(space.start, dtype=np.float32)
    size = max(1, int(np.prod(space.shape or ())))
    if values.size != count * size:
        raise ValueError(
            f"actions: must be {count} actions of {space}, one per observation, got an array of shape {values.shape}."
        )
    return values.reshape(count, size)
