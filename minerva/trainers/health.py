"""What the metrics of MPO and V-MPO say about learning itself, in plain language and once."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Rule:
    """A metric outside the range in which learning works.

    Attributes:
        name: Under which it is remembered to have spoken.
        metric: The metric that it looks at.
        warning: What is wrong and what to try; ``{value}`` stands for the metric.
        below: It is ill under this value.
        above: And over this one.
        growth: Whether it is not the value that is looked at but how much it has grown since the last check.
        checks: How many checks in a row it has to be ill for. A single odd batch is no illness.
    """

    name: str
    metric: str
    warning: str
    below: float = -math.inf
    above: float = math.inf
    growth: bool = False
    checks: int = 5


class Health:
    """Watches the metrics of a run and warns of each illness once.

    A metric that is missing, or not a number, says nothing: neither that it is ill nor that it is well.

    Args:
        rules: What to look at; their names differ.
    """

    def __init__(self, rules: Sequence[Rule]) -> None:
        self._rules = tuple(rules)
        self._spoken: set[str] = set()
        self._in_a_row = {rule.name: 0 for rule in rules}
        self._newest = {rule.name: 0.0 for rule in rules if rule.growth}
        if len(self._in_a_row) != len(self._rules):
            raise ValueError(f"rules: must have different names, got {[rule.name for rule in rules]}.")

    def check(self, metrics: Mapping[str, float]) -> list[str]:
        """Take in the metrics of an update; returns what is to be said, mostly nothing."""
        said = []
        for rule in self._rules:
            value = metrics.get(rule.metric, math.nan)
            if math.isnan(value):
                continue
            looked_at = value
            if rule.growth:
                looked_at, self._newest[rule.name] = value - self._newest[rule.name], value
            ill = looked_at < rule.below or looked_at > rule.above
            self._in_a_row[rule.name] = self._in_a_row[rule.name] + 1 if ill else 0
            if self._in_a_row[rule.name] >= rule.checks and rule.name not in self._spoken:
                self._spoken.add(rule.name)
                said.append("Health: " + rule.warning.format(value=f"{value:.3g}"))
        return said

    def state_dict(self) -> dict[str, Any]:
        """Give what has been said and seen, as plain values."""
        return {"spoken": sorted(self._spoken), "in_a_row": dict(self._in_a_row), "newest": dict(self._newest)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take it back; of rules that are not among these nothing is kept."""
        self._spoken = {name for name in state["spoken"] if name in self._in_a_row}
        self._in_a_row = {name: state["in_a_row"].get(name, 0) for name in self._in_a_row}
        self._newest = {name: state["newest"].get(name, 0.0) for name in self._newest}


FLOOR = 1e-5
"""A temperature below this is as good as at its floor: beside Adam's epsilon of 1e-5 its gradients vanish."""
KL_FACTOR = 10.0
"""How many times its bound a KL divergence may reach."""
EXPLODED = 1e5
"""No dual variable of a run that learns comes near this."""


def _skipped(lower: str) -> Rule:
    return Rule(
        "skipped",
        "health/skipped",
        "batches keep being skipped because of numbers that are not finite ({value} so far). Look for infinite rewards "
        f"or observations, or try a lower {lower}.",
        above=0,
        growth=True,
    )


def _saturated(bounds: str) -> Rule:
    return Rule(
        "dual_saturation",
        "health/dual_saturation",
        "dual variables stand at their floor (a share of {value}), so their KL bounds limit nothing. If learning is "
        f"unsteady, try smaller bounds ({bounds}).",
        above=0,
        checks=20,  # a policy that has converged may let a multiplier fall for a while
    )


MPO_RULES = (
    Rule(
        "ess",
        "health/ess",
        "the weights have collapsed to a single action in most states (effective sample size {value}), so that the "
        "policy copies noise. Try a higher temperature_lr or temperature_init, a smaller kl_epsilon, or more "
        "action_samples.",
        below=1.5,
    ),
    Rule(
        "kl_mean",
        "health/kl_mean_ratio",
        "the policy's mean has moved {value} times as far as mstep_kl_epsilon allows. Try a lower policy_lr, a higher "
        "lambda_lr or init_log_alpha_mean, or a shorter target_networks_update_period.",
        above=KL_FACTOR,
    ),
    Rule(
        "kl_std",
        "health/kl_std_ratio",
        "the policy's standard deviation has moved {value} times as far as its KL bound allows. Try a lower policy_lr, "
        "a higher lambda_lr or init_log_alpha_stddev, or a shorter target_networks_update_period.",
        above=KL_FACTOR,
    ),
    Rule(
        "eta_floor",
        "eta",
        "the temperature has fallen to its floor (eta {value}) and will hardly rise again. The critic values all "
        "actions alike, or kl_epsilon is more than log(action_samples). Try a lower temperature_lr or a smaller "
        "kl_epsilon; rewards that are very small need scaling.",
        below=FLOOR,
    ),
    Rule(
        "eta_exploded",
        "eta",
        "the temperature has exploded (eta {value}), so that all actions weigh the same and nothing is learned. Try a "
        "lower temperature_lr, or scale the rewards down.",
        above=EXPLODED,
    ),
    Rule(
        "alpha_mean_exploded",
        "alpha_mean",
        "the multipliers of the mean's KL have exploded (alpha {value}), so that the policy cannot move. Try a lower "
        "lambda_lr, or a larger mstep_kl_epsilon.",
        above=EXPLODED,
    ),
    Rule(
        "alpha_std_exploded",
        "alpha_std",
        "the multipliers of the standard deviation's KL have exploded (alpha {value}), so that exploration cannot "
        "change. Try a lower lambda_lr, or a larger mstep_kl_epsilon_stddev.",
        above=EXPLODED,
    ),
    _saturated("mstep_kl_epsilon, kl_epsilon"),
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
    _skipped("q_lr or policy_lr"),
)
"""What can go wrong with MPO."""


