"""Warnings about learning itself: rules on metrics, each said in plain language and once."""

from __future__ import annotations

import math
import warnings as python_warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from minerva.utils.structure import check, dict_of, list_of


@dataclass(frozen=True)
class Rule:
    """A health rule: the range of a metric outside of which learning is broken.

    Attributes:
        name: The rule's name.
        metric: The metric that it checks.
        warning: What is wrong and what to try; ``{value}`` stands for the metric.
        below: The rule is broken below this value.
        above: And above this one.
        growth: Check how much the metric has grown since the last check, in place of its value.
        checks: How many checks in a row must fail before the warning. A single odd batch means nothing.
    """

    name: str
    metric: str
    warning: str
    below: float = -math.inf
    above: float = math.inf
    growth: bool = False
    checks: int = 5


class Health:
    """Check the metrics of a run against rules, and warn of each broken rule once.

    A metric that is missing, or not a number, changes nothing.

    Args:
        rules: The rules, with different names.
    """

    def __init__(self, rules: Sequence[Rule]) -> None:
        self._rules = tuple(rules)
        self._warned: set[str] = set()
        self._in_a_row = {rule.name: 0 for rule in rules}
        self._newest = {rule.name: 0.0 for rule in rules if rule.growth}
        if len(self._in_a_row) != len(self._rules):
            raise ValueError(f"rules: must have different names, got {[rule.name for rule in rules]}.")

    def check(self, metrics: Mapping[str, float]) -> list[str]:
        """Check the metrics of an update; return the new warnings, usually none."""
        warnings = []
        for rule in self._rules:
            value = metrics.get(rule.metric, math.nan)
            if math.isnan(value):
                continue
            checked = value
            if rule.growth:
                checked, self._newest[rule.name] = value - self._newest[rule.name], value
            broken = checked < rule.below or checked > rule.above
            self._in_a_row[rule.name] = self._in_a_row[rule.name] + 1 if broken else 0
            if self._in_a_row[rule.name] >= rule.checks and rule.name not in self._warned:
                self._warned.add(rule.name)
                warnings.append("Health: " + rule.warning.format(value=f"{value:.3g}"))
        return warnings

    def state_dict(self) -> dict[str, Any]:
        """Return what was warned of and seen, as plain values."""
        return {"warned": sorted(self._warned), "in_a_row": dict(self._in_a_row), "newest": dict(self._newest)}

    def check_state(self, state: Any, name: str) -> None:
        """Raise a `StructureError` if a loaded state is none; its rules may be other ones."""
        check(state, {"warned": list_of(""), "in_a_row": dict_of(0), "newest": dict_of(0.0)}, name)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load a state that `state_dict` returned; rules that are not among these are ignored."""
        self._warned = {name for name in state["warned"] if name in self._in_a_row}
        self._in_a_row = {name: state["in_a_row"].get(name, 0) for name in self._in_a_row}
        self._newest = {name: state["newest"].get(name, 0.0) for name in self._newest}


TEMPERATURE_FLOOR = 1e-5
"""A temperature below this is practically at its floor: its gradients vanish beside Adam's epsilon of 1e-5."""
MAX_KL_RATIO = 10.0
"""How many times its bound a KL divergence may reach."""
MAX_DUAL = 1e5
"""No dual variable of a run that learns comes near this."""


def kl_rule(name: str, metric: str, what: str, bound: str, remedy: str) -> Rule:
    """Return the health rule that a KL divergence stays near its bound."""
    warning = f"the policy{what} has moved {{value}} times as far as {bound} allows. Try {remedy}."
    return Rule(name, metric, warning, above=MAX_KL_RATIO)


def exploded_rule(name: str, metric: str, what: str, consequence: str, remedy: str) -> Rule:
    """Return the health rule that a dual variable does not explode."""
    return Rule(name, metric, f"{what} {{value}}), so that {consequence}. Try {remedy}.", above=MAX_DUAL)


def floor_rule(metric: str, reason: str, remedy: str) -> Rule:
    """Return the health rule that the temperature stays above its floor."""
    warning = (
        f"the temperature has fallen to its floor (eta {{value}}) and will hardly rise again. {reason}Try {remedy}."
    )
    return Rule("eta_floor", metric, warning, below=TEMPERATURE_FLOOR)


def skipped_rule(lower: str) -> Rule:
    """Return the health rule that batches are not skipped all the time; `lower` names the settings to lower."""
    return Rule(
        "skipped",
        "health/skipped",
        "batches keep being skipped because of numbers that are not finite ({value} so far). Look for infinite rewards "
        f"or observations, or try a lower {lower}.",
        above=0,
        growth=True,
    )


def saturation_rule(bounds: str) -> Rule:
    """Return the health rule that dual variables stay above their floor; `bounds` names the KL bounds' settings."""
    return Rule(
        "dual_saturation",
        "health/dual_saturation",
        "dual variables stand at their floor (a share of {value}), so their KL bounds limit nothing. If learning is "
        f"unsteady, try smaller bounds ({bounds}).",
        above=0,
        checks=20,  # a policy that has converged may let a multiplier fall for a while
    )


def warn_about_skipped(count: int, seen: int | None = None, warn: Callable[[str], None] | None = None) -> None:
    """Warn about batches that were skipped because of values that are not finite: the first five, then every hundredth.

    Args:
        count: How many in all.
        seen: How many of them there were at the last call; by default all but one.
        warn: What tells the user; `warnings.warn` by default.
    """
    seen = count - 1 if seen is None else seen
    if seen < 5 or count // 100 > seen // 100:
        text = (
            f"a batch gave a number that is not finite and was skipped ({count} so far); nothing was changed by it. "
            "If this continues, try lower learning rates, or look at the environment's rewards"
        )
        if warn is not None:
            warn(text)
        else:
            python_warnings.warn(text, RuntimeWarning, stacklevel=3)
