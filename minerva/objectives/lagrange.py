"""The M-step's trust region in MPO and V-MPO: one Lagrange multiplier per KL bound.

Symbols: α multipliers, D KL divergences, ε_KL their bound.
"""

from __future__ import annotations

from torch import Tensor


def kl_penalty(alpha: Tensor, divergence: Tensor) -> Tensor:
    """Compute the policy's penalty for its KL divergence in the M-step, α D; no gradient reaches the multiplier α.

    Args:
        alpha: α, ``[A]`` or a scalar.
        divergence: D, the same shape.

    Returns:
        The same shape; the loss is the sum.
    """
    # LaTeX[Song2020, eq. 5]: \mathrm{sg}[\alpha_j]\, D_j
    return alpha.detach() * divergence


def alpha_loss(alpha: Tensor, divergence: Tensor, epsilon: float) -> Tensor:
    """Compute the dual loss of the M-step's KL bound: α grows where D exceeds ε_KL. No gradient reaches D.

    Args:
        alpha: α, ``[A]`` or a scalar.
        divergence: D, the same shape.
        epsilon: ε_KL.

    Returns:
        The same shape; the loss is the sum.
    """
    # LaTeX[Song2020, eq. 5]: \alpha_j \left( \epsilon_{\mathrm{KL}} - \mathrm{sg}[D_j] \right)
    return alpha * (epsilon - divergence.detach())