def vmpo_rules(topk_fraction: float, batch_size: int, action_dim: int, discrete: bool = False) -> tuple[Rule, ...]:
    """Give what can go wrong with V-MPO.

    Args:
        topk_fraction: ρ, the share of samples that is meant to be kept.
        batch_size: Samples an update.
        action_dim: A.
        discrete: Whether actions are: their one divergence is bounded by epsilon_mu.
    """
    kept = topk_fraction * batch_size
    return (
        Rule(
            "ess",
            "vmpo/ess",
            f"the weights have collapsed to few of about {kept:.0f} kept samples (effective sample size {{value}}), so "
            "that the policy copies noise. Try a higher temperature_lr or temperature_init, or a smaller epsilon_eta.",
            below=max(0.01 * kept, min(10.0, kept / 4)),
        ),
        *(_DISCRETE if discrete else _continuous(action_dim)),
        Rule(
            "eta_floor",
            "vmpo/temperature_raw",
            "the temperature has fallen to its floor (eta {value}) and will hardly rise again. Try a lower "
            "temperature_lr or a smaller epsilon_eta, and normalize_advantages.",
            below=FLOOR,
        ),
        Rule(
            "eta_exploded",
            "vmpo/temperature_raw",
            "the temperature has exploded (eta {value}), so that all kept samples weigh the same. Try a lower "
            "temperature_lr, and normalize_advantages.",
            above=EXPLODED,
        ),
        _saturated("epsilon_eta, epsilon_mu" + ("" if discrete else ", epsilon_sigma")),
        Rule(
            "selected",
            "vmpo/selected_frac",
            f"a share of {{value}} of the samples is kept, far from topk_fraction = {topk_fraction:g}: many advantages "
            "are equal. Check that the rewards differ between actions, and that the critic learns.",
            below=topk_fraction / 2,
            above=min(1.5 * topk_fraction, (1 + topk_fraction) / 2),
        ),
        _skipped("policy_lr or value_lr"),
    )


def _continuous(action_dim: int) -> tuple[Rule, ...]:
    return (
        Rule(
            "kl_mean",
            "health/kl_mean_ratio",
            "the policy's mean has moved {value} times as far as epsilon_mu allows in one update. Try a lower "
            "policy_lr, fewer m_steps, or a higher alpha_lr.",
            above=KL_FACTOR,
        ),
        Rule(
            "kl_std",
            "health/kl_std_ratio",
            "the policy's standard deviation has moved {value} times as far as epsilon_sigma allows in one update. Try "
            "a lower policy_lr, fewer m_steps, or a higher alpha_lr.",
            above=KL_FACTOR,
        ),
        Rule(
            "alpha_mu_exploded",
            "vmpo/alpha_mu",
            "the multiplier of the mean's KL has exploded (alpha {value}), so that the policy cannot move. Try a lower "
            "alpha_lr, or a larger epsilon_mu.",
            above=EXPLODED,
        ),
        Rule(
            "alpha_sigma_exploded",
            "vmpo/alpha_sigma",
            "the multiplier of the standard deviation's KL has exploded (alpha {value}), so that exploration cannot "
            "change. Try a lower alpha_lr, or a larger epsilon_sigma.",
            above=EXPLODED,
        ),
        Rule(
            "std_collapsed",
            "train/entropy",
            "the policy has stopped exploring (its entropy is {value}). Try a smaller epsilon_sigma or a lower "
            "policy_lr.",
            # LaTeX: \sum_j \left( \tfrac12 + \tfrac12 \log 2\pi + \log \sigma_j \right), \quad \sigma_j = 10^{-3}
            below=action_dim * (0.5 + 0.5 * math.log(2 * math.pi) + math.log(1e-3)),
        ),
    )


_DISCRETE = (
    Rule(
        "kl",
        "health/kl_ratio",
        "the policy has moved {value} times as far as epsilon_mu allows in one update. Try a lower policy_lr, fewer "
        "m_steps, or a higher alpha_lr.",
        above=KL_FACTOR,
    ),
    Rule(
        "alpha_exploded",
        "vmpo/alpha",
        "the multiplier of the policy's KL has exploded (alpha {value}), so that the policy cannot move. Try a lower "
        "alpha_lr, or a larger epsilon_mu.",
        above=EXPLODED,
    ),
    Rule(
        "entropy_collapsed",
        "train/entropy",
        "the policy has stopped exploring (its entropy is {value}): nearly always it chooses the same. Try a smaller "
        "epsilon_mu or a lower policy_lr.",
        below=1e-4,
    ),
)


def warn_of_skipped(count: int, seen: int | None = None) -> None:
    """Warn of batches that were left out: of the first five, then of every hundredth.

    Args:
        count: How many, in all.
        seen: How many of them were spoken of before; by default all but one.
    """
    seen = count - 1 if seen is None else seen
    if seen < 5 or count // 100 > seen // 100:
        warnings.warn(
            f"a batch gave a number that is not finite and was skipped ({count} so far); nothing was changed by it. "
            "If they go on, try lower learning rates, or look at the environment's rewards",
            RuntimeWarning,
            stacklevel=3,
        )
