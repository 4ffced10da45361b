from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from minerva.trainers.vmpo.agent import VMPOAgent
from tests.networks.samples import float64
from tests.trainers.vmpo.small_agent import HIGH, LOW, make_agent, make_data


def test_a_bandit_with_quadratic_reward() -> None:
    """The optimum is found, and inside the bounds, which are tight as long as they hold the policy back."""
    torch.manual_seed(0)
    agent = VMPOAgent(
        1, 2, LOW, HIGH, policy_layer_sizes=(16,), value_layer_sizes=(16,), ppo_like_backbone=True, policy_lr=4e-3,
        value_lr=3e-2, m_steps=60, alpha_lr=0.1, temperature_lr=0.05,
    )  # fmt: skip
    low, high = torch.from_numpy(LOW), torch.from_numpy(HIGH)
    optimum = torch.tensor([1.7, 0.6])
    obs, generator = torch.zeros(256, 1), torch.Generator().manual_seed(0)
    log: list[dict[str, float]] = []
    for _ in range(17):
        actions, values, means, log_stds = agent.act(obs, generator=generator)
        rewards = -(((actions - optimum) / (high - low)) ** 2).sum(-1, keepdim=True)
        metrics = agent.update(
            {"obs": obs, "actions": actions, "old_means": means, "old_log_stds": log_stds, "returns": rewards,
             "advantages": rewards - values}
        )  # fmt: skip
        assert metrics is not None
        log.append(metrics)
    found = agent.act(obs[:1], deterministic=True)[0][0]
    assert ((found - optimum).abs() / (high - low)).max() < 0.05
    for name, moving in (("health/kl_mean_ratio", slice(3, 9)), ("health/kl_std_ratio", slice(3, 17))):
        ratios = np.array([metrics[name] for metrics in log])
        assert ratios[4:].max() < 1.1, (name, ratios)  # multipliers take a few updates to find their size
        assert 0.6 < ratios[moving].mean() < 1.1, (name, ratios)
    assert log[-1]["vmpo/alpha_mu"] < 0.1 < 1 < log[4]["vmpo/alpha_mu"]  # at the optimum nothing holds the mean


def test_the_temperature_converges_to_where_its_bound_is_tight() -> None:
    agent = make_agent(temperature_lr=0.05, epsilon_eta=0.3)
    batch = make_data(agent, rows=64, optional=False)
    for _ in range(200):
        metrics = agent.update(batch)
    assert metrics is not None
    advantages = batch["advantages"][:, 0]
    scaled = (advantages - advantages.mean()) / advantages.std(unbiased=False) / metrics["vmpo/temperature_raw"]
    psi = torch.softmax(scaled.topk(32).values, 0)
    assert (psi * (psi * 32).log()).sum().item() == pytest.approx(0.3, rel=0.01)


def test_multipliers_converge_to_where_their_bounds_are_tight() -> None:
    """One state, one batch, many M-steps: the constrained fit, whose solution is known."""
    with float64():
        agent = VMPOAgent(
            1, 1, -1.0, 1.0, policy_layer_sizes=(4,), value_layer_sizes=(4,), ppo_like_backbone=True, policy_lr=2e-3,
            alpha_lr=0.03, m_steps=1200, max_grad_norm=1e9, epsilon_sigma=0.001,
        )  # fmt: skip
        obs, generator = torch.zeros(400, 1), torch.Generator().manual_seed(0)
        actions, values, means, log_stds = agent.act(obs, generator=generator)
        metrics = agent.update(
            {"obs": obs, "actions": actions, "old_means": means, "old_log_stds": log_stds, "returns": values,
             "advantages": actions}
        )  # fmt: skip
        assert metrics is not None
        assert metrics["kl/mean_sel"] == pytest.approx(0.01, rel=1e-3)
        assert metrics["kl/std_sel"] == pytest.approx(0.001, rel=1e-3)
        _, _, mean, log_std = agent.act(obs[:1])
        # D_μ = ε_μ: the mean has moved by sqrt(2 ε) old deviations, towards larger actions.
        sigma = log_stds[0, 0].exp().item()
        assert (mean - means[0]).item() == pytest.approx(math.sqrt(0.02) * sigma, rel=1e-3)
        # And the multipliers are those of Lagrange: the gradient of the fit, over that of the divergence.
        raw = torch.atanh(actions)[:, 0]
        kept = actions[:, 0] >= actions[:, 0].topk(200).values[-1]
        psi = torch.softmax((raw.tanh() / raw.tanh().std(unbiased=False))[kept], 0)
        new_sigma = log_std.exp().item()
        fit_slope = -(psi * (raw[kept] - mean.item())).sum().item() / new_sigma**2
        alpha_mu = -fit_slope / ((mean - means[0]).item() / sigma**2)
        fit_slope = 1 - (psi * (raw[kept] - mean.item()) ** 2).sum().item() / new_sigma**2
        alpha_sigma = -fit_slope / (1 - sigma**2 / new_sigma**2)
        assert metrics["vmpo/alpha_mu"] == pytest.approx(alpha_mu, rel=0.01)
        assert metrics["vmpo/alpha_sigma"] == pytest.approx(alpha_sigma, rel=0.01)


@pytest.mark.parametrize("start", [9.0, 12.0])
def test_a_saturated_policy_comes_back_with_the_control_variate_as_without_it(start: float) -> None:
    means = []
    for control_variate in (False, True):
        torch.manual_seed(0)
        agent = VMPOAgent(
            1, 1, -1.0, 1.0, policy_layer_sizes=(8,), value_layer_sizes=(8,), ppo_like_backbone=True, policy_lr=1e-2,
            control_variate=control_variate,
        )  # fmt: skip
        with torch.no_grad():
            agent.policy.get_parameter("policy_head.bias").fill_(start)
        obs, generator = torch.zeros(64, 1), torch.Generator().manual_seed(0)
        for _ in range(150):
            actions, _, old_means, log_stds = agent.act(obs, generator=generator)
            advantages = torch.randn(64, 1, generator=generator)  # all actions are the same, and equally good
            agent.update(
                {"obs": obs, "actions": actions, "old_means": old_means, "old_log_stds": log_stds,
                 "returns": advantages, "advantages": advantages}
            )  # fmt: skip
        means.append(agent.act(obs[:1], deterministic=True)[2].item())
    assert means[0] < start - 1
    assert means[1] == pytest.approx(means[0], abs=0.1)
