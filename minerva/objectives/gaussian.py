"""The diagonal Gaussian: log-density, entropy and cross-entropy, summed over action dimensions."""

from __future__ import annotations

import math

from torch import Tensor


def gaussian_log_prob(mean: Tensor, log_std: Tensor, actions: Tensor) -> Tensor:
    """Compute the log-density of a diagonal Gaussian.

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
    """Compute the entropy of a diagonal Gaussian.

    Args:
        log_std: log σ, ``[..., A]``.

    Returns:
        H, ``[...]``.
    """
    # LaTeX: H = \sum_j \left( \tfrac12 + \tfrac12 \log 2\pi + \log \sigma_j \right)
    return (0.5 + 0.5 * math.log(2 * math.pi) + log_std).sum(-1)


def gaussian_cross_entropy(mean: Tensor, log_std: Tensor, old_mean: Tensor, old_log_std: Tensor) -> Tensor:
    """Compute the cross-entropy of two diagonal Gaussians: the mean of -log N(u; μ, σ) over samples u of the old one.

    Args:
        mean: μ, ``[..., A]``.
        log_std: log σ, broadcast to the same shape.
        old_mean: μ', mean of the Gaussian that u is sampled from, ``[..., A]``.
        old_log_std: log σ', its log standard deviation.

    Returns:
        H(N', N), ``[...]``.
    """
    # LaTeX: v_j = \frac{\sigma_j'^2 + (\mu'_j - \mu_j)^2}{\sigma_j^2}
    v = ((2 * old_log_std).exp() + (old_mean - mean) ** 2) * (-2 * log_std).exp()
    # LaTeX: H(\mathcal{N}', \mathcal{N}) = \sum_j \left( \tfrac12 v_j + \log \sigma_j + \tfrac12 \log 2\pi \right)
    return (0.5 * v + log_std + 0.5 * math.log(2 * math.pi)).sum(-1)
