from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch

from minerva.acceleration.applied import Acceleration, moments
from minerva.trainers.ppo.agent import Agent
from minerva.trainers.ppo.config import PPOConfig
from minerva.trainers.ppo.update import Updater
from tests.acceleration.marks import needs_compiler
from tests.trainers.ppo.samples import make_agent, make_config, make_rollout, run_update, weights_of
from tests.trainers.ppo.small_run import ROLLOUT, same, small_trainer, trained

COMPILED = Acceleration(compiled=True)


def make_updater(agent: Agent, config: PPOConfig, acceleration: Acceleration = COMPILED) -> Updater:
    updater = Updater(agent.policy, config)
    updater.set_acceleration(acceleration)
    return updater


def assert_the_compiled_path_is_the_plain_one(optimizer_type: str, **fields: Any) -> None:
    config = make_config(
        update_epochs=2, minibatch_size=7, ent_coef=0.01, policy_lr=0.01, optimizer_type=optimizer_type, **fields
    )
    outcomes = []
    for acceleration in (Acceleration(), COMPILED):
        agent = make_agent()
        updater = make_updater(agent, config, acceleration)
        results = [run_update(agent, make_rollout(agent, seed=seed), config, updater) for seed in (0, 1)]
        outcomes.append((weights_of(agent), moments(updater.state), results))
    (weights, learned, results), (other_weights, other_learned, other_results) = outcomes
    for name, value in weights.items():
        torch.testing.assert_close(other_weights[name], value, rtol=1e-4, atol=1e-6)
    for name, value in learned.items():
        torch.testing.assert_close(other_learned[name], value, rtol=1e-3, atol=1e-7)
    assert learned["policy.steps"].item() == 16
    for result, other in zip(results, other_results, strict=True):
        assert (result.gradient_steps, result.skipped) == (other.gradient_steps, other.skipped) == (8, 0)
        assert other.metrics == pytest.approx(result.metrics, rel=1e-3, abs=1e-6)


@pytest.mark.usefixtures("traced")
@pytest.mark.parametrize("optimizer_type", ["adam", "sgd"])
def test_the_step_that_is_compiled_agrees_with_the_plain_one(optimizer_type: str) -> None:
    assert_the_compiled_path_is_the_plain_one(optimizer_type)


@pytest.mark.usefixtures("traced")
def test_the_compiled_path_estimates_advantages_again_with_the_critic_as_it_is_then() -> None:
    assert_the_compiled_path_is_the_plain_one("adam", recompute_advantages=True, clip_vloss=False)


@needs_compiler
def test_the_compiled_step_agrees_with_the_plain_one() -> None:
    assert_the_compiled_path_is_the_plain_one("adam")


@pytest.mark.usefixtures("traced")
@pytest.mark.parametrize("poison", ["rewards", "a row"])
def test_the_step_that_is_compiled_leaves_out_what_is_not_finite(poison: str) -> None:
    agent, config = make_agent(), make_config(update_epochs=1)
    updater = make_updater(agent, config)
    run_update(agent, make_rollout(agent), config, updater)
    before, state = weights_of(agent), moments(updater.state)
    rollout = make_rollout(agent, seed=1)
    if poison == "rewards":
        rollout.rewards[:] = math.nan
    else:
        rollout.actions[0, 0] = math.inf
    result = run_update(agent, rollout, config, updater)
    if poison == "rewards":
        assert (result.gradient_steps, result.skipped) == (0, 3)
        assert same(weights_of(agent), before) and same(moments(updater.state), state)
    else:
        assert (result.gradient_steps, result.skipped) == (2, 1)
        assert all(p.isfinite().all() for p in agent.parameters())


@pytest.mark.usefixtures("traced")
@pytest.mark.parametrize("optimizer_type", ["adam", "sgd"])
def test_a_compiled_run_ends_where_a_plain_one_does(
    optimizer_type: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("minerva.acceleration.applied.compiler_available", lambda: True)
    trainers = [
        trained(
            small_trainer(compile=compile, optimizer_type=optimizer_type, minibatch_size=6, eval_episodes=0),
            ROLLOUT * 4,
            tmp_path / str(compile),
        )
        for compile in (False, True)
    ]
    plain, compiled = trainers
    assert plain.acceleration == Acceleration() and compiled.acceleration == COMPILED
    for (name, value), other in zip(plain.agent.named_parameters(), compiled.agent.parameters(), strict=True):
        torch.testing.assert_close(other, value, rtol=1e-3, atol=1e-5, msg=name)
