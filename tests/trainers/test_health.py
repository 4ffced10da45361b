from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch

from minerva.trainers.health import Health, Rule

LOW = Rule("low", "x", "x is {value}; try more.", below=1.0, checks=3)
HIGH = Rule("high", "x", "x is {value}; try less.", above=10.0, checks=2)
GROWS = Rule("grows", "n", "{value} of them.", above=0, growth=True, checks=2)


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
    # Neither unhealthy nor healthy: the count continues.
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
    assert state == {"warned": [], "in_a_row": {"low": 2, "grows": 0}, "newest": {"grows": 0.0}}
    other = Health([LOW, HIGH])
    other.load_state_dict({"warned": ["high", "gone"], "in_a_row": {"low": 2, "gone": 4}, "newest": {"gone": 1.0}})
    assert other.state_dict() == {"warned": ["high"], "in_a_row": {"low": 2, "high": 0}, "newest": {}}
    assert said(other, 0.5) == [["Health: x is 0.5; try more."]]


def test_two_rules_of_one_name_are_an_error() -> None:
    with pytest.raises(ValueError, match="rules: must have different names"):
        Health([LOW, LOW])
