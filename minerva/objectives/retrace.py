"""Retrace(λ): off-policy value targets from sequences of another policy (Munos et al. 2016)."""

from __future__ import annotations

import torch
from torch import Tensor


def retrace_target(
    q_values: Tensor,
    next_values: Tensor,
    rewards: Tensor,
    terminated: Tensor,
    ended: Tensor,
    log_ratios: Tensor,
    gamma: float,
    retrace_lambda: float,
) -> Tensor:
    """Compute the target for the first pair of each sequence (Munos et al. 2016; Abdolmaleki et al. 2018a, eq. 13).

    Args:
        q_values: Q'(s_t, a_t), ``[B, T]``.
        next_values: V(s_{t+1}), mean of the target critic over actions of the target policy, ``[B, T]``.
        rewards: r, ``[B, T]``.
        terminated: d, ``[B, T]``, 0 or 1.
        ended: e, ``[B, T]``, 0 or 1: the steps after a 1 are padding with any content.
        log_ratios: log π'(a_t | s_t) - log b(a_t | s_t), ``[B, T]``; the first is not used.
        gamma: γ.
        retrace_lambda: λ.

    Returns:
        Q_ret, ``[B]``.
    """
    # LaTeX[Abdolmaleki2018a, eq. 13]: \delta_t = r_t + \gamma (1 - d_t) V(s_{t+1}) - Q'(s_t, a_t)
    deltas = rewards + gamma * (1 - terminated) * next_values - q_values
    # LaTeX[Munos2016]: c_t = \lambda \min\left(1, \frac{\pi'(a_t|s_t)}{b(a_t|s_t)}\right)
    traces = retrace_lambda * log_ratios.clamp(max=0).exp()
    # LaTeX: m_t = \prod_{i<t} (1 - e_i)
    alive = (1 - ended[:, :-1]).cumprod(dim=1)
    # LaTeX: g_t = \gamma^t \prod_{i=1}^{t} c_i
    factors = (gamma * traces[:, 1:]).cumprod(dim=1)
    # Padding may hold anything, and 0 times infinity is NaN. A real value that is not finite must show in the target.
    # LaTeX: m_t g_t \delta_t
    later = torch.where(alive > 0, factors * deltas[:, 1:], 0.0)
    # LaTeX[Abdolmaleki2018a, eq. 13]: Q_{\mathrm{ret}} = Q'(s_0, a_0) + \delta_0 + \sum_{t \ge 1} m_t g_t \delta_t
    return q_values[:, 0] + deltas[:, 0] + later.sum(dim=1)
