from __future__ import annotations

import math
import warnings

import pytest
import torch

from minerva.trainers.vmpo import update
from minerva.trainers.vmpo.batch import make_batch
from tests.trainers.ppo.small_run import same
from tests.trainers.vmpo.poison import POISONS, poison
from tests.trainers.vmpo.small_agent import learned, make_agent, make_data, make_rollout


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize(
    "name",
    [
        "obs",
        "actions",
        "old_means",
        "old_log_stds",
        "returns",
        "advantages",
        "restarting_weights",
        "importance_weights",
    ],
)
def test_a_bad_number_leaves_everything_as_it_was_and_learning_goes_on(name: str, bad: float) -> None:
    if name == "restarting_weights" and bad == -math.inf:
        bad = math.nan  # no more than 0: a row that does not count
    agent, other = make_agent(m_steps=2), make_agent(m_steps=2)
    good = make_data(agent)
    for each in (agent, other):
        each.update(good)
    before = learned(agent)
    poisoned = {key: value.clone() for key, value in good.items()}
    poisoned[name][4, -1] = bad
    with pytest.warns(RuntimeWarning, match=r"not finite and was skipped \(1 so far\); nothing was changed"):
        assert agent.update(poisoned) is None
    assert same(learned(agent), before) and agent.skipped == 1
    assert agent.update(good) == other.update(good)
    assert same(learned(agent), learned(other))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("returns", 1e30),  # a loss that is infinite
        ("old_log_stds", -80.0),  # a divergence that is
        ("importance_weights", 0.0),  # no weight anywhere: a logarithm of 0
        ("advantages", 1e25),  # a variance that is infinite
    ],
)
def test_finite_inputs_that_lead_to_a_bad_number(name: str, value: float) -> None:
    agent = make_agent(m_steps=3)
    batch = make_data(agent)
    before = learned(agent)
    batch[name][:] = value
    with pytest.warns(RuntimeWarning, match="skipped"):
        assert agent.update(batch) is None
    assert same(learned(agent), before)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("part", [0, 1])
def test_a_bad_number_of_the_policy_that_acted_is_found_before_anything_is_computed(
    part: int, bad: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent = make_agent(minibatches=2, rollout_steps=8, num_envs=2)
    batch = make_batch(agent.policy, make_rollout(agent, 8), agent.config)
    batch.old[part][1, 0] = bad
    generator = torch.Generator().manual_seed(3)
    before, state = learned(agent), generator.get_state()
    monkeypatch.setattr(update, "minimize", None)  # no step is tried
    with pytest.warns(RuntimeWarning, match="skipped"):
        assert agent.updater.learn(batch, generator=generator) is None
    assert same(learned(agent), before) and torch.equal(generator.get_state(), state)


@pytest.mark.parametrize("what", POISONS)
def test_a_bad_number_in_a_late_step_undoes_the_early_ones(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    agent = make_agent(m_steps=4, rollout_steps=8, num_envs=2, recompute_advantages=True)
    rollout, before = make_rollout(agent, 8), learned(agent)
    batch = make_batch(agent.policy, rollout, agent.config)
    calls = poison(what, 4, monkeypatch)
    with pytest.warns(RuntimeWarning, match="skipped"):
        assert agent.updater.learn(batch, rollout=rollout) is None
    assert len(calls) == 4 and same(learned(agent), before) and agent.skipped == 1
    assert agent.updater.learn(batch, rollout=rollout) is not None


def test_warnings_come_for_the_first_five_and_then_every_hundredth() -> None:
    agent = make_agent()
    batch = make_data(agent)
    batch["obs"][0] = math.nan
    told = []
    for k in range(1, 206):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            agent.update(batch)
        if caught:
            told.append(k)
    assert told == [1, 2, 3, 4, 5, 100, 200] and agent.skipped == 205


def test_batches_of_the_wrong_shape_are_errors() -> None:
    agent = make_agent()
    batch = make_data(agent)
    with pytest.raises(ValueError, match="batch: must hold old_means, returns as well; got obs, actions"):
        agent.update({name: value for name, value in batch.items() if name not in ("old_means", "returns")})
    with pytest.raises(ValueError, match="batch: advantages must have as many rows as obs, 16; got 5"):
        agent.update({**batch, "advantages": batch["advantages"][:5]})
