"""PPO's formulas from the papers and the specification: slow float64 NumPy, one number at a time.

Imports nothing from Minerva.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


def gae(
    rewards: Array, values: Array, terminated: Array, truncated: Array, gamma: float, lam: float
) -> tuple[Array, Array]:
    """Compute Schulman et al. 2016, eq. 16, as a sum to the episode's end: deltas weighted by (gamma lambda)^l."""
    steps, envs = rewards.shape
    advantages, returns = np.zeros((steps, envs)), np.zeros((steps, envs))
    for n in range(envs):
        for t in range(steps):
            total, weight = 0.0, 1.0
            for k in range(t, steps):
                successor = 0.0 if terminated[k, n] else float(values[k + 1, n])
                total += weight * (rewards[k, n] + gamma * successor - values[k, n])
                if terminated[k, n] or truncated[k, n]:
                    break
                weight *= gamma * lam
            advantages[t, n] = total
            returns[t, n] = total + values[t, n]
    return advantages, returns


def bootstrapped_returns(
    rewards: Array, values: Array, terminated: Array, truncated: Array, gamma: float
) -> tuple[Array, Array]:
    """Sum discounted rewards to the episode's end, plus V of the last observation if truncated there."""
    steps, envs = rewards.shape
    returns = np.zeros((steps, envs))
    for n in range(envs):
        for t in range(steps):
            total, discount = 0.0, 1.0
            for k in range(t, steps):
                total += discount * rewards[k, n]
                discount *= gamma
                if terminated[k, n]:
                    break
                if truncated[k, n] or k == steps - 1:
                    total += discount * values[k + 1, n]
                    break
            returns[t, n] = total
    return returns - values[:-1], returns


def explained_variance(returns: Array, values: Array, weights: Array) -> float:
    real = weights.astype(bool)
    variance = float(np.var(returns[real]))
    return math.nan if variance == 0 else 1 - float(np.var(returns[real] - values[real])) / variance


def log_prob(mean: Array, std: Array, actions: Array) -> Array:
    """Compute the log of the product of the densities."""
    result = np.zeros(len(mean))
    for b in range(len(mean)):
        for j in range(mean.shape[1]):
            density = math.exp(-((actions[b, j] - mean[b, j]) ** 2) / (2 * std[j] ** 2)) / (
                std[j] * math.sqrt(2 * math.pi)
            )
            result[b] += math.log(density)
    return result


def entropy(std: Array) -> float:
    return sum(0.5 * math.log(2 * math.pi * math.e * s**2) for s in std)


def mlp(layers: list[tuple[Array, Array]], x: Array) -> Array:
    """Evaluate a tanh network from its weights ``[out, in]`` and biases."""
    for weight, bias in layers[:-1]:
        x = np.tanh(x @ weight.T + bias)
    weight, bias = layers[-1]
    return x @ weight.T + bias


@dataclass
class Minibatch:
    old_log_probs: Array
    old_values: Array
    advantages: Array
    returns: Array
    weights: Array


@dataclass
class Losses:
    total: float
    policy: float
    value: float
    entropy: float
    old_approx_kl: float
    approx_kl: float
    square_kl: float
    clipfrac: float


def losses(
    minibatch: Minibatch,
    log_probs: Array,
    values: Array,
    mean_entropy: float,
    clip: float,
    ent_coef: float,
    vf_coef: float,
    norm_adv: bool,
    clip_vloss: bool,
    unbiased: bool = True,
    clip_value: float | None = None,
) -> Losses:
    """Compute the loss of ppo.md; rows with weight 0 are dropped first."""
    rows = np.flatnonzero(minibatch.weights)
    advantages = minibatch.advantages[rows]
    if norm_adv and len(rows) > 1:
        advantages = (advantages - np.mean(advantages)) / (np.std(advantages, ddof=int(unbiased)) + 1e-8)
    value_clip = clip if clip_value is None else clip_value
    policy, value, old_kl, kl, square, clipped = [], [], [], [], [], []
    for a, i in zip(advantages, rows, strict=True):
        ratio = math.exp(log_probs[i]) / math.exp(minibatch.old_log_probs[i])
        policy.append(-min(a * ratio, a * min(max(ratio, 1 - clip), 1 + clip)))
        error = (values[i] - minibatch.returns[i]) ** 2
        if clip_vloss:
            old = minibatch.old_values[i]
            clipped_value = min(max(values[i], old - value_clip), old + value_clip)
            error = max(error, (clipped_value - minibatch.returns[i]) ** 2)
        value.append(error / 2)
        old_kl.append(-math.log(ratio))
        kl.append(ratio - 1 - math.log(ratio))
        square.append(math.log(ratio) ** 2 / 2)
        clipped.append(float(ratio > 1 + clip or ratio < 1 - clip))
    policy_loss, value_loss = float(np.mean(policy)), float(np.mean(value))
    total = policy_loss - ent_coef * mean_entropy + vf_coef * value_loss
    return Losses(
        total,
        policy_loss,
        value_loss,
        mean_entropy,
        float(np.mean(old_kl)),
        float(np.mean(kl)),
        float(np.mean(square)),
        float(np.mean(clipped)),
    )
