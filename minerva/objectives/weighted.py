"""Means and variances over the samples that count.

Symbols: w weights, 1 for a sample that counts, else 0 (for example a restarting step). A mask keeps shapes static;
filtering rows would not.
"""

from __future__ import annotations

from torch import Tensor


def weighted_mean(x: Tensor, weights: Tensor) -> Tensor:
    """Compute the mean over the samples that count (0 if none does).

    Args:
        x: Any shape.
        weights: w, the same shape, 0 or 1.

    Returns:
        A scalar.
    """
    # LaTeX: \mathbb{E}[x] = \frac{\sum_b w_b x_b}{\sum_b w_b}
    return (weights * x).sum() / weights.sum().clamp(min=1)


def weighted_sum(x: Tensor, weights: Tensor) -> Tensor:
    """Compute a part of a mean that is taken over more samples than these: the sum of all parts is the mean.

    Args:
        x: Any shape.
        weights: w, the same shape; over all samples, those of the other parts included, they sum to 1.

    Returns:
        A scalar.
    """
    return (weights * x).sum()


def weighted_variance(x: Tensor, weights: Tensor) -> Tensor:
    """Compute the population variance over the samples that count (0 if none does).

    Args:
        x: Any shape.
        weights: w, the same shape, 0 or 1.

    Returns:
        A scalar.
    """
    # LaTeX: \mathrm{Var}[x] = \mathbb{E}\left[(x - \mathbb{E}[x])^2\right]
    return weighted_mean((x - weighted_mean(x, weights)) ** 2, weights)


def effective_sample_size(weights: Tensor) -> Tensor:
    """Compute the effective sample size of weights: S if all are equal, 1 if one has all the weight.

    Args:
        weights: q, ``[..., S]``, summing to 1.

    Returns:
        ``[...]``.
    """
    # LaTeX: \mathrm{ESS} = \frac{1}{\sum_i q_i^2}
    return weights.square().sum(-1).reciprocal()
