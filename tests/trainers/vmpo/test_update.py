from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

from minerva.acceleration.applied import load_moments, moments
from minerva.acceleration.learnable import Learnable
from minerva.acceleration.tree import leaves
from minerva.networks.duals import MINIMUM
from minerva.trainers.vmpo.batch import make_batch, mask_restarts
from minerva.trainers.vmpo.update import TrainState
from tests.networks.samples import float64
from tests.objectives import oracle_vmpo
from tests.trainers.ppo.small_run import same
from tests.trainers.vmpo.against_oracle import assert_same_as_oracle, oracle_state
from tests.trainers.vmpo.small_agent import (
    HIGH,
    LOW,
    as_dict,
    learned,
    make_agent,
    make_data,
    make_discrete_agent,
    make_discrete_data,
    make_rollout,
)

# Against the oracle


VARIANTS: list[dict[str, Any]] = [
    {},
    {"optimizer_type": "sgd", "sgd_momentum": 0.7},
    {"shared_encoder": True, "normalize_advantages": False},
    {"ppo_like_backbone": True, "topk_fraction": 1.0},
    {"topk_fraction": 0.3, "max_grad_norm": 0.05, "optimizer_type": "sgd", "epsilon_mu": 0.5},
    {"control_variate": True},
    {"control_variate": True, "ppo_like_backbone": True, "topk_fraction": 0.7},
]


@pytest.mark.formula(
    "minerva.trainers.vmpo.update",
    r"\frac{\sqrt{\mathrm{Var}[\hat{A}]}}{\eta}",
    r"\log \pi(a_t|s_t) = \log \pi(u_t|s_t) - \log \left| \frac{\partial a_t}{\partial u_t} \right|",
    r"D_k = \mathbb{E}[D_{k,t} \mid \bar{w}_t > 0]",
    r"L_V = \mathbb{E}\left[ \tfrac12 (V - R)^2 \right]",
    r"L_n = \mathbb{E}[n_t]",
    r"L = L_{\mathrm{NLL}} - L_n + \sum_k \alpha_k D_k + L_V",
    r"L_\alpha = \sum_k \alpha_k (\epsilon_k - D_k)",
)
@pytest.mark.formula(
    "minerva.networks.heads",
    r"D_{\mu,t} = \sum_j D_{\mu,t,j}",
    r"D_{\sigma,t} = \sum_j D_{\sigma,t,j}",
)
@pytest.mark.parametrize("optional", [False, True])
@pytest.mark.parametrize("variant", VARIANTS)
def test_whole_updates_against_the_oracle(variant: dict[str, Any], optional: bool) -> None:
    fields: dict[str, Any] = {
        "m_steps": 2, "policy_lr": 0.02, "value_lr": 0.03, "temperature_lr": 0.05, "alpha_lr": 0.04,
        "temperature_init": 0.8, "epsilon_eta": 0.2, "epsilon_mu": 0.02, "epsilon_sigma": 0.03, **variant,
    }  # fmt: skip
    with float64():
        agent = make_agent(**fields)
        batches = [make_data(agent, rows=10, seed=seed, optional=optional) for seed in range(2)]
        state = oracle_state(agent, fields)
        assert state.networks.keys() == dict(agent.policy.named_parameters()).keys()
        for batch in batches:  # the second one finds moments that are there
            metrics = agent.update(batch)
            arrays = {name: value.numpy() for name, value in batch.items()}
            for name in ("restarting_weights", "importance_weights"):
                arrays.setdefault(name, np.ones((10, 1)))
            expected = oracle_vmpo.update(state, arrays, LOW.astype(np.float64), HIGH.astype(np.float64))
            assert metrics is not None
            for name, value in expected.items():
                assert metrics[name] == pytest.approx(value, rel=1e-5, abs=1e-7), name
        assert_same_as_oracle(agent, state)


@pytest.mark.formula("minerva.trainers.vmpo.update", r"\psi^{(m)}_t = M \psi_t")
@pytest.mark.parametrize("recompute", [False, True])
@pytest.mark.parametrize("minibatches", [1, 3])
def test_minibatches_and_advantages_estimated_anew_against_the_oracle(minibatches: int, recompute: bool) -> None:
    fields: dict[str, Any] = {
        "m_steps": 3, "minibatches": minibatches, "recompute_advantages": recompute, "policy_lr": 0.02,
        "value_lr": 0.05, "temperature_lr": 0.05, "alpha_lr": 0.04, "control_variate": True, "topk_fraction": 0.7,
    }  # fmt: skip
    with float64():
        agent = make_agent(**fields, rollout_steps=6, num_envs=2, advantage_estimator="gae", gamma=0.9, gae_lambda=0.8)
        state = oracle_state(agent, fields)
        rollout = make_rollout(agent, 6)
        batch = make_batch(agent.policy, rollout, agent.config)
        generator = torch.Generator().manual_seed(5)
        twin = torch.Generator().manual_seed(5)
        for _ in range(2):
            metrics = agent.updater.learn(batch, 1.0, generator, rollout)
            orders = [torch.randperm(12, generator=twin).tolist() for _ in range(3)] if minibatches > 1 else None
            arrays = {name: value.numpy() for name, value in as_dict(batch, agent).items()}
            obs, rewards, terminated, truncated = (
                getattr(rollout, name).numpy() for name in ("obs", "rewards", "terminated", "truncated")
            )
            episodes = oracle_vmpo.Episodes(obs, rewards, terminated, truncated, 0.9, 0.8)
            expected = oracle_vmpo.update(
                state, arrays, LOW.astype(np.float64), HIGH.astype(np.float64), orders, episodes
            )
            assert metrics is not None
            for name, value in expected.items():
                assert metrics[name] == pytest.approx(value, rel=1e-5, abs=1e-7), name
        assert_same_as_oracle(agent, state)


