"""What can go wrong with V-MPO, as its metrics show it."""

from __future__ import annotations

import math

from minerva.trainers.health import Rule, exploded_rule, floor_rule, kl_rule, saturation_rule, skipped_rule

_SLOWER = "a lower policy_lr, fewer m_steps, or a higher alpha_lr"


def vmpo_rules(topk_fraction: float, batch_size: int, action_dim: int, discrete: bool = False) -> tuple[Rule, ...]:
    """Return the health rules of a V-MPO run.

    Args:
        topk_fraction: ρ, the share of samples that is meant to be kept.
        batch_size: Samples per update.
        action_dim: A.
        discrete: Whether actions are discrete: their one divergence is bounded by epsilon_mu.
    """
    kept, eta = topk_fraction * batch_size, "vmpo/temperature_raw"
    return (
        Rule(
            "ess",
            "vmpo/ess",
            f"the weights have collapsed to few of about {kept:.0f} kept samples (effective sample size {{value}}), so "
            "that the policy copies noise. Try a higher temperature_lr or temperature_init, or a smaller epsilon_eta.",
            below=max(0.01 * kept, min(10.0, kept / 4)),
        ),
        *(_DISCRETE if discrete else _continuous(action_dim)),
        floor_rule(eta, "", "a lower temperature_lr or a smaller epsilon_eta, and normalize_advantages"),
        exploded_rule("eta_exploded", eta, "the temperature has exploded (eta", "all kept samples weigh the same",
                      "a lower temperature_lr, and normalize_advantages"),
        saturation_rule("epsilon_eta, epsilon_mu" + ("" if discrete else ", epsilon_sigma")),
        Rule(
            "selected",
            "vmpo/selected_frac",
            f"a share of {{value}} of the samples is kept, far from topk_fraction = {topk_fraction:g}: many advantages "
            "are equal. Check that the rewards differ between actions, and that the critic learns.",
            below=topk_fraction / 2,
            above=min(1.5 * topk_fraction, (1 + topk_fraction) / 2),
        ),
        skipped_rule("policy_lr or value_lr"),
    )  # fmt: skip


def _continuous(action_dim: int) -> tuple[Rule, ...]:
    # LaTeX: \sum_j \left( \tfrac12 + \tfrac12 \log 2\pi + \log \sigma_j \right), \quad \sigma_j = 10^{-3}
    collapsed = action_dim * (0.5 + 0.5 * math.log(2 * math.pi) + math.log(1e-3))
    return (
        kl_rule("kl_mean", "health/kl_mean_ratio", "'s mean", "epsilon_mu", _SLOWER),
        kl_rule("kl_std", "health/kl_std_ratio", "'s standard deviation", "epsilon_sigma", _SLOWER),
        exploded_rule("alpha_mu_exploded", "vmpo/alpha_mu", "the multiplier of the mean's KL has exploded (alpha",
                      "the policy cannot move", "a lower alpha_lr, or a larger epsilon_mu"),
        exploded_rule("alpha_sigma_exploded", "vmpo/alpha_sigma",
                      "the multiplier of the standard deviation's KL has exploded (alpha", "exploration cannot change",
                      "a lower alpha_lr, or a larger epsilon_sigma"),
        Rule("std_collapsed", "train/entropy", "the policy has stopped exploring (its entropy is {value}). Try a "
             "smaller epsilon_sigma or a lower policy_lr.", below=collapsed),
    )  # fmt: skip


_DISCRETE = (
    kl_rule("kl", "health/kl_ratio", "", "epsilon_mu", _SLOWER),
    exploded_rule("alpha_exploded", "vmpo/alpha", "the multiplier of the policy's KL has exploded (alpha",
                  "the policy cannot move", "a lower alpha_lr, or a larger epsilon_mu"),
    Rule("entropy_collapsed", "train/entropy", "the policy has stopped exploring (its entropy is {value}): nearly "
         "always it chooses the same. Try a smaller epsilon_mu or a lower policy_lr.", below=1e-4),
)  # fmt: skip
