"""A sample of bad observations and masks: each is refused with one sentence."""

import numpy as np

from benchmarks.bad_input import acting


def test_a_sample_is_refused() -> None:
    found = list(acting.results(500, seed=5))
    assert len(found) == 500
    assert [result for result in found if result.verdict != "refused"] == []


def test_members_of_the_spaces_are_accepted() -> None:
    for kind, policy in acting.load_policies().items():
        space = acting.SPACES[kind]
        space.seed(0)
        for _ in range(5):
            assert acting.attempt(kind, policy, space.sample()).verdict == "accepted"
        masks = ([0, 1, 1], np.ones(acting.ACTIONS, np.int8), [[True, False, False]]) if kind == acting.MASKED else ()
        for mask in masks:
            assert acting.attempt(kind, policy, space.sample(), mask).verdict == "accepted"
