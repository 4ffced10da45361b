from __future__ import annotations

import pytest

from minerva.trainers.mpo.health import MPO_RULES
from tests.trainers.health_checks import (
    assert_silent_when_well,
    assert_warnings_say_what_to_try,
    assert_warns_after_its_checks,
)

WELL = {
    "eta": 0.8, "alpha_mean": 10.0, "alpha_std": 1000.0, "health/kl_mean_ratio": 1.2, "health/kl_std_ratio": 0.3,
    "health/ess": 16.0, "health/dual_saturation": 0.0, "health/skipped": 2.0, "pi/std_max": 0.5, "q/max": 300.0,
}  # fmt: skip


def test_a_run_that_is_well_hears_nothing() -> None:
    assert_silent_when_well(MPO_RULES, WELL)


@pytest.mark.parametrize(
    ("metric", "value", "name"),
    [
        ("health/ess", 1.4, "ess"),
        ("health/kl_mean_ratio", 10.5, "kl_mean"),
        ("health/kl_std_ratio", 10.5, "kl_std"),
        ("eta", 9e-6, "eta_floor"),
        ("eta", 2e5, "eta_exploded"),
        ("alpha_mean", 2e5, "alpha_mean_exploded"),
        ("alpha_std", 2e5, "alpha_std_exploded"),
        ("health/dual_saturation", 0.05, "dual_saturation"),
        ("pi/std_max", 9e-4, "std_collapsed"),
        ("q/max", 2e6, "q_diverged"),
        ("q/max", -2e6, "q_diverged"),
        ("health/skipped", 1.0, "skipped"),
    ],
)
def test_what_is_wrong_is_told_after_several_checks(metric: str, value: float, name: str) -> None:
    assert_warns_after_its_checks(MPO_RULES, WELL, {metric: value}, name)


def test_each_warning_says_what_it_saw_and_what_to_try() -> None:
    assert_warnings_say_what_to_try(MPO_RULES)
