"""A whole V-MPO update from the paper and the specification: slow float64 NumPy, gradients by finite differences.

Imports nothing from Minerva. Rows of restarting steps are dropped first.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Parameters = dict[str, Array]


@dataclass
class Settings:
    normalize_advantages: bool = True
    topk_fraction: float = 0.5
    epsilon_eta: float = 0.1
    epsilon_mu: float = 0.01
    epsilon_sigma: float = 0.01
    policy_lr: float = 5e-4
    value_lr: float = 1e-3
    temperature_lr: float = 1e-4
    alpha_lr: float = 1e-4
    max_grad_norm: float = 10.0
    optimizer_type: str = "adam"
    sgd_momentum: float = 0.9
    m_steps: int = 1
    shared_encoder: bool = False
    ppo_like_backbone: bool = False
    control_variate: bool = False
    minibatches: int = 1
    recompute_advantages: bool = False


class Optimizer:
    """Adam with bias correction, or SGD with momentum as in torch."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.count: dict[str, int] = {}
        self.first: Parameters = {}
        self.second: Parameters = {}

    def step(self, name: str, value: Array, gradient: Array, rate: float) -> Array:
        m = self.first.setdefault(name, np.zeros_like(value))
        v = self.second.setdefault(name, np.zeros_like(value))
        n = self.count[name] = self.count.get(name, 0) + 1
        if self.settings.optimizer_type == "sgd":
            m[...] = self.settings.sgd_momentum * m + gradient
            return value - rate * m
        m[...] = 0.9 * m + 0.1 * gradient
        v[...] = 0.999 * v + 0.001 * gradient**2
        return value - rate * (m / (1 - 0.9**n)) / (np.sqrt(v / (1 - 0.999**n)) + 1e-5)


@dataclass
class State:
    """What is learned: the networks, and the dual variables before softplus."""

    networks: Parameters
    duals: Parameters  # eta, mu, sigma: arrays of shape ()
    optimizer: Optimizer = field(init=False)
    settings: Settings = field(default_factory=Settings)

    def __post_init__(self) -> None:
        self.optimizer = Optimizer(self.settings)


def positive(x: Array) -> float:
    return math.log(1 + math.exp(float(x))) + 1e-8


def positive_slope(x: Array) -> float:
    return 1 / (1 + math.exp(-float(x)))


# Networks


def encode(p: Parameters, prefix: str, x: Array, ppo_like: bool) -> Array:
    if ppo_like:
        k = 0
        while f"{prefix}.{k}.weight" in p:
            x = np.tanh(x @ p[f"{prefix}.{k}.weight"].T + p[f"{prefix}.{k}.bias"])
            k += 2
        return x
    x = x @ p[f"{prefix}.0.weight"].T + p[f"{prefix}.0.bias"]
    x = (x - x.mean(1, keepdims=True)) / np.sqrt(x.var(1, keepdims=True) + 1e-5)
    x = np.tanh(x * p[f"{prefix}.1.weight"] + p[f"{prefix}.1.bias"])
    k = 3
    while f"{prefix}.{k}.weight" in p:
        x = x @ p[f"{prefix}.{k}.weight"].T + p[f"{prefix}.{k}.bias"]
        x = np.where(x > 0, x, np.exp(np.minimum(x, 0)) - 1)
        k += 2
    return x


def forward(p: Parameters, obs: Array, settings: Settings) -> tuple[Array, Array, Array]:
    features = encode(p, "policy_encoder", obs, settings.ppo_like_backbone)
    mean = features @ p["policy_head.weight"].T + p["policy_head.bias"]
    if settings.ppo_like_backbone:
        log_std = np.repeat(p["policy_logstd"], len(obs), axis=0)
    else:
        log_std = features @ p["policy_logstd.weight"].T + p["policy_logstd.bias"]
    value_encoder = "policy_encoder" if settings.shared_encoder else "value_encoder"
    of_value = encode(p, value_encoder, obs, settings.ppo_like_backbone)
    return mean, np.clip(log_std, -20, 2), (of_value @ p["value_head.weight"].T + p["value_head.bias"])[:, 0]


