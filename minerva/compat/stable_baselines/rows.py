"""Observations and actions: from the forms of scripts to rows of numbers, and back."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import Space, spaces
from numpy.typing import NDArray

from minerva.environments.spaces import flat_size

Array = NDArray[Any]


def stored_actions(space: Space[Any], actions: Any, count: int) -> NDArray[np.float32]:
    """Turn actions in the space's own form, one or `count` of them, into the form that is scored: ``[B, A]``.

    Raises:
        ValueError: They are not as many.
    """
    values = np.asarray(actions, dtype=np.float32)
    if isinstance(space, (spaces.Discrete, spaces.MultiDiscrete)):
        values = values - np.asarray(space.start, dtype=np.float32)
    size = max(1, int(np.prod(space.shape or ())))
    if values.size != count * size:
        raise ValueError(
            f"actions: must be {count} of the space {space}, as many as observations; got an array of shape "
            f"{values.shape}."
        )
    return values.reshape(count, size)


def observations_of(space: Space[Any], rows: Array) -> Array:
    """Give rows ``[N, O]`` the shape of a Box's observations, ``[N, ...]``, masks left out; others stay rows."""
    seen = rows[:, : flat_size(space)]
    return seen.reshape(len(rows), *space.shape) if isinstance(space, spaces.Box) else seen
