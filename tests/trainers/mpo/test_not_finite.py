from __future__ import annotations

import copy
import math
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from minerva.trainers.health import warn_about_skipped
from minerva.trainers.mpo import update
from minerva.trainers.mpo.agent import MPOAgent
from tests.trainers.mpo.small_agent import (
    OBS,
    RETRACE,
    ROWS,
    SETTINGS,
    Arrays,
    assert_same_as_oracle,
    make_agent,
    make_oracle,
    n_step_transitions,
    oracle_batch,
    sequences,
    state_of,
    transitions,
)
from tests.trainers.ppo.small_run import same


def assert_skipped(agent: MPOAgent, batch: Arrays) -> None:
    before, skipped = state_of(agent), agent.skipped.item()
    agent.skipped.zero_()
    with pytest.warns(RuntimeWarning, match=r"not finite and was skipped \(1 so far\)") as caught:
        assert agent.update(batch) is None
    assert len(caught) == 1 and caught[0].filename == __file__
    assert agent.skipped.item() == 1
    agent.skipped.fill_(skipped + 1)
    assert same(state_of(agent), before)


BAD = (math.nan, math.inf, -math.inf)


@pytest.mark.parametrize("bad", BAD)
@pytest.mark.parametrize(
    ("make_batch", "fields"),
    [
        (transitions, {}),
        (n_step_transitions, {"n_step": 3}),
        (transitions, {"normalize_obs": True}),
        (sequences, RETRACE),
    ],
)
def test_a_batch_with_a_bad_number_changes_nothing(
    make_batch: Callable[[int], Arrays], fields: dict[str, Any], bad: float
) -> None:
    agent = make_agent(**fields)
    assert agent.update(make_batch(0)) is not None  # moments and counters are no longer 0
    batch = make_batch(1)
    for name, values in batch.items():
        spoiled = values.copy()
        spoiled.reshape(-1)[0] = bad
        assert_skipped(agent, {**batch, name: spoiled})
        if make_batch is sequences:  # and where the sequence is already cut
            spoiled = values.copy()
            spoiled[3, 3] = bad
            assert_skipped(agent, {**batch, name: spoiled})
    assert agent.update(batch) is not None


def test_a_skipped_batch_leaves_no_trace() -> None:
    # With a period of 2: the target networks count successful updates.
    fields = {"target_networks_update_period": 2}
    agent = make_agent(**fields)
    oracle = make_oracle(agent, **fields)
    bad = {**transitions(), "rewards": np.full((ROWS, 1), math.nan)}
    assert_skipped(agent, bad)
    for seed in range(3):
        batch = agent.to_batch(transitions(seed))
        noise = agent.draw_noise(batch)
        finite, _ = agent.step(batch, noise)
        assert finite
        oracle.update(oracle_batch(transitions(seed), SETTINGS["gamma"]), *(part.double() for part in noise))
        assert_skipped(agent, bad)
        assert_same_as_oracle(agent, oracle, atol=5e-5)


def spoil_q(agent: MPOAgent) -> None:
    agent.q.head.bias.data.fill_(math.inf)


def spoil_policy_gradient(agent: MPOAgent) -> None:
    agent.log_alpha_mean.data[1] = math.nan


@pytest.mark.parametrize(
    ("spoil", "changes"),
    [
        (spoil_q, {}),  # a Q-value
        (lambda agent: agent.q.head.bias.data.fill_(100.0), {"discounts": 3e38}),  # a target
        (lambda agent: None, {"rewards": 3e38}),  # the critic's loss
        (lambda agent: agent.log_temperature.data.fill_(math.inf), {}),  # the duals' loss
        (lambda agent: agent.log_alpha_stddev.data.fill_(3e38), {}),  # the policy's loss, or its gradient
    ],
    ids=["q", "target", "loss", "temperature", "alpha"],
)
def test_a_number_that_becomes_bad_on_the_way_changes_nothing(
    spoil: Callable[[MPOAgent], Any], changes: dict[str, float]
) -> None:
    agent = make_agent()
    assert agent.update(transitions()) is not None
    kept = copy.deepcopy(state_of(agent))
    spoil(agent)
    batch = transitions(1)
    batch.update({name: np.full((ROWS, 1), value) for name, value in changes.items()})
    assert_skipped(agent, batch)
    with torch.no_grad():
        agent.load_state_dict({name: value for name, value in kept.items() if name in agent.state_dict()})
    assert agent.update(transitions(1)) is not None


def test_a_nan_among_the_duals_is_seen() -> None:
    agent = make_agent()
    spoil_policy_gradient(agent)
    before = state_of(agent)
    with pytest.warns(RuntimeWarning, match="skipped"):
        assert agent.update(transitions()) is None
    after = state_of(agent)
    assert all(torch.equal(after[name], before[name]) for name in after if "alpha_mean" not in name)


def test_a_gradient_of_the_temperature_that_is_not_a_number_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    agent, honest = make_agent(), update.dual_loss

    def poisoned(duals: Any, *arguments: Any) -> Any:
        loss, aux = honest(duals, *arguments)
        return loss + (0 * duals()[0]).sqrt(), aux  # the loss stays finite, and the new temperature is in no other loss

    monkeypatch.setattr(update, "dual_loss", poisoned)
    assert_skipped(agent, transitions())


def test_warnings_for_the_first_five_and_every_hundredth() -> None:
    agent = make_agent()
    bad = {**transitions(), "obs": np.full((ROWS, OBS), math.nan)}
    told = []
    for count in (1, 2, 3, 4, 5, 6, 7, 99, 100, 101, 199, 200, 201, 300):
        agent.skipped.fill_(count - 1)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            assert agent.update(bad) is None
        assert agent.skipped.item() == count
        if caught:
            assert f"({count} so far)" in str(caught[0].message)
            told.append(count)
    assert told == [1, 2, 3, 4, 5, 100, 200, 300]


def test_warnings_for_several_skipped_batches_at_once() -> None:
    told = []
    for seen, count in ((0, 3), (3, 7), (5, 8), (7, 99), (99, 120), (120, 180), (180, 340)):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            warn_about_skipped(count, seen)
        told += [count] if caught else []
    assert told == [3, 7, 120, 340]
