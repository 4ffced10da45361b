"""Summary statistics of returns, with confidence intervals."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray


@dataclass(frozen=True)
class Summary:
    """Summary statistics of n returns."""

    n: int
    """Number of returns."""
    mean: float
    """Mean."""
    std: float
    """Population standard deviation (divided by n)."""
    median: float
    """Median."""
    iqm: float
    """Interquartile mean: the mean without the lowest and the highest quarter."""
    low: float
    """Lower end of the mean's 95% interval; NaN for a single return."""
    high: float
    """Upper end of the mean's 95% interval; NaN for a single return."""
    minimum: float
    """Minimum."""
    maximum: float
    """Maximum."""


def summarize(returns: ArrayLike) -> Summary:
    """Compute statistics of returns of any shape, with a 95% interval of the mean.

    The interquartile mean follows Agarwal et al. 2021, "Deep Reinforcement Learning at the Edge of the Statistical
    Precipice", and the rliable library: ``floor(n / 4)`` returns are cut at each end, so for n < 4 it is the mean.

    Raises:
        ValueError: There are no returns, or a return is not finite.
    """
    values = np.asarray(returns, dtype=np.float64).ravel()  # [n]
    if values.size == 0:
        raise ValueError("returns: must hold at least one value, got none; evaluate at least one episode.")
    if not np.isfinite(values).all():
        bad = int(np.count_nonzero(~np.isfinite(values)))
        raise ValueError(f"returns: must be finite, got {bad} of {values.size} that are NaN or infinite.")
    from scipy.stats import trim_mean

    equal = np.ptp(values) == 0.0  # avoids the rounding of a sum, so that mean and interval agree and std is 0
    low, high = mean_interval(values[:, None])
    return Summary(
        n=int(values.size),
        mean=float(values[0] if equal else values.mean()),
        std=0.0 if equal else float(values.std()),
        median=float(np.median(values)),
        iqm=float(trim_mean(values, 0.25)),
        low=float(low[0]),
        high=float(high[0]),
        minimum=float(values.min()),
        maximum=float(values.max()),
    )


def mean_interval(values: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Compute Student's 95% interval of the mean over the first axis; equal values give equal ends.

    It covers the true mean in 95 of 100 cases from two values on, if they are normal, and in 93 if they are moderately
    skewed; the percentile bootstrap of three values is at most as wide as they are apart, and covers it in 75.

    Args:
        values: Values `[n, k]`.

    Returns:
        Lower and upper ends `[k]`; NaN where n is 1.
    """
    n = len(values)
    if n < 2:
        return np.full(values.shape[1], np.nan), np.full(values.shape[1], np.nan)
    from scipy.special import stdtrit  # imported here, because not every command needs it

    # The mean of equal numbers may differ from them in the last bit.
    equal = np.ptp(values, axis=0) == 0.0
    mean = np.where(equal, values[0], values.mean(axis=0))
    half = np.where(equal, 0.0, stdtrit(n - 1, 0.975) * values.std(axis=0, ddof=1) / np.sqrt(n))
    return mean - half, mean + half
