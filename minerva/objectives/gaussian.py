"""The diagonal Gaussian: density and entropy, summed over action dimensions."""

from __future__ import annotations

import math

from torch import Tensor


def gaussian_log_prob(mean: Tensor, log_std: Tensor, actions: Tensor) -> Tensor:
    """Log-density of a diagonal Gaussian.

    Args:
        mean: μ, ``[..., A]``.
        log_std: log σ, broadcast to the same shape.
        actions: a, ``[..., A]``.

    Returns:
        log N(a; μ, σ), ``[...]``.
    """
    # LaTeX: z_j = \frac{a_j - \mu_j}{\sigma_j}
    z = (actions - mean) * (-log_std).exp()
    # LaTeX: \log \mathcal{N}(a; \mu, \sigma) = \sum_j \left( -\tfrac12 z_j^2 - \log \sigma_j - \tfrac12 \log 2\pi \right)
    return (-0.5 * z**2 - log_std - 0.5 * math.log(2 * math.pi)).sum(-1)


def gaussian_entropy(log_std: Tensor) -> Tensor:
    """Entropy of a diagonal Gaussian.

    Args:
        log_std: log σ, ``[..., A]``.

    Returns:
        H, ``[...]``.
    """
    # LaTeX: H = \sum_j \left( \tfrac12 + \tfrac12 \log 2\pi + \log \sigma_j \right)
    return (0.5 + 0.5 * math.log(2 * math.pi) + log_std).sum(-1)
