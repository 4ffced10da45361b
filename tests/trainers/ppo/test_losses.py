from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch

from minerva.trainers.ppo.agent import Agent
from minerva.trainers.ppo.config import PPOConfig
from minerva.trainers.ppo.update import (
    Batch,
    MinibatchLosses,
    coefficients_at,
    make_batch,
    minibatch_losses,
    pad_minibatch,
)
from tests.objectives import oracle_ppo as oracle
from tests.trainers.ppo.samples import ACT, OBS, layers_of, make_agent, make_config, make_rollout, no_state

# The batch


@pytest.mark.parametrize("estimator", ["gae", "returns"])
def test_batch_of_a_rollout_against_the_oracle(estimator: str) -> None:
    agent = make_agent()
    rollout = make_rollout(agent)
    config = make_config(advantage_estimator=estimator, gamma=0.9, gae_lambda=0.8)
    batch = make_batch(agent.policy, rollout, config)
    obs = rollout.obs.double().numpy()
    values = oracle.mlp(layers_of(agent.critic), obs)[..., 0]
    rewards, terminated, truncated = (
        x.double().numpy() for x in (rollout.rewards, rollout.terminated, rollout.truncated)
    )
    if estimator == "gae":
        advantages, targets = oracle.gae(rewards, values, terminated, truncated, 0.9, 0.8)
    else:
        advantages, targets = oracle.bootstrapped_returns(rewards, values, terminated, truncated, 0.9)
    means = oracle.mlp(layers_of(agent.actor_mean), obs[:-1]).reshape(24, ACT)
    std = agent.actor_logstd[0].detach().double().exp().numpy()
    log_probs = oracle.log_prob(means, std, rollout.actions.double().numpy().reshape(24, ACT))
    for found, expected in (
        (batch.obs, obs[:-1].reshape(24, OBS)),
        (batch.actions, rollout.actions.numpy().reshape(24, ACT)),
        (batch.log_probs, log_probs),
        (batch.values, values[:-1].reshape(24)),
        (batch.advantages, advantages.reshape(24)),
        (batch.returns, targets.reshape(24)),
        (batch.weights, 1 - rollout.restarting.numpy().reshape(24)),
    ):
        assert not found.requires_grad
        np.testing.assert_allclose(found.numpy(), expected, rtol=1e-4, atol=1e-5)
    assert batch.weights.sum() == 22


# The loss


