from __future__ import annotations

import math
import re
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

from minerva.trainers.health import MPO_RULES, Health, Rule, vmpo_rules

LOW = Rule("low", "x", "x is {value}; try more.", below=1.0, checks=3)
HIGH = Rule("high", "x", "x is {value}; try less.", above=10.0, checks=2)
GROWS = Rule("grows", "n", "{value} of them.", above=0, growth=True, checks=2)
VMPO_RULES = vmpo_rules(topk_fraction=0.5, batch_size=2048, action_dim=6)


def said(health: Health, *values: float, metric: str = "x") -> list[list[str]]:
    return [health.check({metric: value}) for value in values]


def test_a_warning_comes_after_several_checks_in_a_row_and_once() -> None:
    health = Health([LOW, HIGH])
    assert said(health, 0.5, 0.5, 0.25, 0.1, 0.1) == [[], [], ["Health: x is 0.25; try more."], [], []]
    assert said(health, 5, 0.5, 0.5, 0.5, 0.5) == [[]] * 5  # well, and ill again: it has spoken
    assert said(health, 11, 12345678) == [[], ["Health: x is 1.23e+07; try less."]]  # another rule of the same metric


def test_an_odd_batch_now_and_then_is_no_illness() -> None:
    assert said(Health([LOW]), *[0.5, 0.5, 5.0] * 20) == [[]] * 60


def test_the_bounds_themselves_are_well_and_infinities_are_not() -> None:
    health = Health([LOW, HIGH])
    assert said(health, *[1.0] * 5, *[10.0] * 5) == [[]] * 10
    assert said(health, math.inf, math.inf)[1] == ["Health: x is inf; try less."]
    assert said(health, *[-math.inf] * 3)[2] == ["Health: x is -inf; try more."]


def test_what_is_missing_or_not_a_number_says_nothing() -> None:
    health = Health([LOW])
    assert said(health, *[math.nan] * 5) == [[]] * 5
    assert [health.check({}) for _ in range(5)] == [[]] * 5
    # Neither that it is ill nor that it is well: the count goes on.
    assert said(health, 0.5, math.nan, 0.5, math.nan, 0.5) == [[], [], [], [], ["Health: x is 0.5; try more."]]


def test_growth() -> None:
    assert said(Health([GROWS]), *[7.0] * 5, metric="n") == [[]] * 5  # some long ago, and no more since
    assert said(Health([GROWS]), 0, 1, 1, 2, 2, 3, metric="n") == [[]] * 6
    assert said(Health([GROWS]), 0, 1, 2, 3, metric="n") == [[], [], ["Health: 2 of them."], []]
    assert said(Health([GROWS]), 5, math.nan, 6, metric="n")[2] == ["Health: 6 of them."]


def test_a_resumed_run_says_what_the_whole_one_would(tmp_path: Path) -> None:
    values = [0.5, 0.5, 0.5, 11, 11, 0.5, 11]
    counts = [3, 3, 3, 3, 3, 4, 5]
    rules = [LOW, HIGH, GROWS]

    def check(health: Health, k: int) -> list[str]:
        return health.check({"x": values[k], "n": counts[k]})

    whole = Health(rules)
    expected = [check(whole, k) for k in range(7)]
    assert sum(len(texts) for texts in expected) == 3
    for cut in range(8):
        first, second = Health(rules), Health(rules)
        found = [check(first, k) for k in range(cut)]
        torch.save(first.state_dict(), tmp_path / "state.pt")
        second.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True))
        assert found + [check(second, k) for k in range(cut, 7)] == expected


def test_a_state_is_not_shared_and_unknown_rules_are_left_out() -> None:
    health = Health([LOW, GROWS])
    said(health, 0.5, 0.5)
    state = health.state_dict()
    said(health, 0.5)
    assert state == {"spoken": [], "in_a_row": {"low": 2, "grows": 0}, "newest": {"grows": 0.0}}
    other = Health([LOW, HIGH])
    other.load_state_dict({"spoken": ["high", "gone"], "in_a_row": {"low": 2, "gone": 4}, "newest": {"gone": 1.0}})
    assert other.state_dict() == {"spoken": ["high"], "in_a_row": {"low": 2, "high": 0}, "newest": {}}
    assert said(other, 0.5) == [["Health: x is 0.5; try more."]]


def test_two_rules_of_one_name_are_an_error() -> None:
    with pytest.raises(ValueError, match="rules: must have different names"):
        Health([LOW, LOW])


# The rules of the algorithms

