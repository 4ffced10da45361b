"""The M-step's trust region: a Lagrange multiplier for each KL bound, in MPO and V-MPO alike.

Symbols: α multipliers, D KL divergences, ε_KL their bound.
"""

from __future__ import annotations

from torch import Tensor


def kl_penalty(alpha: Tensor, divergence: Tensor) -> Tensor:
    """What the policy pays for moving; the multiplier is fixed.

    Args:
        alpha: α, ``[A]`` or a scalar.
        divergence: D, the same shape.

    Returns:
        The same shape; the loss takes the sum.
    """
    # LaTeX[Song2020, eq. 5]: \mathrm{sg}[\alpha_j]\, D_j
    return alpha.detach() * divergence


def alpha_loss(alpha: Tensor, divergence: Tensor, epsilon: float) -> Tensor:
    """The dual of the M-step's KL bound: the multiplier grows where the bound is broken. D is fixed.

    Args:
        alpha: α, ``[A]`` or a scalar.
        divergence: D, the same shape.
        epsilon: ε_KL.

    Returns:
        The same shape; the loss takes the sum.
    """
    # LaTeX[Song2020, eq. 5]: \alpha_j \left( \epsilon_{\mathrm{KL}} - \mathrm{sg}[D_j] \right)
    return alpha * (epsilon - divergence.detach())
