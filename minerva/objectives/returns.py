"""Advantages and returns from a time-major rollout.

Symbols: r rewards, V values, γ discount, λ trace decay, d terminated, e ended (terminated or truncated), u truncated.
All tensors are ``[T, N]`` but the values, ``[T+1, N]``: V(s_{t+1}) is row t+1, also where an episode was truncated.
What comes out for a restarting step means nothing; weigh it with 0.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from minerva.objectives.weighted import weighted_variance


class Advantages(NamedTuple):
    """Advantages and the returns that a critic is fitted to, each ``[T, N]``."""

    advantages: Tensor
    returns: Tensor


def backward_recursion(terms: Tensor, decays: Tensor, last: Tensor) -> Tensor:
    """Solve a linear recursion backward in time.

    Args:
        terms: b, ``[T, N]``.
        decays: c, ``[T, N]``.
        last: x_T, ``[N]``.

    Returns:
        x, ``[T, N]``.
    """
    # Many small operations are quicker on the CPU, and on arrays; gradients pass through tensors alone.
    given: tuple[Any, ...] = tuple(tensor.cpu() for tensor in (torch.empty_like(terms), terms, decays, last))
    result: Tensor = given[0]
    if not any(tensor.requires_grad for tensor in given):
        given = tuple(tensor.numpy() for tensor in given)
    x, b, c, following = given
    for t in range(len(terms) - 1, -1, -1):
        # LaTeX: x_t = b_t + c_t\, x_{t+1}
        following = b[t] + c[t] * following
        x[t] = following
    return result.to(terms.device)


def temporal_difference(rewards: Tensor, values: Tensor, terminated: Tensor, gamma: float) -> Tensor:
    """One-step temporal-difference errors (Schulman et al. 2016, eq. 11's δ, with the bootstrap cut at a terminal).

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
    """Generalized advantage estimation (Schulman et al. 2016, eq. 16), cut where an episode ends.

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
    going_on = (1 - terminated) * (1 - truncated)
    # LaTeX[Schulman2016, eq. 16]: A_t = \delta_t + \gamma \lambda (1 - e_t) A_{t+1}
    advantages = backward_recursion(deltas, gamma * gae_lambda * going_on, torch.zeros_like(values[-1]))
    # LaTeX: R_t = A_t + V(s_t)
    returns = advantages + values[:-1]
    return Advantages(advantages, returns)


def bootstrapped_returns(
    rewards: Tensor, values: Tensor, terminated: Tensor, truncated: Tensor, gamma: float
) -> Advantages:
    """Discounted returns, bootstrapped with V where an episode is truncated and at the rollout's end.

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


def explained_variance(returns: Tensor, values: Tensor, weights: Tensor) -> Tensor:
    """Share of the returns' variance that the values explain.

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


def value_loss(values: Tensor, returns: Tensor) -> Tensor:
    """Half the squared error of the critic.

    Args:
        values: V, ``[B]``.
        returns: R, ``[B]``.

    Returns:
        ``[B]``.
    """
    # LaTeX[Schulman2017, sec. 5]: \ell_V = \tfrac12 (V - R)^2
    return 0.5 * (values - returns) ** 2