def log_prob(mean: Array, log_std: Array, actions: Array, low: Array, high: Array) -> Array:
    """Compute the log-density of squashed actions: the raw action's density over the derivative of the squashing."""
    result = np.zeros(len(mean))
    for b in range(len(mean)):
        for j in range(mean.shape[1]):
            center, half, sigma = (high[j] + low[j]) / 2, (high[j] - low[j]) / 2, math.exp(log_std[b, j])
            raw = math.atanh((actions[b, j] - center) / half)
            gauss = math.exp(-((raw - mean[b, j]) ** 2) / (2 * sigma**2)) / (sigma * math.sqrt(2 * math.pi))
            stretch = half * (1 - math.tanh(raw) ** 2)
            result[b] += math.log(gauss / stretch)
    return result


# The update


def keep_top(scaled: Array, fraction: float) -> tuple[list[int], float]:
    """Return the rows to keep and the smallest scaled advantage of the top k."""
    if fraction == 1:
        return list(range(len(scaled))), min(scaled)
    k = math.floor(fraction * len(scaled))
    threshold = sorted(scaled, reverse=True)[k - 1]
    return [i for i, s in enumerate(scaled) if s >= threshold], threshold


def temperature_loss(eta: float, advantages: Array, importance: Array, kept: list[int], epsilon: float) -> float:
    total = sum(importance[i] * math.exp(advantages[i] / eta) for i in kept)
    return eta * epsilon + eta * math.log(total / len(kept))


def fit_losses(p: Parameters, rows: dict[str, Array], psi: Array, kept: list[int], s: Settings) -> dict[str, float]:
    """Compute the parts of the M-step's loss that do not depend on the multipliers."""
    mean, log_std, value = forward(p, rows["obs"], s)
    sigma, old_sigma = np.exp(log_std), np.exp(rows["old_log_stds"])
    kl_mean = [sum((m - o) ** 2 / (2 * z**2) for m, o, z in zip(*x, strict=True))
               for x in zip(mean, rows["old_means"], old_sigma, strict=True)]  # fmt: skip
    kl_std = [sum(0.5 * (o**2 / n**2 - 1 + 2 * (math.log(n) - math.log(o))) for n, o in zip(*x, strict=True))
              for x in zip(sigma, old_sigma, strict=True)]  # fmt: skip
    scores = log_prob(mean, log_std, rows["actions"], rows["low"], rows["high"])
    # Mean log-likelihood of samples of the old policy by Gauss-Hermite quadrature, which is exact here: log N is
    # a polynomial of degree 2. The terms of the squashing cancel.
    noise = 0.0
    if s.control_variate:
        points, point_weights = np.polynomial.hermite_e.hermegauss(3)
        for b in range(len(mean)):
            # In deviations of the old policy, how far its mean is from where samples are clipped.
            margins = (math.atanh(1 - 1e-6) - abs(rows["old_means"][b])) / old_sigma[b]
            fade = min(max(min(margins) - 2, 0.0), 1.0)
            for j in range(mean.shape[1]):
                center, half = (rows["high"][j] + rows["low"][j]) / 2, (rows["high"][j] - rows["low"][j]) / 2
                drawn = math.atanh((rows["actions"][b, j] - center) / half)
                fresh = rows["old_means"][b, j] + old_sigma[b, j] * points
                score = -(((np.append(fresh, drawn) - mean[b, j]) / sigma[b, j]) ** 2) / 2 - math.log(sigma[b, j])
                noise += fade * (score[:3] @ point_weights / point_weights.sum() - score[3]) / len(mean)
    return {
        "noise": noise,
        "nll": -sum(weight * score for weight, score in zip(psi, scores, strict=True)),
        "mean_sel": float(np.mean([kl_mean[i] for i in kept])),
        "std_sel": float(np.mean([kl_std[i] for i in kept])),
        "mean": float(np.mean(kl_mean)),
        "std": float(np.mean(kl_std)),
        "value": float(np.mean([(v - r) ** 2 / 2 for v, r in zip(value, rows["returns"], strict=True)])),
    }


