from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.before_after import CASES, Case, main, measure, summarize, table, write

TREE = Path(__file__).parents[2]


def samples(metric: str, *values: float, path: str = "plain") -> list[dict[str, object]]:
    return [{metric: value, "path": path} for value in values]


def test_a_ratio_below_1_means_slower_for_rates_and_for_times() -> None:
    rates = [samples("steps_per_second", *values) for values in ((100.0, 900.0, 110.0), (99.0, 88.0, 1.0))]
    rate = summarize("steps_per_second", *rates)
    assert (rate["before"], rate["after"], rate["speed_ratio"], rate["holds"]) == (110.0, 88.0, 0.8, False)

    time = summarize("update_ms", samples("update_ms", 8.0, 8.0, 9.0), samples("update_ms", 10.0, 10.0, 2.0))
    assert (time["before"], time["after"], time["speed_ratio"], time["holds"]) == (8.0, 10.0, 0.8, False)

    assert summarize("update_ms", samples("update_ms", 9.8), samples("update_ms", 10.0))["holds"]


def test_versions_that_took_different_paths_are_pointed_out() -> None:
    result = summarize("update_ms", samples("update_ms", 1.0, path="compiled"), samples("update_ms", 2.0))
    assert table({"mpo": result}).splitlines()[1].split(maxsplit=5)[-1] == "below 0.97, paths differ"


def test_cases_that_were_not_measured_keep_their_results(tmp_path: Path) -> None:
    file = tmp_path / "folder" / "results.json"
    write(file, {"a": {"before": 1.0}, "b": {"before": 2.0}})
    write(file, {"b": {"before": 3.0}})
    assert json.loads(file.read_text())["cases"] == {"a": {"before": 1.0}, "b": {"before": 3.0}}


def test_a_checkout_is_measured_in_turns_with_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    turns = []

    def measured(tree: Path, case: Case, seconds: float) -> dict[str, object]:
        turns.append(tree.name)
        return {"update_ms": 2.0 if tree == TREE else 1.0, "path": "plain"}

    monkeypatch.setattr("benchmarks.before_after.measure", measured)
    monkeypatch.setattr("benchmarks.before_after.commit_of", lambda tree: f"commit of {tree.name}")
    file = tmp_path / "results.json"
    paths = ["--before", str(TREE), "--after", str(tmp_path), "--out", str(file)]
    main([*paths, "--cases", "mpo-update-plain", "--rounds", "3"])
    old, new = TREE.name, tmp_path.name
    assert turns == [old, new, new, old, old, new]
    case = json.loads(file.read_text())["cases"]["mpo-update-plain"]
    assert case["speed_ratio"] == 2.0 and case["commits"]["after"] == f"commit of {new}"


def test_a_real_measurement_has_the_numbers_that_are_compared() -> None:
    found = measure(TREE, Case("ppo --env CartPole-v1 --compile False --rollout-steps 32 --update-epochs 1"), 0.1)
    assert found["path"] == "plain" and found["updates"] >= 1
    assert {case.metric for case in CASES.values()} <= found.keys()


def test_a_failed_measurement_says_why() -> None:
    with pytest.raises(RuntimeError, match="--no-such-option"):
        measure(TREE, Case("ppo --env CartPole-v1 --no-such-option"), 0.1)