MPO_WELL = {
    "eta": 0.8, "alpha_mean": 10.0, "alpha_std": 1000.0, "health/kl_mean_ratio": 1.2, "health/kl_std_ratio": 0.3,
    "health/ess": 16.0, "health/dual_saturation": 0.0, "health/skipped": 2.0, "pi/std_max": 0.5, "q/max": 300.0,
}  # fmt: skip
VMPO_WELL = {
    "vmpo/ess": 700.0, "vmpo/temperature_raw": 0.7, "vmpo/alpha_mu": 1.0, "vmpo/alpha_sigma": 1.0,
    "health/kl_mean_ratio": 1.2, "health/kl_std_ratio": 0.3, "health/dual_saturation": 0.0, "health/skipped": 2.0,
    "vmpo/selected_frac": 0.5, "train/entropy": -3.0,
}  # fmt: skip


def spoken(rules: Sequence[Rule], well: dict[str, float], ill: dict[str, float], checks: int) -> set[str]:
    """The rules that speak within so many checks; a count that is ill grows by its value each time."""
    health = Health(rules)
    said = []
    for k in range(1, checks + 1):
        grown = {name: value * k for name, value in ill.items() if name == "health/skipped"}
        said += health.check(well | ill | grown)
    names = set(health.state_dict()["spoken"])
    assert len(said) == len(names)
    return names


@pytest.mark.parametrize(("rules", "well"), [(MPO_RULES, MPO_WELL), (VMPO_RULES, VMPO_WELL)], ids=["mpo", "vmpo"])
def test_a_run_that_is_well_hears_nothing(rules: Sequence[Rule], well: dict[str, float]) -> None:
    assert {rule.metric for rule in rules} == well.keys()  # each of them is looked at
    assert spoken(rules, well, {}, checks=100) == set()


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
def test_illnesses_of_mpo(metric: str, value: float, name: str) -> None:
    patience = next(rule.checks for rule in MPO_RULES if rule.name == name)
    assert patience >= 5
    assert spoken(MPO_RULES, MPO_WELL, {metric: value}, checks=patience - 1) == set()
    assert spoken(MPO_RULES, MPO_WELL, {metric: value}, checks=patience) == {name}


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
def test_illnesses_of_vmpo(metric: str, value: float, name: str) -> None:
    patience = next(rule.checks for rule in VMPO_RULES if rule.name == name)
    assert patience >= 5
    assert spoken(VMPO_RULES, VMPO_WELL, {metric: value}, checks=patience - 1) == set()
    assert spoken(VMPO_RULES, VMPO_WELL, {metric: value}, checks=patience) == {name}


@pytest.mark.formula(
    "minerva.trainers.health",
    r"\sum_j \left( \tfrac12 + \tfrac12 \log 2\pi + \log \sigma_j \right), \quad \sigma_j = 10^{-3}",
)
def test_the_entropy_at_which_exploration_has_stopped() -> None:
    (rule,) = (rule for rule in VMPO_RULES if rule.name == "std_collapsed")
    normal = torch.distributions.Normal(torch.zeros(6).double(), torch.full((6,), 1e-3).double())
    assert rule.below == pytest.approx(normal.entropy().sum().item())  # type: ignore[no-untyped-call]


@pytest.mark.parametrize("fraction", [0.01, 0.1, 0.5, 0.9, 1.0])
@pytest.mark.parametrize("batch_size", [4, 64, 2048, 100_000])
def test_nothing_is_said_of_equal_weights_on_the_fraction_asked_for(fraction: float, batch_size: int) -> None:
    kept = max(1, math.floor(fraction * batch_size))
    metrics = {"vmpo/ess": float(kept), "vmpo/selected_frac": kept / batch_size}
    if fraction * batch_size >= 1:  # else the update itself is an error
        assert spoken(vmpo_rules(fraction, batch_size, 1), VMPO_WELL, metrics, checks=20) == set()
    if kept > 40:
        collapsed = metrics | {"vmpo/ess": 1.5}
        assert spoken(vmpo_rules(fraction, batch_size, 1), VMPO_WELL, collapsed, checks=20) == {"ess"}
    if fraction < 1:
        ties = metrics | {"vmpo/selected_frac": min(2 * fraction, 1.0)}
        assert spoken(vmpo_rules(fraction, batch_size, 1), VMPO_WELL, ties, checks=20) == {"selected"}


@pytest.mark.parametrize("rules", [MPO_RULES, VMPO_RULES, vmpo_rules(0.1, 64, 1)])
def test_each_warning_says_what_it_saw_and_what_to_try(rules: Sequence[Rule]) -> None:
    for rule in rules:
        assert rule.warning.count("{value}") == 1, rule.name
        assert re.search(r"\b(Try|try|Check)\b", rule.warning), rule.name
        text = rule.warning.format(value="0.5")
        assert "{" not in text and text.endswith(".") and text[0].islower(), rule.name
