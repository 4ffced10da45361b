from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from minerva.acceleration.applied import Acceleration
from minerva.utils.running_norm import RunningNorm
from tests.trainers.mpo.small_agent import (
    ACT,
    OBS,
    RETRACE,
    ROWS,
    SETTINGS,
    make_agent,
    sequences,
    state_of,
    transitions,
)
from tests.trainers.ppo.small_run import same


def trained_on(batch: dict[str, Any], **fields: Any) -> dict[str, Tensor]:
    agent = make_agent(**fields)
    assert agent.update(batch) is not None
    return state_of(agent)


def test_arrays_or_tensors_of_any_precision() -> None:
    batch = transitions()
    expected = trained_on(batch)
    assert same(trained_on({name: torch.from_numpy(value) for name, value in batch.items()}), expected)
    assert same(trained_on({name: value.astype(np.float32) for name, value in batch.items()}), expected)
    assert same(trained_on({**batch, "dones": batch["dones"].astype(bool)}), expected)
    flat = {name: batch[name].squeeze(-1) for name in ("rewards", "dones")}
    assert same(trained_on({**batch, **flat}), expected)


def test_actions_in_place_of_actions_exec() -> None:
    batch = transitions()
    renamed = {("actions" if name == "actions_exec" else name): value for name, value in batch.items()}
    expected = trained_on(batch)
    assert same(trained_on(renamed), expected)
    assert same(trained_on({**batch, "actions": np.zeros((ROWS, ACT))}), expected)  # the executed ones, where both are


def test_discounts_in_place_of_dones() -> None:
    batch = transitions()
    discounts = (np.float32(SETTINGS["gamma"]) * (1 - batch["dones"])).astype(np.float32)
    expected = trained_on(batch)
    assert same(trained_on({**batch, "discounts": discounts}), expected)
    assert not same(trained_on({**batch, "discounts": discounts**2}), expected)


def test_dones_cut_the_bootstrap() -> None:
    batch = {**transitions(), "dones": np.ones((ROWS, 1))}
    elsewhere = {**batch, "next_obs": batch["next_obs"] + 1}
    assert same(trained_on(batch), trained_on(elsewhere))
    alive = np.zeros((ROWS, 1))
    assert not same(trained_on({**batch, "dones": alive}), trained_on({**elsewhere, "dones": alive}))


@pytest.mark.parametrize("fields", [{}, {"use_retrace": True, "retrace_steps": 1}])
def test_without_retrace_a_sequence_is_its_first_transition(fields: dict[str, Any]) -> None:
    batch = sequences()
    names = ("obs", "actions_exec", "rewards", "dones", "next_obs")
    assert same(trained_on(batch, **fields), trained_on({name: batch[name][:, 0] for name in names}, **fields))


def test_a_trace_is_cut_where_an_episode_ended() -> None:
    batch = sequences()
    expected = trained_on(batch, **RETRACE)
    # Nothing after the end of an episode matters, whatever ended it.
    other = {name: value.copy() for name, value in batch.items()}
    for row, end in ((1, 1), (2, 2), (3, 0)):
        for name in ("obs", "actions_exec", "actions_raw", "behaviour_logp", "rewards", "next_obs"):
            other[name][row, end + 1 :] += 1
    assert same(trained_on(other, **RETRACE), expected)
    del other["ended"]  # then `dones` cut, and row 2, which was truncated, is not
    assert not same(trained_on(other, **RETRACE), expected)
    assert same(trained_on(other, **RETRACE), trained_on({**other, "ended": other["dones"]}, **RETRACE))
    # A truncated episode bootstraps at its end.
    moved = {**batch, "next_obs": batch["next_obs"].copy()}
    moved["next_obs"][2, 2] += 1
    assert not same(trained_on(moved, **RETRACE), expected)


def test_a_batch_that_is_not_what_retrace_needs() -> None:
    agent = make_agent(**RETRACE)
    with pytest.raises(
        ValueError, match=r"^batch: use_retrace needs sequences \[B, T, ·\], got obs of shape \(5, 3\)\.$"
    ):
        agent.update(transitions())
    batch = sequences()
    del batch["actions_raw"]
    with pytest.raises(ValueError, match=r"^batch: must hold 'actions_raw', got 'obs', 'actions_exec'"):
        agent.update(batch)
    with pytest.raises(ValueError, match=r"^batch: must hold 'dones', got "):
        make_agent().update({name: value for name, value in transitions().items() if name != "dones"})


def test_observations_are_normalized() -> None:
    batch = transitions()
    agents = make_agent(), make_agent(normalize_obs=True)
    normalizer = agents[1].obs_normalizer
    assert isinstance(normalizer, RunningNorm)
    normalizer.update(np.random.default_rng(0).normal(2.0, 3.0, size=(100, OBS)))
    mean, var = normalizer.mean.numpy().copy(), normalizer.var.numpy().copy()
    scaled = {name: (batch[name] - mean) / np.sqrt(var + 1e-8) for name in ("obs", "next_obs")}
    agents[0].update({**batch, **scaled})
    agents[1].update(batch)
    for name in ("policy", "q"):
        found, expected = (torch.cat([p.reshape(-1) for p in getattr(a, name).parameters()]) for a in agents)
        torch.testing.assert_close(found, expected, rtol=0, atol=2e-5)
    assert (normalizer.mean.numpy() == mean).all()  # an update takes nothing in


def test_the_public_update_takes_batches_of_any_size_whatever_step_is() -> None:
    agent, plain = make_agent(), make_agent()
    agent.set_acceleration(Acceleration(compiled=True))
    for rows in (4, 7):
        assert agent.update(transitions(rows=rows)) == plain.update(transitions(rows=rows))
    assert same(agent.state_dict(), plain.state_dict())
