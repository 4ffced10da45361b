"""Running mean and variance of a stream of vectors, and normalization by them."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn


class RunningNorm(nn.Module):
    """Normalizes vectors by the mean and variance of everything taken in so far.

    The statistics are float64 buffers, hence part of every `state_dict`: a sum over hundreds of millions of samples
    loses nothing. They move only in `update`.

    Args:
        dim: Length of the vectors.
        clip: Normalized values are clipped to ``[-clip, clip]``.
        eps: Added to the variance before the root.
        passed: How many entries follow those that are normalized, and pass as they are (an action mask).
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

    def update(self, x: Tensor | NDArray[Any]) -> None:
        """Take in a batch B beside all that came before it, A (Chan et al.'s parallel form of Welford's algorithm).

        Args:
            x: Vectors, ``[B, dim + passed]``; an empty batch changes nothing.
        """
        self.take_in(self._float64(x))

    def forward(self, x: Tensor) -> Tensor:
        """Normalize vectors of any batch shape, in their own dtype; no gradient passes."""
        result = torch.as_tensor(self._normalized(self._float64(x))).to(x.dtype)
        return result if self.passed == 0 else torch.cat([result, x[..., -self.passed :]], dim=-1)

    def see(self, x: NDArray[np.float32]) -> NDArray[np.float32]:
        """Do what `update` and then `forward` do, for an array ``[B, dim + passed]`` on the CPU."""
        values = self._float64(x)
        self.take_in(values)
        result: NDArray[np.float32] = self._normalized(values).astype(np.float32)
        return result if self.passed == 0 else np.concatenate([result, x[:, -self.passed :]], axis=1)

    # The formulas, for arrays and tensors alike

    def take_in(self, batch: Any) -> None:
        """Do what `update` does, for a batch that is float64 already, an array where the statistics are on the CPU."""
        rows = len(batch)
        if rows == 0:
            return
        mean, var, counter = self._statistics()
        # LaTeX: \bar{x}_B = \frac{1}{n_B} \sum_{i \in B} x_i
        batch_mean = batch[0] if rows == 1 else batch.sum(0) / rows
        # LaTeX: n_B \sigma_B^2 = \sum_{i \in B} (x_i - \bar{x}_B)^2
        squares = 0.0 if rows == 1 else ((batch - batch_mean) ** 2).sum(0)
        counter[...], mean[...], var[...] = merged(counter.item(), mean, var, rows, batch_mean, squares)

    def _normalized(self, values: Any) -> Any:
        mean, var, _ = self._statistics()
        deviation = (var + self.eps) ** 0.5
        clip = torch.clip if isinstance(values, Tensor) else _clip
        # LaTeX: \hat{x} = \mathrm{clip}\left( \frac{x - \bar{x}}{\sqrt{\sigma^2 + \epsilon}},\; -c,\; c \right)
        return clip((values - mean) / deviation, -self.clip, self.clip)

    def _float64(self, x: Tensor | NDArray[Any]) -> Any:
        """Give what is normalized of x in float64, as an array where the statistics are on the CPU, else as a tensor.

        For the short vectors of a control task torch's dispatch costs several times the work itself. Both kinds speak
        the same operators, so the formulas are written once.
        """
        if self.passed:
            x = x[..., : -self.passed]
        if self._buffers["mean"].device.type != "cpu":  # type: ignore[union-attr]
            return torch.as_tensor(x, device=self.mean.device).detach().double()
        values = x.detach().numpy() if isinstance(x, Tensor) else x
        return values.astype(np.float64)

    def _statistics(self) -> tuple[Any, Any, Any]:
        """Give mean, variance and count, on the CPU as arrays that share the buffers' memory."""
        mean = self._buffers["mean"]
        if self._views is None or self._views[0] is not mean:  # moved to another device, or not looked at yet
            held = (self.mean, self.var, self.count)
            self._views = (mean, tuple(part.numpy() for part in held) if self.mean.device.type == "cpu" else held)
        return self._views[1]

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_views": None}  # a copy has memory of its own


def _clip(x: Any, low: float, high: float) -> Any:
    """Do what NumPy's clip does, which takes several times as long for a few numbers."""
    return np.minimum(np.maximum(x, low), high)


def merged(count: float, mean: Any, var: Any, rows: float, batch_mean: Any, squares: Any) -> tuple[float, Any, Any]:
    """Merge what is known of samples A with what is known of a batch B (Chan et al.), for numbers, arrays or tensors.

    Args:
        count: n_A.
        mean: Of A.
        var: Of A.
        rows: n_B.
        batch_mean: Of B.
        squares: Of the deviations of B from its mean, added up.

    Returns:
        Count, mean and variance of both together.
    """
    # LaTeX: n = n_A + n_B
    total = count + rows
    # LaTeX[Chan1979]: \delta = \bar{x}_B - \bar{x}_A
    delta = batch_mean - mean
    # LaTeX[Chan1979]: \sigma^2 = \frac{n_A}{n} \sigma_A^2 + \frac{n_A n_B}{n^2} \delta^2 + \frac{n_B}{n} \sigma_B^2
    variance = var * (count / total) + delta * delta * (count * rows / total**2) + squares / total
    # LaTeX[Chan1979]: \bar{x} = \bar{x}_A + \delta \frac{n_B}{n}
    return total, mean + delta * (rows / total), variance
