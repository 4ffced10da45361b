"""Arrays of observations, one per part of an observation space."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from gymnasium import Space, spaces
from numpy.typing import NDArray

Shape = tuple[int, ...]


def obs_space_info(obs_space: Space[Any]) -> tuple[list[Any], dict[Any, Shape], dict[Any, np.dtype[Any]]]:
    """Return the keys of a space's parts, their shapes and their types; the only key of a plain space is None."""
    if isinstance(obs_space, spaces.Dict):
        parts: dict[Any, Space[Any]] = dict(obs_space.spaces)
    elif isinstance(obs_space, spaces.Tuple):
        parts = dict(enumerate(obs_space.spaces))
    else:
        parts = {None: obs_space}
    shapes = {key: tuple(part.shape or ()) for key, part in parts.items()}
    dtypes = {key: np.dtype(part.dtype) for key, part in parts.items()}
    return list(parts), shapes, dtypes


def copy_obs_dict(obs: Mapping[Any, NDArray[Any]]) -> OrderedDict[Any, NDArray[Any]]:
    """Copy the arrays of a dict."""
    return OrderedDict((key, values.copy()) for key, values in obs.items())


def dict_to_obs(space: Space[Any], obs_dict: Mapping[Any, Any]) -> Any:
    """Return a dict of arrays in the form of the space: a dict, a tuple or one array."""
    if isinstance(space, spaces.Dict):
        return obs_dict
    if isinstance(space, spaces.Tuple):
        return tuple(obs_dict[i] for i in range(len(space.spaces)))
    return obs_dict[None]


def stack_observations(space: Space[Any], observations: Sequence[Any]) -> Any:
    """Stack observations of one space into an array ``[N, ...]``, or a dict or tuple of arrays."""
    if isinstance(space, spaces.Dict):
        return OrderedDict(
            (key, stack_observations(s, [obs[key] for obs in observations])) for key, s in space.spaces.items()
        )
    if isinstance(space, spaces.Tuple):
        return tuple(stack_observations(s, [obs[i] for obs in observations]) for i, s in enumerate(space.spaces))
    return np.stack([np.asarray(obs, dtype=space.dtype) for obs in observations])
