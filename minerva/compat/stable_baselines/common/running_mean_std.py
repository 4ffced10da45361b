"""`RunningMeanStd`: mean and variance of a stream of arrays."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray


class RunningMeanStd:
    """Track mean and variance of arrays, batch by batch (Chan et al. 1979).

    Args:
        epsilon: Initial count, of a mean of 0 and a variance of 1.
        shape: Shape of one array.

    Attributes:
        mean: ``shape``.
        var: ``shape``.
        count: Number of arrays.
    """

    def __init__(self, epsilon: float = 1e-4, shape: tuple[int, ...] = ()) -> None:
        self.mean: NDArray[np.float64] = np.zeros(shape, np.float64)
        self.var: NDArray[np.float64] = np.ones(shape, np.float64)
        self.count = epsilon

    def update(self, arr: NDArray[Any]) -> None:
        """Take in a batch, ``[B, *shape]``."""
        self.update_from_moments(np.mean(arr, axis=0), np.var(arr, axis=0), arr.shape[0])

    def update_from_moments(self, batch_mean: NDArray[Any], batch_var: NDArray[Any], batch_count: float) -> None:
        """Take in a batch by its mean, variance and size."""
        total = self.count + batch_count
        delta = batch_mean - self.mean
        squares = self.var * self.count + batch_var * batch_count + delta**2 * self.count * batch_count / total
        self.mean = self.mean + delta * batch_count / total
        self.var = squares / total
        self.count = total