def slopes(function: Callable[[Parameters], float], p: Parameters, step: float = 1e-5) -> Parameters:
    """Compute gradients by central differences, one parameter at a time."""
    result = {name: np.zeros_like(value) for name, value in p.items()}
    for name, value in p.items():
        for index in np.ndindex(value.shape):
            kept = value[index]
            value[index] = kept + step
            above = function(p)
            value[index] = kept - step
            below = function(p)
            value[index] = kept
            result[name][index] = (above - below) / (2 * step)
    return result


@dataclass
class Episodes:
    """T steps of N environments, to estimate advantages from."""

    obs: Array  # [T+1, N, O]
    rewards: Array  # [T, N]
    terminated: Array
    truncated: Array
    gamma: float
    gae_lambda: float


def estimate(p: Parameters, x: Episodes, s: Settings) -> tuple[Array, Array]:
    """Compute GAE advantages and returns with the current critic, flattened."""
    values = np.stack([forward(p, obs, s)[2] for obs in x.obs])
    advantages = np.zeros_like(x.rewards)
    for n in range(x.rewards.shape[1]):
        next_advantage = 0.0
        for t in reversed(range(len(x.rewards))):
            bootstrap = 0.0 if x.terminated[t, n] else x.gamma * values[t + 1, n]
            if x.terminated[t, n] or x.truncated[t, n]:
                next_advantage = 0.0
            next_advantage = x.rewards[t, n] + bootstrap - values[t, n] + x.gamma * x.gae_lambda * next_advantage
            advantages[t, n] = next_advantage
    return advantages.reshape(-1), (advantages + values[:-1]).reshape(-1)


@dataclass
class EStep:
    advantages: Array
    kept: list[int]
    threshold: float
    psi: Array
    dual_loss: float


def e_step(state: State, raw: Array, importance: Array) -> EStep:
    """Weight the samples and take a gradient step on the temperature."""
    s = state.settings
    advantages = (raw - np.mean(raw)) / (np.std(raw) + 1e-8) if s.normalize_advantages else raw
    eta = positive(state.duals["eta"])
    kept, threshold = keep_top(advantages / eta, s.topk_fraction)
    psi = np.zeros(len(raw))
    for i in kept:
        psi[i] = importance[i] * math.exp(advantages[i] / eta)
    psi /= psi.sum()
    dual_loss = temperature_loss(eta, advantages, importance, kept, s.epsilon_eta)
    around = [temperature_loss(eta + h, advantages, importance, kept, s.epsilon_eta) for h in (1e-6, -1e-6)]
    slope = (around[0] - around[1]) / 2e-6 * positive_slope(state.duals["eta"])
    state.duals["eta"] = state.optimizer.step("eta", state.duals["eta"], np.array(slope), s.temperature_lr)
    return EStep(advantages, kept, threshold, psi, dual_loss)