def random_batch(agent: Agent, rows: int = 30, real: int | None = None) -> Batch:
    """Float64, and far enough from the old policy and critic for every branch of the loss to be taken."""
    generator = torch.Generator().manual_seed(7)

    def draw(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    obs, actions = draw(rows, OBS), draw(rows, ACT)
    with torch.no_grad():
        params, values, _ = agent.policy.forward_sequence(obs, *no_state(rows))
        log_probs = agent.policy.head.log_prob(params, actions) + 0.4 * draw(rows)
        values = values + 0.4 * draw(rows)
    weights = (torch.rand(rows, generator=generator) < 0.8).double()
    if real is not None:
        weights = (torch.arange(rows) < real).double()
    targets = values + 0.5 * draw(rows)
    state, starts = no_state(rows)
    return Batch(obs, actions, log_probs, values, 3 * draw(rows) + 1, targets, weights, starts, state)


def losses_of(agent: Agent, batch: Batch, config: PPOConfig) -> MinibatchLosses:
    total, losses = minibatch_losses(agent.policy, batch, config, coefficients_at(1.0, config, batch.values))
    assert total is losses.total
    return losses


def oracle_losses(agent: Agent, batch: Batch, config: PPOConfig) -> oracle.Losses:
    rows = {name: x.numpy() for name, x in batch._asdict().items()}
    std = agent.actor_logstd[0].detach().exp().numpy()
    means = oracle.mlp(layers_of(agent.actor_mean), rows["obs"])
    return oracle.losses(
        oracle.Minibatch(rows["log_probs"], rows["values"], rows["advantages"], rows["returns"], rows["weights"]),
        oracle.log_prob(means, std, rows["actions"]),
        oracle.mlp(layers_of(agent.critic), rows["obs"])[:, 0],
        oracle.entropy(std),
        config.clip_ratio_at(1.0),
        config.ent_coef_at(1.0),
        config.vf_coef,
        config.norm_adv,
        config.clip_vloss,
        config.unbiased_std,
        config.clip_ratio_vf_at(1.0),
    )


VARIANTS: list[dict[str, Any]] = [
    {"ent_coef": 0.03},
    {"norm_adv": False, "clip_ratio": 0.1},
    {"clip_vloss": False, "vf_coef": 0.9, "ent_coef": 0.01},
    {"norm_adv": False, "clip_vloss": False},
    {"unbiased_std": False, "clip_ratio_vf": 0.05},
]


@pytest.mark.formula(
    "minerva.trainers.ppo.update",
    r"\log \rho = \log \pi(a|s) - \log \pi_{\mathrm{old}}(a|s)",
    r"L_{\mathrm{pg}} = \mathbb{E}[\ell_{\mathrm{pg}}]",
    r"L_V = \mathbb{E}[\ell_V]",
    r"H = \mathbb{E}[H(\pi(\cdot|s))]",
    r"L = L_{\mathrm{pg}} - c_H H + c_V L_V",
    r"\mathbb{E}[-\log \rho]",
    r"\mathbb{E}[\rho - 1 - \log \rho]",
    r"\mathbb{E}\left[ \tfrac12 (\log \rho)^2 \right]",
    r"\mathbb{E}\left[ \mathbb{1}[\,|\rho - 1| > \epsilon\,] \right]",
)
@pytest.mark.parametrize("fields", VARIANTS)
@pytest.mark.parametrize("real", [None, 1, 2, 30])
def test_loss_against_the_oracle(fields: dict[str, Any], real: int | None) -> None:
    agent, config = make_agent().double(), make_config(**fields)
    batch = random_batch(agent, real=real)
    found, expected = losses_of(agent, batch, config), oracle_losses(agent, batch, config)
    for field in dataclasses.fields(expected):
        value = getattr(found, field.name).item()
        assert value == pytest.approx(getattr(expected, field.name), rel=1e-10, abs=1e-12), field.name
    if real is None:  # the batch does reach the branches that it is for
        assert 0.2 < expected.clipfrac < 0.9


@pytest.mark.parametrize("fields", VARIANTS)
def test_gradient_of_the_loss_against_finite_differences_of_the_oracle(fields: dict[str, Any]) -> None:
    agent, config = make_agent().double(), make_config(**fields)
    batch = random_batch(agent)
    losses_of(agent, batch, config).total.backward()  # type: ignore[no-untyped-call]
    step = 1e-6
    for name, parameter in agent.named_parameters():
        assert parameter.grad is not None, name
        flat = parameter.detach().view(-1)
        for i in range(len(flat)):
            sides = []
            for shift in (step, -step):
                flat[i] += shift
                sides.append(oracle_losses(agent, batch, config).total)
                flat[i] -= shift
            slope = (sides[0] - sides[1]) / (2 * step)
            assert parameter.grad.view(-1)[i].item() == pytest.approx(slope, rel=1e-4, abs=1e-7), f"{name}[{i}]"


def test_what_is_logged_carries_no_gradient() -> None:
    agent = make_agent().double()
    losses = losses_of(agent, random_batch(agent), make_config())
    assert losses.total.requires_grad
    assert not any(part.requires_grad for part in losses[4:])


def test_a_minibatch_that_was_padded_has_the_losses_of_the_short_one() -> None:
    agent, config = make_agent().double(), make_config(rollout_steps=64, minibatch_size=32)
    short = random_batch(agent, rows=5)
    padded = pad_minibatch(short, config)
    assert len(padded.obs) == 32 and padded.weights.sum() == short.weights.sum()
    assert pad_minibatch(padded, config) is padded
    expected, found = losses_of(agent, short, config), losses_of(agent, padded, config)
    torch.testing.assert_close(tuple(found), tuple(expected), rtol=1e-5, atol=1e-6)
