"""Running mean and variance of a stream of vectors, and normalization by them."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

OUTLIER = 1e9
"""A number up to this size always counts as it is."""
OUTLIER_SQUARED = OUTLIER**2
OUTLIER_RATIO = 1e6
"""A larger one counts as it is up to so many times the size of the numbers seen before it."""
LARGEST_COUNTED = 1e19
"""The limit where nothing was seen before, and the highest one: the largest number with a square in float32."""


class RunningNorm(nn.Module):
    """Normalize vectors by the running mean and variance of all samples so far.

    A single absurd number, such as 3e38 from a simulation that has blown up, would make the variance so large that all
    later vectors normalize to 0. Such a number counts as what it normalizes to, the mean plus or minus `clip`
    deviations, and the user is warned. Where all numbers become that large, the statistics still follow them, because
    each one widens the deviation.

    The statistics are buffers, so they are part of every `state_dict`, and float64, so they stay exact over hundreds of
    millions of samples. Only `update` and `see` change them.

    Args:
        dim: Length of the vectors.
        clip: Normalized values are clipped to ``[-clip, clip]``.
        eps: Added to the variance before the square root.
        passed: Number of entries after the normalized ones that pass unchanged (an action mask).
    """

    mean: Tensor
    var: Tensor
    count: Tensor

    def __init__(self, dim: int, clip: float = 10.0, eps: float = 1e-8, passed: int = 0) -> None:
        super().__init__()
        self.passed = passed
        self.clip = clip
        self.eps = eps
        self.register_buffer("mean", torch.zeros(dim, dtype=torch.float64))
        self.register_buffer("var", torch.ones(dim, dtype=torch.float64))
        self.register_buffer("count", torch.tensor(1e-4, dtype=torch.float64))
        self._views: tuple[Tensor | None, Any] | None = None
        self._outliers = 0  # for the warnings

    def update(self, x: Tensor | NDArray[Any]) -> None:
        """Update the statistics of all samples so far, A, with a batch B (Chan et al.'s parallel Welford algorithm).

        Args:
            x: Vectors, ``[B, dim + passed]``; an empty batch changes nothing.
        """
        self._update(self._float64(x))

    def forward(self, x: Tensor) -> Tensor:
        """Normalize vectors of any batch shape, in their own dtype, without gradient."""
        result = torch.as_tensor(self._normalized(self._float64(x))).to(x.dtype)
        return result if self.passed == 0 else torch.cat([result, x[..., -self.passed :]], dim=-1)

    def see(self, x: NDArray[np.float32]) -> NDArray[np.float32]:
        """Update the statistics with an array ``[B, dim + passed]`` on the CPU and return it normalized."""
        values = self._float64(x)
        if len(values) == 1:  # arithmetic on two vectors takes half the time of broadcasting
            values = values[0]
        self._update(values)
        result: NDArray[np.float32] = self._normalized(values).astype(np.float32).reshape(len(x), -1)
        return result if self.passed == 0 else np.concatenate([result, x[:, -self.passed :]], axis=1)

    def merge(self, moments: Tensor) -> None:
        """Update the statistics with a batch of which only the moments are known, as `FrozenNorm.take` returns them."""
        rows, (batch_mean, batch_var) = moments[0].item(), moments[1:].view(2, -1)
        if rows == 0:
            return
        mean, var, counter = self._statistics()
        if not isinstance(mean, Tensor):
            batch_mean, batch_var = batch_mean.numpy(), batch_var.numpy()
        counter[...], mean[...], var[...] = merge_moments(counter.item(), mean, var, rows, batch_mean, rows * batch_var)

    # The formulas, for both arrays and tensors

    def _update(self, batch: Any) -> None:
        """Update the statistics with a batch ``[B, dim]`` or a single vector ``[dim]``."""
        single = batch.ndim == 1
        rows = 1 if single else len(batch)
        if rows == 0:
            return
        mean, var, counter = self._statistics()
        if may_hold_outliers(batch):
            batch = self._without_outliers(batch, mean, var, counter.item())
        # LaTeX: \bar{x}_B = \frac{1}{n_B} \sum_{i \in B} x_i
        batch_mean = batch if single else batch.sum(0) / rows
        # LaTeX: n_B \sigma_B^2 = \sum_{i \in B} (x_i - \bar{x}_B)^2
        squares = 0.0 if single else ((batch - batch_mean) ** 2).sum(0)
        counter[...], mean[...], var[...] = merge_moments(counter.item(), mean, var, rows, batch_mean, squares)

    def _without_outliers(self, batch: Any, mean: Any, var: Any, count: float) -> Any:
        deviation = var**0.5
        limit = outlier_limit(count, abs(mean) + deviation)
        wrong = abs(batch) > limit  # not where it is not a number
        found = int(wrong.sum())
        if found == 0:
            return batch
        first = float(batch[wrong][0])
        self._outliers = warn_about_outliers("an observation has the number", first, self._outliers, found)
        where = torch.where if isinstance(batch, Tensor) else np.where
        sign = (batch > 0) * 2.0 - 1.0
        return where(wrong, mean + sign * (self.clip * deviation), batch)

    def _normalized(self, values: Any) -> Any:
        mean, var, _ = self._statistics()
        deviation = (var + self.eps) ** 0.5
        clip = torch.clip if isinstance(values, Tensor) else _clip
        # LaTeX: \hat{x} = \mathrm{clip}\left( \frac{x - \bar{x}}{\sqrt{\sigma^2 + \epsilon}},\; -c,\; c \right)
        return clip((values - mean) / deviation, -self.clip, self.clip)

    def _float64(self, x: Tensor | NDArray[Any]) -> Any:
        """Return the normalized entries of x in float64: an array if the statistics are on the CPU, else a tensor.

        For the short vectors of control tasks, torch's dispatch costs several times the computation. Arrays and tensors
        share the operators, so each formula is written once.
        """
        if self.passed:
            x = x[..., : -self.passed]
        if self._buffers["mean"].device.type != "cpu":  # type: ignore[union-attr]
            return torch.as_tensor(x, device=self.mean.device).detach().double()
        values = x.detach().numpy() if isinstance(x, Tensor) else x
        return values.astype(np.float64)

    def _statistics(self) -> tuple[Any, Any, Any]:
        """Return mean, variance and count, on the CPU as arrays that share the buffers' memory."""
        mean = self._buffers["mean"]
        if self._views is None or self._views[0] is not mean:  # first use, or moved to another device
            buffers = (self.mean, self.var, self.count)
            self._views = (mean, tuple(part.numpy() for part in buffers) if self.mean.device.type == "cpu" else buffers)
        return self._views[1]

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_views": None}  # a copy has its own memory


class FrozenNorm:
    """Normalize by statistics that stay as they are, and keep the moments of what was seen until they are merged.

    Where several processes collect a rollout, each normalizes by the same statistics. Between two rollouts everyone
    merges what all have seen, in the same order, and has the same statistics again.

    Args:
        norm: The statistics, on the CPU. Only `RunningNorm.merge` changes them.
    """

    def __init__(self, norm: RunningNorm) -> None:
        self.norm = norm
        self.moments = self._nothing()

    def _nothing(self) -> Tensor:
        return torch.zeros(1 + 2 * len(self.norm.mean), dtype=torch.float64)

    def see(self, x: NDArray[np.float32]) -> NDArray[np.float32]:
        """Add an array ``[B, dim + passed]`` to the moments and return it normalized."""
        norm, moments = self.norm, self.moments.numpy()
        values = counted = norm._float64(x)
        if may_hold_outliers(values):
            mean, var, counter = norm._statistics()
            counted = norm._without_outliers(values, mean, var, counter.item())
        mean, var = moments[1:].reshape(2, -1)
        batch_mean = counted.mean(0)
        squares = ((counted - batch_mean) ** 2).sum(0)
        moments[0], mean[:], var[:] = merge_moments(moments[0], mean, var, len(counted), batch_mean, squares)
        result: NDArray[np.float32] = norm._normalized(values).astype(np.float32)
        return result if norm.passed == 0 else np.concatenate([result, x[:, -norm.passed :]], axis=1)

    def take(self) -> Tensor:
        """Return count, mean and variance of what was seen since the last call, ``[1 + 2 dim]``, and forget them."""
        taken, self.moments = self.moments, self._nothing()
        return taken


def _clip(x: Any, low: float, high: float) -> Any:
    """Clip an array; for a few numbers, several times faster than `numpy.clip`."""
    return np.minimum(np.maximum(x, low), high)


def may_hold_outliers(values: Any) -> bool:
    """Return False where no number is an outlier; a sum of squares is the cheapest way to know."""
    total = np.vdot(values, values) if isinstance(values, np.ndarray) else (values * values).sum()
    return bool(total > OUTLIER_SQUARED)


def outlier_limit(count: float, size: Any) -> Any:
    """Return the largest number that counts as it is, after `count` samples of a size (a number, array or tensor)."""
    if count < 1:
        return LARGEST_COUNTED
    clip = torch.clip if isinstance(size, Tensor) else _clip
    return clip(size * OUTLIER_RATIO, OUTLIER, LARGEST_COUNTED)


def warn_about_outliers(what: str, number: float, seen: int, found: int) -> int:
    """Warn at the first outlier, the tenth, the hundredth and so on; return how many there are now.

    Args:
        what: What has the number.
        number: The first of the new ones.
        seen: Outliers before.
        found: New ones.
    """
    now = seen + found
    if seen == 0 or len(str(now)) > len(str(seen)):
        warnings.warn(
            f"{what} {number:.3g}, far outside of everything before ({now:,} such so far); normalization clips it, so "
            "that it does not ruin the running mean and variance: check the environment",
            RuntimeWarning,
            stacklevel=2,
        )
    return now


def merge_moments(
    count: float, mean: Any, var: Any, rows: float, batch_mean: Any, squares: Any
) -> tuple[float, Any, Any]:
    """Merge count, mean and variance of samples A with those of a batch B (Chan et al.): numbers, arrays or tensors.

    Args:
        count: n_A.
        mean: Mean of A.
        var: Variance of A.
        rows: n_B.
        batch_mean: Mean of B.
        squares: Sum of squared deviations of B from its mean.

    Returns:
        Count, mean and variance of A and B together.
    """
    # LaTeX: n = n_A + n_B
    total = count + rows
    # LaTeX[Chan1979]: \delta = \bar{x}_B - \bar{x}_A
    delta = batch_mean - mean
    # LaTeX[Chan1979]: \sigma^2 = \frac{n_A}{n} \sigma_A^2 + \frac{n_A n_B}{n^2} \delta^2 + \frac{n_B}{n} \sigma_B^2
    variance = var * (count / total) + delta * delta * (count * rows / total**2) + squares / total
    # LaTeX[Chan1979]: \bar{x} = \bar{x}_A + \delta \frac{n_B}{n}
    return total, mean + delta * (rows / total), variance
