"""What the health rules of every algorithm have to do."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from minerva.trainers.health import Health, Rule


def warned_of(rules: Sequence[Rule], well: Mapping[str, float], ill: Mapping[str, float], checks: int) -> set[str]:
    """Return the rules that warn within so many checks; a count that is ill grows by its value each time."""
    health = Health(rules)
    said = []
    for k in range(1, checks + 1):
        grown = {name: value * k for name, value in ill.items() if name == "health/skipped"}
        said += health.check({**well, **ill, **grown})
    names = set(health.state_dict()["warned"])
    assert len(said) == len(names)
    return names


def assert_silent_when_well(rules: Sequence[Rule], well: Mapping[str, float]) -> None:
    assert {rule.metric for rule in rules} == well.keys()  # each of them is checked
    assert warned_of(rules, well, {}, checks=100) == set()


def assert_warns_after_its_checks(
    rules: Sequence[Rule], well: Mapping[str, float], ill: dict[str, float], name: str
) -> None:
    (patience,) = (rule.checks for rule in rules if rule.name == name)
    assert patience >= 5
    assert warned_of(rules, well, ill, checks=patience - 1) == set()
    assert warned_of(rules, well, ill, checks=patience) == {name}


def assert_warnings_say_what_to_try(rules: Sequence[Rule]) -> None:
    for rule in rules:
        assert rule.warning.count("{value}") == 1, rule.name
        assert re.search(r"\b(Try|try|Check)\b", rule.warning), rule.name
        text = rule.warning.format(value="0.5")
        assert "{" not in text and text.endswith(".") and text[0].islower(), rule.name
