"""Independent Bernoulli variables: log-probability, entropy, KL divergence and sampling, summed over the entries.

All functions take logits, ``[..., A]``: the sigmoid of a logit is the probability of a 1.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from minerva.objectives.categorical import categorical_kl


def bernoulli_log_prob(logits: Tensor, outcomes: Tensor) -> Tensor:
    """Compute the log-probability of outcomes of independent Bernoulli variables.

    Args:
        logits: l, ``[..., A]``.
        outcomes: b, 0 or 1, the same shape and dtype.

    Returns:
        log P(b), ``[...]``.
    """
    # LaTeX: \log P(b) = \sum_j \log \sigma\left( (2 b_j - 1)\, l_j \right)
    return logsigmoid((2 * outcomes - 1) * logits).sum(-1)


def bernoulli_entropy(logits: Tensor) -> Tensor:
    """Compute the entropy of independent Bernoulli variables.

    Args:
        logits: l, ``[..., A]``.

    Returns:
        H, ``[...]``.
    """
    # LaTeX: p_j = \sigma(l_j)
    p = logits.sigmoid()
    # LaTeX: H = -\sum_j \left( p_j \log p_j + (1 - p_j) \log(1 - p_j) \right)
    return -(p * logsigmoid(logits) + (-logits).sigmoid() * logsigmoid(-logits)).sum(-1)


def bernoulli_kl(logits: Tensor, other: Tensor) -> Tensor:
    """Compute KL(p ‖ q) of independent Bernoulli variables.

    Each entry is a categorical distribution of two outcomes with logits l and 0.

    Args:
        logits: Logits of p, ``[..., A]``.
        other: Logits of q, the same shape.

    Returns:
        D, ``[...]``.
    """
    p, q = (torch.stack([x, torch.zeros_like(x)], dim=-1) for x in (logits, other))  # [..., A, 2]
    # LaTeX: D = \sum_j \left( p_j \log \frac{p_j}{q_j} + (1 - p_j) \log \frac{1 - p_j}{1 - q_j} \right)
    return categorical_kl(p, q).sum(-1)


def bernoulli_sample(logits: Tensor, uniform: Tensor) -> Tensor:
    """Sample independent Bernoulli variables.

    Args:
        logits: l, ``[..., A]``.
        uniform: u, uniform numbers from [0, 1), the same shape.

    Returns:
        0 or 1, ``[..., A]``, of the dtype of `uniform`.
    """
    # LaTeX: b_j = \mathbb{1}[ u_j < \sigma(l_j) ]
    return (uniform < logits.sigmoid()).to(uniform.dtype)


def bernoulli_mode(logits: Tensor) -> Tensor:
    """Return the more likely outcome of each Bernoulli variable, 0 for a tie: ``[..., A]``."""
    # LaTeX: b_j = \mathbb{1}[ l_j > 0 ]
    return (logits > 0).to(logits.dtype)