def test_advantages_are_not_estimated_anew_without_a_rollout() -> None:
    agent = make_agent(recompute_advantages=True)
    with pytest.raises(ValueError, match="recompute_advantages: needs the rollout that a batch was made of; got none"):
        agent.update(make_data(agent))


@pytest.mark.parametrize("fields", [{"minibatches": 4}, {"recompute_advantages": True}])
def test_what_a_memory_cannot_have(fields: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=rf"{next(iter(fields))}: must be (1|False) for a recurrent policy"):
        make_agent(lstm_units=4, **fields)


def test_minibatches_divide_the_rollout() -> None:
    with pytest.raises(ValueError, match=r"minibatches: must divide rollout_steps \* num_envs = 6 \* 2 = 12, got 5"):
        make_agent(minibatches=5, rollout_steps=6, num_envs=2)


def test_metrics_are_those_of_the_specification() -> None:
    agent = make_agent()
    metrics = agent.update(make_data(agent))
    assert metrics is not None
    names = {
        "loss": "total value policy policy_weighted_nll policy_noise policy_kl_mean_pen policy_kl_std_pen alpha",
        "kl": "mean std mean_sel std_sel",
        "vmpo": "alpha_mu alpha_sigma dual_loss epsilon_eta temperature_raw adv_std_over_temperature selected_frac "
        "threshold ess restarting_frac importance_mean",
        "train": "entropy param_delta mean_abs_action",
        "adv": "raw_mean raw_std",
        "returns": "raw_mean raw_std",
        "value": "explained_var pred_mean pred_std",
        "health": "kl_mean_ratio kl_std_ratio dual_saturation",
    }
    assert metrics.keys() == {f"{group}/{name}" for group, text in names.items() for name in text.split()}
    assert all(type(value) is float and math.isfinite(value) for value in metrics.values())
    assert metrics["health/kl_mean_ratio"] == pytest.approx(metrics["kl/mean_sel"] / 0.01, rel=1e-5)
    assert metrics["health/kl_std_ratio"] == pytest.approx(metrics["kl/std_sel"] / 0.01, rel=1e-5)
    assert metrics["health/dual_saturation"] == 0.0


def test_dual_variables_stop_at_their_floor() -> None:
    agent = make_agent(alpha_lr=1e3, temperature_lr=1e3, epsilon_mu=1e3, epsilon_sigma=1e3, epsilon_eta=1e3)
    metrics = agent.update(make_data(agent))
    assert metrics is not None and metrics["health/dual_saturation"] == 1.0
    for parameter in (agent.log_temperature, agent.log_alpha_mu, agent.log_alpha_sigma):
        assert parameter.item() == MINIMUM == -18


def test_arrays_will_do_and_the_batch_is_left_alone() -> None:
    one, other = make_agent(), make_agent()
    batch = make_data(one)
    before = {name: value.clone() for name, value in batch.items()}
    found = one.update({name: value.numpy() for name, value in batch.items()})
    assert found == other.update({name: value.squeeze(-1) for name, value in batch.items()})
    assert same(learned(one), learned(other)) and same(batch, before)


# What has no influence


@pytest.mark.parametrize("garbage", [1e9, -1e30, math.nan, math.inf])
def test_restarting_rows_have_no_influence(garbage: float) -> None:
    results = []
    for value in (0.3, garbage):
        agent = make_agent(m_steps=2)
        batch = make_data(agent)
        rows = batch["restarting_weights"][:, 0] == 0
        assert rows.sum() == 3
        for name, part in batch.items():
            if name != "restarting_weights":
                part[rows] = value
        results.append((agent.update(batch), learned(agent)))
    assert results[0][0] == results[1][0] is not None
    assert same(results[0][1], results[1][1])


def test_where_every_row_restarts_all_are_kept_with_equal_weight() -> None:
    agent = make_agent(topk_fraction=1.0)
    batch = {**make_data(agent, optional=False), "restarting_weights": torch.zeros(16, 1)}
    before = learned(agent)
    metrics = agent.update(batch)
    assert metrics is not None and metrics["vmpo/ess"] == pytest.approx(16) and metrics["loss/value"] == 0
    assert not same(learned(agent), before)
    with pytest.raises(ValueError, match="topk_fraction: must keep at least one of the 0 samples"):
        make_agent().update(batch)