def update(
    state: State,
    batch: dict[str, Array],
    low: Array,
    high: Array,
    orders: list[list[int]] | None = None,
    episodes: Episodes | None = None,
) -> dict[str, float]:
    """Apply one update of vmpo.md in place and return the metrics.

    `orders` holds the order of the rows for each pass over the batch, which is split into minibatches in that order.
    `episodes` is for recomputing advantages.
    """
    s, weights = state.settings, batch["restarting_weights"][:, 0]
    counted = [int(i) for i in np.flatnonzero(weights > 0)]
    rows = {name: values[counted] for name, values in batch.items()}
    for name in ("returns", "advantages", "importance_weights"):
        rows[name] = rows[name][:, 0]
    raw, importance = rows["advantages"], rows["importance_weights"]
    found = e_step(state, raw, importance)

    # M-step
    before = {name: value.copy() for name, value in state.networks.items()}
    for m_step in range(s.m_steps):
        if m_step > 0 and s.recompute_advantages:
            assert episodes is not None
            raw, rows["returns"] = (part[counted] for part in estimate(state.networks, episodes, s))
            found = e_step(state, raw, importance)
        order = orders[m_step] if orders is not None else list(range(len(weights)))
        size = len(weights) // s.minibatches
        for first in range(0, len(weights), size):
            places = [counted.index(i) for i in order[first : first + size] if i in counted]
            part = {name: values[places] for name, values in rows.items()} | {"low": low, "high": high}
            psi = s.minibatches * found.psi[places]
            kept = [k for k, place in enumerate(places) if place in found.kept]
            parts = fit_losses(state.networks, part, psi, kept, s)
            excess = {"mu": s.epsilon_mu - parts["mean_sel"], "sigma": s.epsilon_sigma - parts["std_sel"]}
            alpha_loss = sum(positive(state.duals[name]) * excess[name] for name in excess)
            for name in excess:
                slope = positive_slope(state.duals[name]) * excess[name]
                state.duals[name] = state.optimizer.step(name, state.duals[name], np.array(slope), s.alpha_lr)
            alpha_mu, alpha_sigma = positive(state.duals["mu"]), positive(state.duals["sigma"])

            def total(p: Parameters) -> float:
                x = fit_losses(p, part, psi, kept, s)  # noqa: B023
                return x["nll"] - x["noise"] + alpha_mu * x["mean_sel"] + alpha_sigma * x["std_sel"] + x["value"]  # noqa: B023

            loss, gradients = total(state.networks), slopes(total, state.networks)
            norm = math.sqrt(sum((g**2).sum() for g in gradients.values()))
            for name, gradient in gradients.items():
                rate = s.value_lr if name.startswith("value_") else s.policy_lr
                clipped = gradient * min(1.0, s.max_grad_norm / norm)
                state.networks[name] = state.optimizer.step(name, state.networks[name], clipped, rate)

    advantages, kept, psi, threshold = found.advantages, found.kept, found.psi, found.threshold
    mean, log_std, value = forward(state.networks, rows["obs"], s)
    moved = sum(((state.networks[name] - before[name]) ** 2).sum() for name in before)
    returns, new_eta = rows["returns"], positive(state.duals["eta"])
    entropies = [sum(0.5 * math.log(2 * math.pi * math.e * math.exp(x) ** 2) for x in log_std[i]) for i in kept]
    return {
        "loss/total": loss,
        "loss/value": parts["value"],
        "loss/policy": loss - parts["value"],
        "loss/policy_weighted_nll": parts["nll"],
        "loss/policy_noise": parts["noise"],
        "loss/policy_kl_mean_pen": alpha_mu * parts["mean_sel"],
        "loss/policy_kl_std_pen": alpha_sigma * parts["std_sel"],
        "loss/alpha": alpha_loss,
        "kl/mean": parts["mean"],
        "kl/std": parts["std"],
        "kl/mean_sel": parts["mean_sel"],
        "kl/std_sel": parts["std_sel"],
        "vmpo/alpha_mu": alpha_mu,
        "vmpo/alpha_sigma": alpha_sigma,
        "vmpo/dual_loss": found.dual_loss,
        "vmpo/epsilon_eta": s.epsilon_eta,
        "vmpo/temperature_raw": new_eta,
        "vmpo/adv_std_over_temperature": float(np.std(advantages)) / new_eta,
        "vmpo/selected_frac": len(kept) / len(raw),
        "vmpo/threshold": float(threshold),
        "vmpo/ess": 1 / float((psi**2).sum()),
        "vmpo/restarting_frac": float(np.mean(weights == 0)),
        "vmpo/importance_mean": float(np.mean(importance)),
        "train/entropy": float(np.mean(entropies)),
        "train/param_delta": math.sqrt(moved),
        "train/mean_abs_action": float(np.mean(np.abs((high + low) / 2 + (high - low) / 2 * np.tanh(mean)))),
        "adv/raw_mean": float(np.mean(raw)),
        "adv/raw_std": float(np.std(raw)),
        "returns/raw_mean": float(np.mean(returns)),
        "returns/raw_std": float(np.std(returns)),
        "value/explained_var": 1 - float(np.var(returns - value) / np.var(returns)),
        "value/pred_mean": float(np.mean(value)),
        "value/pred_std": float(np.std(value)),
    }
