"""A whole V-MPO update for discrete actions as the paper states it: slow, float64, NumPy, gradients by differences.

Nothing of Minerva is imported here. What does not depend on the actions is the continuous oracle's.
"""

from __future__ import annotations

import math

import numpy as np

from tests.objectives.oracle_vmpo import (
    Array,
    Parameters,
    Settings,
    State,
    encode,
    keep_top,
    positive,
    positive_slope,
    slopes,
    temperature_loss,
)

Groups = list[list[int]]
"""Which logits belong together: one choice each."""


def forward(p: Parameters, obs: Array, settings: Settings, masks: Array | None) -> tuple[Array, Array]:
    """Logits, -∞ where a mask forbids them, and values."""
    features = encode(p, "policy_encoder", obs, settings.ppo_like_backbone)
    logits = features @ p["policy_head.weight"].T + p["policy_head.bias"]
    if masks is not None:
        logits[masks == 0] = -np.inf
    of_value = encode(
        p, "policy_encoder" if settings.shared_encoder else "value_encoder", obs, settings.ppo_like_backbone
    )
    return logits, (of_value @ p["value_head.weight"].T + p["value_head.bias"])[:, 0]


def probabilities(logits: Array) -> list[float]:
    weights = [math.exp(x) for x in logits]
    return [weight / sum(weights) for weight in weights]


def entropy(p: list[float]) -> float:
    return -sum(x * math.log(x) for x in p if x > 0)


def divergence(p: list[float], q: list[float]) -> float:
    return sum(x * math.log(x / y) for x, y in zip(p, q, strict=True) if x > 0)


def fit_losses(
    p: Parameters, rows: dict[str, Array], psi: Array, kept: list[int], s: Settings, groups: Groups
) -> dict[str, float]:
    """The parts of the M-step's loss that do not know the multiplier."""
    logits, value = forward(p, rows["obs"], s, rows.get("masks"))
    scores, divergences, noise = np.zeros(len(value)), np.zeros(len(value)), 0.0
    for b in range(len(value)):
        for group, action in zip(groups, rows["actions"][b], strict=True):
            new, old = probabilities(logits[b, group]), probabilities(rows["old_logits"][b, group])
            scores[b] += math.log(new[int(action)])
            divergences[b] += divergence(old, new)
            # The score of a fresh sample of the old policy, on average, less that of the sample itself.
            expected = sum(x * math.log(y) for x, y in zip(old, new, strict=True) if x > 0)
            noise += (expected - math.log(new[int(action)])) / len(value)
    return {
        "noise": noise if s.control_variate else 0.0,
        "nll": -float(psi @ scores),
        "sel": float(np.mean(divergences[kept])),
        "all": float(np.mean(divergences)),
        "value": float(np.mean((value - rows["returns"]) ** 2 / 2)),
    }


def update(state: State, batch: dict[str, Array], groups: Groups) -> dict[str, float]:
    """One update, in place; returns the metrics. Restarting rows are dropped before anything is computed."""
    s, weights = state.settings, batch["restarting_weights"][:, 0]
    rows = {name: values[weights > 0] for name, values in batch.items()}
    for name in ("returns", "advantages", "importance_weights"):
        rows[name] = rows[name][:, 0]
    raw, importance = rows["advantages"], rows["importance_weights"]
    advantages = (raw - np.mean(raw)) / (np.std(raw) + 1e-8) if s.normalize_advantages else raw

    # E-step
    eta = positive(state.duals["eta"])
    kept, _ = keep_top(advantages / eta, s.topk_fraction)
    psi = np.zeros(len(raw))
    for i in kept:
        psi[i] = importance[i] * math.exp(advantages[i] / eta)
    psi /= psi.sum()
    around = [temperature_loss(eta + h, advantages, importance, kept, s.epsilon_eta) for h in (1e-6, -1e-6)]
    slope = (around[0] - around[1]) / 2e-6 * positive_slope(state.duals["eta"])
    state.duals["eta"] = state.optimizer.step("eta", state.duals["eta"], np.array(slope), s.temperature_lr)

    # M-step
    for _ in range(s.m_steps):
        parts = fit_losses(state.networks, rows, psi, kept, s, groups)
        excess = s.epsilon_mu - parts["sel"]
        alpha_loss = positive(state.duals["policy"]) * excess
        slope = positive_slope(state.duals["policy"]) * excess
        state.duals["policy"] = state.optimizer.step("policy", state.duals["policy"], np.array(slope), s.alpha_lr)
        alpha = positive(state.duals["policy"])

        def total(p: Parameters, alpha: float = alpha) -> float:
            x = fit_losses(p, rows, psi, kept, s, groups)
            return x["nll"] - x["noise"] + alpha * x["sel"] + x["value"]

        loss, gradients = total(state.networks), slopes(total, state.networks)
        norm = math.sqrt(sum((g**2).sum() for g in gradients.values()))
        for name, gradient in gradients.items():
            rate = s.value_lr if name.startswith("value_") else s.policy_lr
            clipped = gradient * min(1.0, s.max_grad_norm / norm)
            state.networks[name] = state.optimizer.step(name, state.networks[name], clipped, rate)

    logits, value = forward(state.networks, rows["obs"], s, rows.get("masks"))
    entropies = [sum(entropy(probabilities(logits[b, group])) for group in groups) for b in kept]
    return {
        "loss/total": loss,
        "loss/value": parts["value"],
        "loss/policy": parts["nll"] - parts["noise"] + alpha * parts["sel"],
        "loss/policy_weighted_nll": parts["nll"],
        "loss/policy_noise": parts["noise"],
        "loss/policy_kl_pen": alpha * parts["sel"],
        "loss/alpha": alpha_loss,
        "kl/policy": parts["all"],
        "kl/policy_sel": parts["sel"],
        "health/kl_ratio": parts["sel"] / s.epsilon_mu,
        "vmpo/alpha": alpha,
        "vmpo/temperature_raw": positive(state.duals["eta"]),
        "vmpo/ess": 1 / float((psi**2).sum()),
        "train/entropy": float(np.mean(entropies)),
        "value/pred_mean": float(np.mean(value)),
    }
