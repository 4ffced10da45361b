"""MPO's and Retrace's formulas from the papers and Acme: slow float64 NumPy, one number at a time.

Imports nothing from Minerva.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


def weights(q_values: Array, temperature: float) -> Array:
    """Compute Abdolmaleki et al. 2018b, sec. 4.1: exp(Q / eta) over its sum, state by state."""
    result = np.zeros_like(q_values)
    for b, row in enumerate(q_values):
        exponentials = [math.exp((q - max(row)) / temperature) for q in row]
        result[b] = [e / sum(exponentials) for e in exponentials]
    return result


def temperature_loss(q_values: Array, temperature: float, epsilon: float) -> float:
    """Compute eta epsilon + eta times the mean over states of the log of the mean of exp(Q / eta) (2018a)."""
    total = 0.0
    for row in q_values:
        highest = max(row)
        mean = sum(math.exp((q - highest) / temperature) for q in row) / len(row)
        total += math.log(mean) + highest / temperature
    return temperature * epsilon + temperature * total / len(q_values)


def kl_to_uniform(probabilities: Array) -> float:
    """Compute the mean over states of KL(q || 1/S) from its definition; 0 log 0 is 0."""
    total = 0.0
    for row in probabilities:
        total += sum(p * math.log(p / (1 / len(row))) for p in row if p > 0)
    return total / len(probabilities)


def gaussian_kl(mean: float, std: float, other_mean: float, other_std: float) -> float:
    """Compute KL(N(mean, std) || N(other_mean, other_std)) in one dimension."""
    return math.log(other_std / std) + (std**2 + (mean - other_mean) ** 2) / (2 * other_std**2) - 0.5


def log_density(action: float, mean: float, std: float) -> float:
    return math.log(math.exp(-((action - mean) ** 2) / (2 * std**2)) / (std * math.sqrt(2 * math.pi)))


def out_of_bounds_cost(actions: Array, low: Array, high: Array) -> Array:
    """Compute Acme's cost: minus the Euclidean distance to the box, ``[B, S]``."""
    result = np.zeros(actions.shape[:-1])
    for index in np.ndindex(result.shape):
        square = 0.0
        for a, bottom, top in zip(actions[index], low, high, strict=True):
            square += max(bottom - a, 0.0, a - top) ** 2
        result[index] = -math.sqrt(square)
    return result


@dataclass
class Policies:
    """Online and target Gaussians, ``[B, A]`` each."""

    mean: Array
    std: Array
    old_mean: Array
    old_std: Array


@dataclass
class Losses:
    policy: float
    kl_mean: Array  # [A]
    kl_std: Array  # [A]
    penalty: float
    alpha: float
    temperature: float


def losses(
    policies: Policies,
    actions: Array,
    q_values: Array,
    temperature: float,
    alpha_mean: Array,
    alpha_std: Array,
    epsilon: float,
    kl_epsilon: float,
    bounds: tuple[Array, Array] | None = None,
    penalty_temperature: float = 1.0,
    epsilon_penalty: float = 0.0,
) -> Losses:
    """Compute Acme's decoupled loss with one constraint per dimension; with bounds, penalize actions outside them."""
    states, samples, dims = actions.shape
    q = weights(q_values, temperature)
    loss_temperature = temperature_loss(q_values, temperature, epsilon)
    if bounds is not None:
        cost = out_of_bounds_cost(actions, *bounds)
        q = q + weights(cost, penalty_temperature)
        loss_temperature += temperature_loss(cost, penalty_temperature, epsilon_penalty)
    policy = 0.0
    kl_mean, kl_std = np.zeros(dims), np.zeros(dims)
    for b in range(states):
        for j in range(dims):
            mean, std = policies.mean[b, j], policies.std[b, j]
            old_mean, old_std = policies.old_mean[b, j], policies.old_std[b, j]
            for i in range(samples):
                policy -= q[b, i] * log_density(actions[b, i, j], mean, old_std) / states
                policy -= q[b, i] * log_density(actions[b, i, j], old_mean, std) / states
            kl_mean[j] += gaussian_kl(old_mean, old_std, mean, old_std) / states
            kl_std[j] += gaussian_kl(old_mean, old_std, old_mean, std) / states
    penalty, alpha = 0.0, 0.0
    for j in range(dims):
        penalty += alpha_mean[j] * kl_mean[j] + alpha_std[j] * kl_std[j]
        alpha += alpha_mean[j] * (kl_epsilon - kl_mean[j]) + alpha_std[j] * (kl_epsilon - kl_std[j])
    return Losses(policy, kl_mean, kl_std, penalty, alpha, loss_temperature)


def retrace(
    q_values: Array,
    next_values: Array,
    rewards: Array,
    terminated: Array,
    ended: Array,
    log_ratios: Array,
    gamma: float,
    lam: float,
) -> Array:
    """Compute Munos et al. 2016 as a recursion from the first step to the end of the episode, ``[B]``."""

    def target(b: int, t: int) -> float:
        successor = 0.0 if terminated[b, t] else float(next_values[b, t])
        value = float(rewards[b, t]) + gamma * successor
        if ended[b, t] or t + 1 == rewards.shape[1]:
            return value
        c = lam * min(1.0, math.exp(log_ratios[b, t + 1]))
        return value + gamma * c * (target(b, t + 1) - float(q_values[b, t + 1]))

    return np.array([target(b, 0) for b in range(len(rewards))])
