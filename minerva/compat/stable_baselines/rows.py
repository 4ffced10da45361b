"""Observations and actions: from the forms of scripts to rows of numbers, and back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from gymnasium import Space, spaces
from numpy.typing import NDArray

from minerva.environments.spaces import flat_size, flat_writer

Array = NDArray[Any]


def rows_of(space: Space[Any], obs: Any, name: str = "observation") -> tuple[NDArray[np.float32], bool]:
    """Flatten an observation, or a batch of them as vector environments give it.

    Returns:
        Rows ``[B, O]``, and whether it was a single one.

    Raises:
        ValueError: It is no observation of the space.
    """
    if isinstance(space, (spaces.Dict, spaces.Tuple)):
        children = space.spaces.items() if isinstance(space, spaces.Dict) else enumerate(space.spaces)
        if isinstance(space, spaces.Dict) and not (isinstance(obs, Mapping) and set(obs) == set(space.spaces)):
            raise ValueError(f"{name}: must be a dict with {list(space.spaces)}, got {obs!r}.")
        parts = [rows_of(child, obs[key], f"{name}[{key!r}]") for key, child in children]
        return np.concatenate([rows for rows, _ in parts], axis=1), parts[0][1]
    values, shape = np.asarray(obs), tuple(space.shape or ())
    single = values.shape == shape
    if not single and (values.ndim == 0 or values.shape[1:] != shape):
        raise ValueError(f"{name}: must have the shape {shape}, or (B, *{shape}) for a batch; got {values.shape}.")
    batch = values[None] if single else values
    rows = np.zeros((len(batch), flat_size(space)), dtype=np.float32)
    if isinstance(space, spaces.Box):
        rows[:] = batch.reshape(len(batch), -1)
    else:
        write = flat_writer(space)
        for value, row in zip(batch, rows, strict=True):
            write(value, row)
    return rows, single


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
