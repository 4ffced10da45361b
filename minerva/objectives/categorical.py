"""The categorical distribution: log-probability, entropy, KL divergence, sampling and action masks.

All functions take logits, ``[..., n]``. A logit of -∞ means a probability of exactly 0: such an outcome adds nothing to
an entropy or a divergence, and its gradient is 0.
"""

from __future__ import annotations

import torch
from torch import Tensor


def masked_logits(logits: Tensor, mask: Tensor) -> Tensor:
    """Mask logits so that forbidden outcomes have probability 0.

    Args:
        logits: l, ``[..., n]``.
        mask: m, 1 where an outcome is allowed, else 0, the same shape. At least one outcome must be allowed.

    Returns:
        The logits, ``[..., n]``: unchanged where allowed, else -∞.
    """
    # LaTeX: l_i \leftarrow l_i + \log m_i
    return torch.where(mask > 0, logits, float("-inf"))


def categorical_log_prob(logits: Tensor, outcomes: Tensor) -> Tensor:
    """Compute the log-probability of categorical outcomes.

    Args:
        logits: l, ``[..., n]``.
        outcomes: a, indices from 0, ``[...]``, any dtype.

    Returns:
        log p(a), ``[...]``.
    """
    # LaTeX: \log p_i = l_i - \log \sum_k e^{l_k}
    log_p = torch.log_softmax(logits, dim=-1)
    return log_p.gather(-1, outcomes.long().unsqueeze(-1)).squeeze(-1)


def categorical_entropy(logits: Tensor) -> Tensor:
    """Compute the entropy of a categorical distribution.

    Args:
        logits: l, ``[..., n]``.

    Returns:
        H, ``[...]``.
    """
    log_p = torch.log_softmax(logits, dim=-1)
    p = log_p.exp()
    # 0 log 0 = 0. `where` comes before the product, because 0 times -∞ and its gradient are NaN.
    # LaTeX: H = -\sum_i p_i \log p_i
    return -(p * torch.where(p > 0, log_p, 0.0)).sum(-1)


def categorical_kl(logits: Tensor, other: Tensor) -> Tensor:
    """Compute KL(p ‖ q) of two categorical distributions; infinite where p allows an outcome that q does not.

    Args:
        logits: Logits of p, ``[..., n]``.
        other: Logits of q, the same shape.

    Returns:
        D, ``[...]``.
    """
    log_p, log_q = torch.log_softmax(logits, dim=-1), torch.log_softmax(other, dim=-1)
    p, q = log_p.exp(), log_q.exp()
    # LaTeX: \Delta_i = \log p_i - \log q_i
    change = torch.where(p > 0, log_p - log_q, 0.0)
    # The δ sum to 0. With them, each term of D is of second order in a small change, as D is. Without them, terms of
    # first order cancel, and for a change of 1e-4 no digit would be correct in float32.
    small = change.clamp(-1.0, 1.0)
    # LaTeX: \delta_i = q_i - p_i = p_i (e^{-\Delta_i} - 1)
    shift = torch.where((change == small) & (p > 0), p * (-small).expm1(), q - p)
    # LaTeX: D = \sum_i \left( p_i \Delta_i + \delta_i \right)
    return (p * change + shift).sum(-1)


def categorical_sample(logits: Tensor, uniform: Tensor) -> Tensor:
    """Sample a categorical distribution by inverting its cumulative distribution.

    Args:
        logits: l, ``[..., n]``.
        uniform: u, uniform numbers from [0, 1), ``[...]``.

    Returns:
        Outcomes as indices from 0, ``[...]``, int64; never one of probability 0.
    """
    p = torch.softmax(logits, dim=-1)
    positions = torch.arange(p.shape[-1], device=p.device)
    # LaTeX: F_i = \sum_{k \le i} p_k
    cumulative = p.cumsum(-1)
    # Rounding can leave every F below u; on a GPU it can also let F grow where p is 0.
    last = torch.where(p > 0, positions, 0).amax(-1)
    # LaTeX: a = \min \{ i : p_i > 0,\; F_i > u \}
    first = torch.where((p > 0) & (cumulative > uniform.unsqueeze(-1)), positions, p.shape[-1]).amin(-1)
    return torch.minimum(first, last)


def categorical_mode(logits: Tensor) -> Tensor:
    """Return the most likely outcome of a categorical distribution, the first for a tie: ``[...]``, int64."""
    # LaTeX: a = \arg\max_i l_i
    return logits.argmax(-1)
