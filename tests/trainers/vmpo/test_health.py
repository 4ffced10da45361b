from __future__ import annotations

import math
from collections.abc import Sequence

import pytest
import torch

from minerva.trainers.health import Rule
from minerva.trainers.vmpo.health import vmpo_rules
from tests.trainers.health_checks import (
    assert_silent_when_well,
    assert_warnings_say_what_to_try,
    assert_warns_after_its_checks,
    warned_of,
)

RULES = vmpo_rules(topk_fraction=0.5, batch_size=2048, action_dim=6)
DISCRETE_RULES = vmpo_rules(topk_fraction=0.5, batch_size=2048, action_dim=1, discrete=True)
WELL = {
    "vmpo/ess": 700.0, "vmpo/temperature_raw": 0.7, "vmpo/alpha_mu": 1.0, "vmpo/alpha_sigma": 1.0,
    "health/kl_mean_ratio": 1.2, "health/kl_std_ratio": 0.3, "health/dual_saturation": 0.0, "health/skipped": 2.0,
    "vmpo/selected_frac": 0.5, "train/entropy": -3.0,
}  # fmt: skip
DISCRETE_WELL = {
    "vmpo/ess": 700.0, "vmpo/temperature_raw": 0.7, "vmpo/alpha": 1.0, "health/kl_ratio": 1.2,
    "health/dual_saturation": 0.0, "health/skipped": 2.0, "vmpo/selected_frac": 0.5, "train/entropy": 0.5,
}  # fmt: skip


@pytest.mark.parametrize(("rules", "well"), [(RULES, WELL), (DISCRETE_RULES, DISCRETE_WELL)])
def test_a_run_that_is_well_hears_nothing(rules: Sequence[Rule], well: dict[str, float]) -> None:
    assert_silent_when_well(rules, well)


@pytest.mark.parametrize(
    ("metric", "value", "name"),
    [
        ("vmpo/ess", 10.0, "ess"),  # 1% of the 1024 that are kept is a little more
        ("health/kl_mean_ratio", 10.5, "kl_mean"),
        ("health/kl_std_ratio", 10.5, "kl_std"),
        ("vmpo/temperature_raw", 9e-6, "eta_floor"),
        ("vmpo/temperature_raw", 2e5, "eta_exploded"),
        ("vmpo/alpha_mu", 2e5, "alpha_mu_exploded"),
        ("vmpo/alpha_sigma", 2e5, "alpha_sigma_exploded"),
        ("health/dual_saturation", 1 / 3, "dual_saturation"),
        ("vmpo/selected_frac", 0.2, "selected"),
        ("vmpo/selected_frac", 0.9, "selected"),
        ("train/entropy", -33.1, "std_collapsed"),  # six dimensions of sigma 1e-3: -32.93
        ("health/skipped", 1.0, "skipped"),
    ],
)
def test_what_is_wrong_is_told_after_several_checks(metric: str, value: float, name: str) -> None:
    assert_warns_after_its_checks(RULES, WELL, {metric: value}, name)


@pytest.mark.parametrize(
    ("metric", "value", "name"),
    [
        ("health/kl_ratio", 10.5, "kl"),
        ("vmpo/alpha", 2e5, "alpha_exploded"),
        ("train/entropy", 9e-5, "entropy_collapsed"),
    ],
)
def test_what_is_wrong_with_discrete_actions_is_told(metric: str, value: float, name: str) -> None:
    assert_warns_after_its_checks(DISCRETE_RULES, DISCRETE_WELL, {metric: value}, name)


@pytest.mark.formula(
    "minerva.trainers.vmpo.health",
    r"\sum_j \left( \tfrac12 + \tfrac12 \log 2\pi + \log \sigma_j \right), \quad \sigma_j = 10^{-3}",
)
def test_the_entropy_at_which_exploration_has_stopped() -> None:
    (rule,) = (rule for rule in RULES if rule.name == "std_collapsed")
    normal = torch.distributions.Normal(torch.zeros(6).double(), torch.full((6,), 1e-3).double())
    assert rule.below == pytest.approx(normal.entropy().sum().item())  # type: ignore[no-untyped-call]


@pytest.mark.parametrize("fraction", [0.01, 0.1, 0.5, 0.9, 1.0])
@pytest.mark.parametrize("batch_size", [4, 64, 2048, 100_000])
def test_nothing_is_said_of_equal_weights_on_the_fraction_asked_for(fraction: float, batch_size: int) -> None:
    kept = max(1, math.floor(fraction * batch_size))
    metrics = {"vmpo/ess": float(kept), "vmpo/selected_frac": kept / batch_size}
    if fraction * batch_size >= 1:  # else the update itself is an error
        assert warned_of(vmpo_rules(fraction, batch_size, 1), WELL, metrics, checks=20) == set()
    if kept > 40:
        collapsed = metrics | {"vmpo/ess": 1.5}
        assert warned_of(vmpo_rules(fraction, batch_size, 1), WELL, collapsed, checks=20) == {"ess"}
    if fraction < 1:
        ties = metrics | {"vmpo/selected_frac": min(2 * fraction, 1.0)}
        assert warned_of(vmpo_rules(fraction, batch_size, 1), WELL, ties, checks=20) == {"selected"}


@pytest.mark.parametrize("rules", [RULES, DISCRETE_RULES, vmpo_rules(0.1, 64, 1)])
def test_each_warning_says_what_it_saw_and_what_to_try(rules: Sequence[Rule]) -> None:
    assert_warnings_say_what_to_try(rules)
