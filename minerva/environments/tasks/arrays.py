"""Functions that NumPy arrays and torch tensors do not share as operators, so that a task is written once for both."""

from __future__ import annotations

import sys
from typing import Any, Literal

import numpy as np

Array = Any
"""A NumPy array or a torch tensor."""


def functions_for(array: Array) -> Any:
    """Return the module with the functions for an array: `numpy` or `torch`, which agree in the names used here."""
    return np if isinstance(array, np.ndarray) else sys.modules["torch"]


def as_double(array: Array) -> Array:
    """Return an array in float64."""
    return array.astype(np.float64) if isinstance(array, np.ndarray) else array.double()


def like(constants: np.ndarray[Any, Any], array: Array) -> Array:
    """Return constants of a model as the same kind of array as another one, on its device."""
    if isinstance(array, np.ndarray):
        return constants
    return functions_for(array).as_tensor(constants, device=array.device)


def clip(array: Array, low: float, high: float) -> Array:
    """Return the numbers of an array, limited to a range."""
    return functions_for(array).clip(array, low, high)


def concatenate(*arrays: Array) -> Array:
    """Return arrays ``[N, ...]`` side by side as one, ``[N, sum of their sizes]``."""
    return functions_for(arrays[0]).concatenate([array.reshape(len(array), -1) for array in arrays], axis=1)


def norm(array: Array) -> Array:
    """Return the lengths of vectors ``[N, K]``, ``[N]``."""
    return (array * array).sum(axis=-1) ** 0.5


def tolerance(
    x: Array,
    low: float = 0.0,
    high: float = 0.0,
    margin: float = 0.0,
    sigmoid: Literal["gaussian", "linear", "quadratic"] = "gaussian",
    value_at_margin: float = 0.1,
) -> Array:
    """Return 1 where x is between two bounds, and less the farther it is outside, as dm_control's rewards do.

    Args:
        x: Any numbers.
        low: Lower bound.
        high: Upper bound.
        margin: Distance from the bounds at which the result is `value_at_margin`; with 0 it is 0 everywhere outside.
        sigmoid: How it decreases. Only the Gaussian never reaches 0.
        value_at_margin: The value at the margin.
    """
    where = functions_for(x).where
    bounded = high < np.inf
    inside = (x >= low) & (x <= high) if bounded else x >= low
    if margin == 0:
        return where(inside, 1.0, x * 0.0)
    distance = (where(x < low, low - x, x - high) if bounded else low - x) / margin
    if sigmoid == "gaussian":
        outside = functions_for(x).exp(-0.5 * (distance * (-2 * np.log(value_at_margin)) ** 0.5) ** 2)
    else:
        power = 1 if sigmoid == "linear" else 2
        scaled = distance * (1 - value_at_margin) ** (1 / power)
        outside = where(scaled < 1, 1 - scaled**power, 0.0)
    return where(inside, 1.0, outside)
