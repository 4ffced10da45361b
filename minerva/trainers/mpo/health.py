"""What can go wrong with MPO, as its metrics show it."""

from __future__ import annotations

from minerva.trainers.health import Rule, exploded_rule, floor_rule, kl_rule, saturation_rule, skipped_rule

_SLOWER = "or a shorter target_networks_update_period"

MPO_RULES = (
    Rule(
        "ess",
        "health/ess",
        "the weights have collapsed to a single action in most states (effective sample size {value}), so that the "
        "policy copies noise. Try a higher temperature_lr or temperature_init, a smaller kl_epsilon, or more "
        "action_samples.",
        below=1.5,
    ),
    kl_rule("kl_mean", "health/kl_mean_ratio", "'s mean", "mstep_kl_epsilon",
            f"a lower policy_lr, a higher lambda_lr or init_log_alpha_mean, {_SLOWER}"),
    kl_rule("kl_std", "health/kl_std_ratio", "'s standard deviation", "its KL bound",
            f"a lower policy_lr, a higher lambda_lr or init_log_alpha_stddev, {_SLOWER}"),
    floor_rule("eta", "The critic values all actions alike, or kl_epsilon is more than log(action_samples). ",
               "a lower temperature_lr or a smaller kl_epsilon; rewards that are very small need scaling"),
    exploded_rule("eta_exploded", "eta", "the temperature has exploded (eta",
                  "all actions weigh the same and nothing is learned",
                  "a lower temperature_lr, or scale the rewards down"),
    exploded_rule("alpha_mean_exploded", "alpha_mean", "the multipliers of the mean's KL have exploded (alpha",
                  "the policy cannot move", "a lower lambda_lr, or a larger mstep_kl_epsilon"),
    exploded_rule("alpha_std_exploded", "alpha_std",
                  "the multipliers of the standard deviation's KL have exploded (alpha", "exploration cannot change",
                  "a lower lambda_lr, or a larger mstep_kl_epsilon_stddev"),
    saturation_rule("mstep_kl_epsilon, kl_epsilon"),
    Rule(
        "std_collapsed",
        "pi/std_max",
        "the policy has stopped exploring (its largest standard deviation is {value}). Try a smaller "
        "mstep_kl_epsilon_stddev or a lower policy_lr.",
        below=1e-3,
    ),
    Rule(
        "q_diverged",
        "q/max",
        "the critic's values diverge (up to {value}). Try a lower q_lr or gamma, a longer "
        "target_networks_update_period, or scale the rewards down.",
        below=-1e6,
        above=1e6,
    ),
    skipped_rule("q_lr or policy_lr"),
)  # fmt: skip