def test_a_share_that_keeps_nothing_is_an_error() -> None:
    agent = make_agent(topk_fraction=0.07)
    batch = make_data(agent)  # 16 rows, 3 of which restart
    before = learned(agent)
    message = r"topk_fraction: must keep at least one of the 13 samples that do not .*got 0.07; choose a larger one, or"
    with pytest.raises(ValueError, match=message):
        agent.update(batch)
    assert same(learned(agent), before)


@pytest.mark.parametrize("scale", [0.0, 3.0])
def test_rows_that_are_not_kept_matter_to_the_critic_alone(scale: float) -> None:
    results = []
    for change in (1.0, scale):
        agent = make_agent(normalize_advantages=False)
        batch = make_data(agent, optional=False)
        low = batch["advantages"][:, 0].argsort()[:8]
        batch["actions"][low] = torch.from_numpy(LOW) + (batch["actions"][low] - torch.from_numpy(LOW)) * change / 4
        batch["old_means"][low] *= change
        agent.update(batch)
        results.append(learned(agent))
    assert same(*results)


def test_the_critics_loss_leaves_separate_policies_alone_and_the_policys_the_critic() -> None:
    agents = [make_agent() for _ in range(3)]
    batches = [make_data(agent, optional=False) for agent in agents]
    batches[1]["returns"] += 3
    batches[2]["old_means"] += 0.5
    parts = []
    for agent, batch in zip(agents, batches, strict=True):
        agent.update(batch)
        state = agent.policy.state_dict()
        parts.append([{k: v for k, v in state.items() if k.startswith(kind)} for kind in ("policy_", "value_")])
    assert same(parts[0][0], parts[1][0]) and not same(parts[0][1], parts[1][1])
    assert same(parts[0][1], parts[2][1]) and not same(parts[0][0], parts[2][0])


# As a function


@pytest.mark.parametrize("fields", [{}, {"minibatches": 4}, {"optimizer_type": "sgd", "control_variate": True}])
@pytest.mark.parametrize("discrete", [False, True])
def test_the_pure_update_changes_nothing_and_gives_the_same_again(discrete: bool, fields: dict[str, Any]) -> None:
    fields = {"m_steps": 3, "policy_lr": 0.01, **fields}
    agent = make_discrete_agent(spaces.Discrete(3), **fields) if discrete else make_agent(**fields)
    data = make_discrete_data(agent) if discrete else make_data(agent)
    agent.update(data)  # the moments are then not 0
    updater, batch = agent.updater, mask_restarts(agent._to_batch(data), agent.policy.mask_dim)
    orders = [torch.randperm(16) if "minibatches" in fields else None for _ in range(3)]
    before = learned(agent)
    kept = [leaf.clone() for leaf in leaves((batch, updater.state))]
    results = [updater.update(updater.state, batch, orders, torch.ones(1)) for _ in range(2)]
    assert same(learned(agent), before)
    assert all(map(torch.equal, leaves((batch, updater.state)), kept))
    assert all(map(torch.equal, *map(leaves, results)))
    # Whatever the modules hold meanwhile: parameters are those of the state.
    elsewhere = TrainState(*(Learnable(*(part.clone() for part in learnable)) for learnable in updater.state))
    with torch.no_grad():
        for vector in (learnable.parameters for learnable in updater.state):
            vector.add_(0.1)
    moved = updater.update(elsewhere, batch, orders, torch.ones(1))
    for one, other in zip(leaves(moved), leaves(results[0]), strict=True):
        torch.testing.assert_close(one, other)


def test_learning_writes_what_the_pure_update_computes() -> None:
    agent = make_agent(m_steps=2)
    batch = mask_restarts(agent._to_batch(make_data(agent)), 0)
    new, metrics = agent.updater.update(agent.updater.state, batch, [None, None], torch.full((1,), 0.5))
    found = agent.updater.learn(batch, lr_scale=0.5)
    assert found == {name: value.item() for name, value in metrics.items()}
    assert all(map(torch.equal, leaves(agent.updater.state), leaves(new)))
    vectors = [agent.policy, agent.alphas, agent.temperature]
    for module, learnable in zip(vectors, new, strict=True):
        assert torch.equal(torch.cat([p.reshape(-1) for p in module.parameters()]), learnable.parameters)


# What its optimizers remember


def test_moments_are_loaded() -> None:
    agent, other = make_agent(), make_agent(seed=3)
    agent.update(make_data(agent))
    other.load_state_dict(agent.state_dict())
    load_moments(other.updater.state, moments(agent.updater.state))
    assert same(learned(agent), learned(other))
    batch = make_data(agent, seed=4)
    agent.update(batch)
    other.update(batch)
    assert same(learned(agent), learned(other))


def test_saved_moments_are_not_changed_by_what_follows() -> None:
    agent = make_agent()
    agent.update(make_data(agent))
    saved = moments(agent.updater.state)
    kept = {name: value.clone() for name, value in saved.items()}
    agent.update(make_data(agent, seed=1))
    assert same(saved, kept) and not same(moments(agent.updater.state), kept)
