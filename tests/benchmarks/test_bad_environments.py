from __future__ import annotations

import collections

import pytest

from benchmarks.bad_input.environments import ALGORITHMS, Case, all_cases, results, run_case


def test_there_are_more_than_a_thousand_different_cases() -> None:
    cases = all_cases()
    assert len(set(cases)) == len(cases) > 1_000
    assert set(collections.Counter(case.algo for case in cases)) == set(ALGORITHMS)


@pytest.mark.filterwarnings("ignore")
def test_a_sample_of_faulty_environments_is_refused() -> None:
    found = list(results(12, seed=3))  # benchmarks/bad_input runs all of them
    assert [result for result in found if result.verdict != "refused"] == []
    assert all(result.kind == "environments" and result.message for result in found)


def test_an_environment_without_a_fault_would_be_seen() -> None:
    # Nothing is ever wrong at a step that no episode reaches.
    assert run_case(Case("vector", "info", "None", "step", "ppo")).verdict == "refused"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("benchmarks.bad_input.environments.MOMENTS", {"step": 99})
        assert run_case(Case("vector", "info", "None", "step", "ppo")).verdict == "accepted"
