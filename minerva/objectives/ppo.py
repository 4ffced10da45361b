"""PPO's losses (Schulman et al. 2017) and diagnostics, one value per sample; the caller averages.

Symbols: ρ probability ratio (r_t in the paper), Â normalized advantages, ε clip range, V values, R returns,
w weights (0 for a restarting step, else 1).
"""

from __future__ import annotations

import torch
from torch import Tensor

from minerva.objectives.critic import value_loss
from minerva.objectives.weighted import weighted_mean


def normalize_advantages(advantages: Tensor, weights: Tensor, unbiased: bool = True) -> Tensor:
    """Normalize advantages: center them and divide by their standard deviation.

    Args:
        advantages: A, any shape.
        weights: w, the same shape, 0 or 1.
        unbiased: Use the unbiased variance (k = 1), else the population variance (k = 0).

    Returns:
        Â; A itself where fewer than two samples count, because their deviation is undefined.
    """
    count = weights.sum()
    centered = advantages - weighted_mean(advantages, weights)
    # LaTeX: s_A^2 = \frac{1}{\sum_b w_b - k} \sum_b w_b \left( A_b - \mathbb{E}[A] \right)^2
    variance = (weights * centered**2).sum() / (count - int(unbiased)).clamp(min=1)
    # LaTeX[Huang2022]: \hat{A} = \frac{A - \mathbb{E}[A]}{s_A + 10^{-8}}
    normalized = centered / (variance.sqrt() + 1e-8)
    return torch.where(count > 1, normalized, advantages)


def clipped_policy_loss(log_ratio: Tensor, advantages: Tensor, clip_ratio: Tensor | float) -> Tensor:
    """Compute the negated clipped surrogate objective (Schulman et al. 2017, eq. 7).

    Args:
        log_ratio: log ρ, ``[B]``.
        advantages: Â, ``[B]``.
        clip_ratio: ε.

    Returns:
        ``[B]``.
    """
    # LaTeX[Schulman2017, eq. 6]: \rho = \frac{\pi(a|s)}{\pi_{\mathrm{old}}(a|s)} = e^{\log \rho}
    ratio = log_ratio.exp()
    # LaTeX[Schulman2017, eq. 7]: \ell_{\mathrm{pg}} = \max\left(-\hat{A} \rho,\; -\hat{A}\, \mathrm{clip}(\rho, 1 - \epsilon, 1 + \epsilon)\right)
    return torch.max(-advantages * ratio, -advantages * _clip(ratio, 1 - clip_ratio, 1 + clip_ratio))


def clipped_value_loss(values: Tensor, old_values: Tensor, returns: Tensor, clip_ratio: Tensor | float) -> Tensor:
    """Compute half the squared error of the critic, at least that of the value clipped to ε around the old one.

    Args:
        values: V, ``[B]``.
        old_values: V_old, ``[B]``.
        returns: R, ``[B]``.
        clip_ratio: ε.

    Returns:
        ``[B]``.
    """
    # LaTeX[Huang2022]: V_{\mathrm{clip}} = V_{\mathrm{old}} + \mathrm{clip}(V - V_{\mathrm{old}}, -\epsilon, \epsilon)
    clipped = old_values + _clip(values - old_values, -clip_ratio, clip_ratio)
    # LaTeX[Huang2022]: \ell_V = \tfrac12 \max\left((V - R)^2,\; (V_{\mathrm{clip}} - R)^2\right)
    return torch.max(value_loss(values, returns), value_loss(clipped, returns))


def kl_estimate(log_ratio: Tensor) -> Tensor:
    """Estimate KL(π_old ‖ π), unbiased and never negative (Schulman 2020, "k3").

    Args:
        log_ratio: log ρ, ``[B]``.

    Returns:
        ``[B]``.
    """
    # LaTeX[Schulman2020, k3]: k_3 = \rho - 1 - \log \rho
    return log_ratio.expm1() - log_ratio


def is_clipped(log_ratio: Tensor, clip_ratio: Tensor | float) -> Tensor:
    """Return which samples have a probability ratio outside the clip range.

    Args:
        log_ratio: log ρ, ``[B]``.
        clip_ratio: ε.

    Returns:
        ``[B]``, 0 or 1.
    """
    # LaTeX: \mathbb{1}\left[\,|\rho - 1| > \epsilon\,\right]
    return (log_ratio.expm1().abs() > clip_ratio).to(log_ratio.dtype)


def _clip(x: Tensor, low: Tensor | float, high: Tensor | float) -> Tensor:
    clipped: Tensor = torch.clamp(x, low, high)  # type: ignore[arg-type]  # both numbers, or both tensors
    return clipped
