"""What a critic of states is fitted with, and how good its fit is.

Symbols: V values, R returns, w weights (0 for a restarting step, else 1).
"""

from __future__ import annotations

import torch
from torch import Tensor

from minerva.objectives.weighted import weighted_variance


def value_loss(values: Tensor, returns: Tensor) -> Tensor:
    """Compute half the squared error of the critic.

    Args:
        values: V, ``[B]``.
        returns: R, ``[B]``.

    Returns:
        ``[B]``.
    """
    # LaTeX[Schulman2017, sec. 5]: \ell_V = \tfrac12 (V - R)^2
    return 0.5 * (values - returns) ** 2


def explained_variance(returns: Tensor, values: Tensor, weights: Tensor) -> Tensor:
    """Compute the fraction of the returns' variance that the values explain.

    Args:
        returns: R, any shape.
        values: V, the same shape.
        weights: w, the same shape, 0 or 1.

    Returns:
        A scalar; NaN where the returns do not vary.
    """
    variance = weighted_variance(returns, weights)
    # LaTeX: \mathrm{EV} = 1 - \frac{\mathrm{Var}[R - V]}{\mathrm{Var}[R]}
    explained = 1 - weighted_variance(returns - values, weights) / variance
    return torch.where(variance == 0, torch.full_like(variance, torch.nan), explained)
