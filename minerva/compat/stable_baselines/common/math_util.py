"""Mathematical helpers of scripts."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


def discount(vector: Array, gamma: float) -> Array:
    """Return discounted sums along the first axis: ``y[t] = x[t] + gamma * y[t + 1]``.

    Args:
        vector: The values, ``[T, ...]``.
        gamma: The discount.
    """
    return discount_with_boundaries(np.asarray(vector, dtype=np.float64), np.zeros(len(vector)), gamma)


def discount_with_boundaries(rewards: Array, episode_starts: Array, gamma: float) -> Array:
    """Return discounted sums along the first axis that end where an episode does.

    Args:
        rewards: The rewards, ``[T, ...]``.
        episode_starts: Whether each step is the first of an episode, of the same shape or ``[T]``.
        gamma: The discount.
    """
    sums = np.array(rewards)
    for t in reversed(range(len(sums) - 1)):
        sums[t] = rewards[t] + gamma * sums[t + 1] * (1 - episode_starts[t + 1])
    return sums


def explained_variance(y_pred: Array, y_true: Array) -> float:
    """Return the fraction of the variance of values that a prediction explains, ``1 - Var[y - ŷ] / Var[y]``.

    Args:
        y_pred: The prediction, ``[T]``.
        y_true: The values, ``[T]``.
    """
    _check_dimensions(1, y_pred, y_true)
    variance = float(np.var(y_true))
    return math.nan if variance == 0 else 1 - float(np.var(y_true - y_pred)) / variance


def explained_variance_2d(y_pred: Array, y_true: Array) -> Array:
    """Return the fraction of the variance of each column that a prediction explains; 0 for a constant column.

    As in stable-baselines, the variance of the errors is that of all columns together.

    Args:
        y_pred: The prediction, ``[T, K]``.
        y_true: The values, ``[T, K]``.
    """
    _check_dimensions(2, y_pred, y_true)
    variances = np.var(y_true, axis=0)
    constant = variances < 1e-10
    return np.where(constant, 0.0, 1 - np.var(y_true - y_pred) / np.where(constant, 1.0, variances))


def flatten_arrays(arrs: Sequence[Array]) -> Array:
    """Return the elements of all arrays in one vector."""
    return np.concatenate([np.ravel(array) for array in arrs])


def unflatten_vector(vec: Array, shapes: Sequence[tuple[int, ...]]) -> list[Array]:
    """Cut a vector into arrays.

    Args:
        vec: The vector.
        shapes: Shapes of the arrays.
    """
    sizes = [int(np.prod(shape)) for shape in shapes]
    parts = np.split(vec[: sum(sizes)], np.cumsum(sizes)[:-1])
    return [part.reshape(shape) for part, shape in zip(parts, shapes, strict=True)]


def scale_action(action_space: Any, action: Array) -> Array:
    """Rescale an action from the bounds of its space to [-1, 1].

    Args:
        action_space: The space, a Box.
        action: The action.
    """
    low, high = action_space.low, action_space.high
    scaled: Array = 2.0 * (action - low) / (high - low) - 1.0
    return scaled


def unscale_action(action_space: Any, scaled_action: Array) -> Array:
    """Rescale an action from [-1, 1] to the bounds of its space.

    Args:
        action_space: The space, a Box.
        scaled_action: The action.
    """
    low, high = action_space.low, action_space.high
    action: Array = low + 0.5 * (scaled_action + 1.0) * (high - low)
    return action


def _check_dimensions(count: int, *arrays: Array) -> None:
    for name, array in zip(("y_pred", "y_true"), arrays, strict=True):
        if array.ndim != count:
            raise AssertionError(f"{name}: must have {count} dimension(s), got the shape {array.shape}.")


def safe_mean(arr: Sequence[float]) -> float:
    """Return the mean of numbers, "not a number" of none."""
    return float(np.mean(arr)) if len(arr) else math.nan
