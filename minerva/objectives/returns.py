"""Advantages and returns from a time-major rollout.

Symbols: r rewards, V values, γ discount, λ trace decay, d terminated, e ended (terminated or truncated), u truncated.
All tensors are ``[T, N]`` except the values, ``[T+1, N]``: V(s_{t+1}) is row t+1, also where an episode was truncated.
Results for a restarting step have no meaning; give them weight 0.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor


class Advantages(NamedTuple):
    """Advantages and the returns that the critic is trained on, each ``[T, N]``."""

    advantages: Tensor
    returns: Tensor


def backward_recursion(terms: Tensor, decays: Tensor, last: Tensor) -> Tensor:
    """Solve a linear recursion backward in time, x_t = b_t + c_t x_{t+1}.

    Args:
        terms: b, ``[T, N]``.
        decays: c, ``[T, N]``.
        last: x_T, ``[N]``.

    Returns:
        x, ``[T, N]``.
    """
    # Many small operations are faster on the CPU and on NumPy arrays; only tensors carry gradients.
    arrays: tuple[Any, ...] = tuple(tensor.cpu() for tensor in (torch.empty_like(terms), terms, decays, last))
    result: Tensor = arrays[0]
    if not any(tensor.requires_grad for tensor in arrays):
        arrays = tuple(tensor.numpy() for tensor in arrays)
    x, b, c, x_next = arrays
    for t in range(len(terms) - 1, -1, -1):
        # LaTeX: x_t = b_t + c_t\, x_{t+1}
        x_next = b[t] + c[t] * x_next
        x[t] = x_next
    return result.to(terms.device)


def temporal_difference(rewards: Tensor, values: Tensor, terminated: Tensor, gamma: float) -> Tensor:
    """Compute one-step temporal-difference errors (δ of Schulman et al. 2016, eq. 11; no bootstrap at a termination).

    Args:
        rewards: r, ``[T, N]``.
        values: V, ``[T+1, N]``.
        terminated: d, ``[T, N]``, 0 or 1.
        gamma: γ.

    Returns:
        δ, ``[T, N]``.
    """
    # LaTeX[Schulman2016, eq. 11]: \delta_t = r_t + \gamma (1 - d_t) V(s_{t+1}) - V(s_t)
    return rewards + gamma * (1 - terminated) * values[1:] - values[:-1]


def generalized_advantage_estimation(
    rewards: Tensor, values: Tensor, terminated: Tensor, truncated: Tensor, gamma: float, gae_lambda: float
) -> Advantages:
    """Compute generalized advantage estimates (GAE; Schulman et al. 2016, eq. 16), cut where an episode ends.

    Args:
        rewards: r, ``[T, N]``.
        values: V, ``[T+1, N]``.
        terminated: d, ``[T, N]``, 0 or 1.
        truncated: u, ``[T, N]``, 0 or 1.
        gamma: γ.
        gae_lambda: λ.

    Returns:
        A and R, each ``[T, N]``.
    """
    deltas = temporal_difference(rewards, values, terminated, gamma)
    # LaTeX: 1 - e_t = (1 - d_t)(1 - u_t)
    not_ended = (1 - terminated) * (1 - truncated)
    # LaTeX[Schulman2016, eq. 16]: A_t = \delta_t + \gamma \lambda (1 - e_t) A_{t+1}
    advantages = backward_recursion(deltas, gamma * gae_lambda * not_ended, torch.zeros_like(values[-1]))
    # LaTeX: R_t = A_t + V(s_t)
    returns = advantages + values[:-1]
    return Advantages(advantages, returns)


def bootstrapped_returns(
    rewards: Tensor, values: Tensor, terminated: Tensor, truncated: Tensor, gamma: float
) -> Advantages:
    """Compute discounted returns, bootstrapped with V where an episode is truncated and at the end of the rollout.

    Args:
        rewards: r, ``[T, N]``.
        values: V, ``[T+1, N]``.
        terminated: d, ``[T, N]``, 0 or 1.
        truncated: u, ``[T, N]``, 0 or 1.
        gamma: γ.

    Returns:
        A and R, each ``[T, N]``.
    """
    discount = gamma * (1 - terminated)
    # LaTeX: b_t = r_t + \gamma (1 - d_t)\, u_t V(s_{t+1})
    terms = rewards + discount * truncated * values[1:]
    # LaTeX: R_t = b_t + \gamma (1 - d_t)(1 - u_t) R_{t+1}, \quad R_T = V(s_T)
    returns = backward_recursion(terms, discount * (1 - truncated), values[-1])
    # LaTeX[Schulman2017, eq. 10]: A_t = R_t - V(s_t)
    advantages = returns - values[:-1]
    return Advantages(advantages, returns)
