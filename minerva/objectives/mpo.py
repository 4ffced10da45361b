"""MPO's E-step and M-step (Abdolmaleki et al. 2018a, 2018b), in the decoupled, per-dimension form.

Symbols: Q' values of the target critic, a_i the S actions sampled in a state, η temperature, q weights, ε bound on
the E-step's KL. One value per state or dimension; the caller averages. The M-step's trust region is in
`minerva.objectives.lagrange`.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor


def td_target(rewards: Tensor, discounts: Tensor, next_values: Tensor) -> Tensor:
    """Compute the temporal-difference target of MPO's critic.

    Args:
        rewards: r, ``[B]``; for n-step targets, their discounted sum.
        discounts: γ^k (1 - d) for a sum of k rewards, ``[B]``.
        next_values: V(s') of the target networks, ``[B]``.

    Returns:
        y, ``[B]``.
    """
    # LaTeX: y = r + \gamma^k (1 - d)\, V(s')
    return rewards + discounts * next_values


def e_step_weights(q_values: Tensor, temperature: Tensor) -> Tensor:
    """Compute the improved policy over the sampled actions (Abdolmaleki et al. 2018a, eq. 8), without gradient.

    Args:
        q_values: Q'(s_b, a_i), ``[B, S]``.
        temperature: η, a scalar.

    Returns:
        q, ``[B, S]``, summing to 1 in each state.
    """
    # LaTeX[Abdolmaleki2018a, eq. 8]: q_{b,i} = \frac{\exp(Q'(s_b, a_i) / \eta)}{\sum_k \exp(Q'(s_b, a_k) / \eta)}
    return torch.softmax(q_values.detach() / temperature.detach(), dim=-1)


def temperature_loss(q_values: Tensor, temperature: Tensor, epsilon: float) -> Tensor:
    """Compute the dual loss of the E-step's KL bound, which η minimizes (Abdolmaleki et al. 2018a, eq. 9).

    Args:
        q_values: Q'(s_b, a_i), ``[B, S]``.
        temperature: η, a scalar.
        epsilon: ε.

    Returns:
        ``[B]``; the mean is L_η.
    """
    samples = q_values.shape[-1]
    # LaTeX[Abdolmaleki2018a, eq. 9]: L_{\eta,b} = \eta \left( \epsilon + \log \sum_i \exp(Q'(s_b, a_i) / \eta) - \log S \right)
    return temperature * (epsilon + torch.logsumexp(q_values.detach() / temperature, dim=-1) - math.log(samples))


def out_of_bounds_cost(actions: Tensor, low: Tensor, high: Tensor) -> Tensor:
    """Compute the negated distance of actions from the box: a penalty to maximize like a value (as in Acme).

    Args:
        actions: a, before clipping, ``[..., A]``.
        low: Lower bounds, ``[A]``.
        high: Upper bounds, ``[A]``.

    Returns:
        ``[...]``.
    """
    # LaTeX: c = -\lVert a - \mathrm{clip}(a, a_{\min}, a_{\max}) \rVert_2
    return -(actions - actions.clamp(low, high)).square().sum(-1).sqrt()


def weighted_nll(log_probs: Tensor, weights: Tensor) -> Tensor:
    """Compute the negative log-likelihood of the weighted actions (Abdolmaleki et al. 2018a, eq. 10).

    Args:
        log_probs: log π(a_i | s_b), ``[B, S]``.
        weights: q, ``[B, S]``.

    Returns:
        ``[B]``.
    """
    # LaTeX[Abdolmaleki2018a, eq. 10]: L_{\pi,b} = -\sum_i q_{b,i} \log \pi(a_i | s_b)
    return -(weights * log_probs).sum(-1)


def kl_to_uniform(weights: Tensor) -> Tensor:
    """Compute the KL divergence of the E-step's weights from uniform ones: how much of its bound is used.

    Args:
        weights: q, ``[B, S]``.

    Returns:
        ``[B]``, between 0 and log S.
    """
    samples = weights.shape[-1]
    # LaTeX: \mathrm{KL}(q \,\|\, u) = \log S - H(q)
    return math.log(samples) - entropy(weights)


def entropy(weights: Tensor) -> Tensor:
    """Compute the entropy of the E-step's weights.

    Args:
        weights: q, ``[B, S]``.

    Returns:
        ``[B]``.
    """
    # LaTeX: H(q) = -\sum_i q_i \log q_i
    return -torch.xlogy(weights, weights).sum(-1)
