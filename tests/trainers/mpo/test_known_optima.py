from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from minerva.trainers.mpo.agent import MPOAgent
from tests.trainers.mpo.small_agent import ACT, OBS, make_agent, transitions


def test_duals_converge_to_where_the_constraints_are_tight() -> None:
    # One state, one set of actions, and targets that stay: then the optimum is known.
    bound, epsilon_mean, epsilon_std = 0.3, 0.005, 0.002
    agent = make_agent(
        action_samples=12, q_lr=1e-20, policy_lr=0.003, temperature_lr=0.1, lambda_lr=0.05, temperature_init=1.0,
        init_log_alpha_mean=1.0, init_log_alpha_stddev=1.0, kl_epsilon=bound, mstep_kl_epsilon=epsilon_mean,
        mstep_kl_epsilon_stddev=epsilon_std, target_networks_update_period=1_000_000, max_grad_norm=100.0,
    )  # fmt: skip
    batch = agent.to_batch({**transitions(rows=1), "obs": np.zeros((1, OBS))})
    noise = agent.draw_noise(batch)
    for _ in range(320):
        finite, metrics = agent.step(batch, noise)
        assert finite

    # The weights that the bound allows: η by bisection.
    with torch.no_grad():
        mean, log_std = (part.double().numpy() for part in agent.policy_target(batch.obs))  # [1, A]
        std = np.exp(log_std)
        actions = (mean[:, None] + std[:, None] * noise.e_step.double().numpy())[0]  # [S, A]
        obs = batch.obs.expand(len(actions), OBS)
        values = agent.q_target(obs, torch.from_numpy(actions).float()).double().numpy()[:, 0]
    low, high = 1e-4, 10.0
    for _ in range(100):
        eta = math.sqrt(low * high)
        weights = np.exp((values - values.max()) / eta)
        weights /= weights.sum()
        tight = (weights * np.log(len(weights) * np.maximum(weights, 1e-300))).sum()
        low, high = (eta, high) if tight > bound else (low, eta)
    assert metrics["eta"].item() == pytest.approx(eta, rel=2e-3)
    assert metrics["kl/q_pi"].item() == pytest.approx(1, abs=2e-3)
    alphas = {name: metrics[f"health/alpha_{name}"] for name in ("mean", "std")}
    with torch.no_grad():
        new_mean, new_log_std = (part.double().numpy()[0] for part in agent.policy(batch.obs))
    kl_mean = (new_mean - mean[0]) ** 2 / (2 * std[0] ** 2)
    kl_std = 0.5 * np.exp(2 * (log_std[0] - new_log_std)) - 0.5 + new_log_std - log_std[0]

    # The M-step's fit moves the mean to (fit + α old) / (1 + α), at a distance that the bound allows.
    fit = weights @ actions
    alpha_mean = np.abs(fit - mean[0]) / (std[0] * math.sqrt(2 * epsilon_mean)) - 1
    assert (alpha_mean > 1).all()
    assert alphas["mean"].tolist() == pytest.approx(alpha_mean, rel=1e-2)
    assert kl_mean == pytest.approx([epsilon_mean] * ACT, rel=1e-2)
    assert metrics["kl/mean"].item() == pytest.approx(epsilon_mean, rel=1e-2)

    # The variance likewise: it becomes (fit + α old) / (1 + α), relative to the old one.
    fit = weights @ (actions - mean[0]) ** 2 / std[0] ** 2
    free = 0.5 * (1 / fit - 1 + np.log(fit))  # what the KL would be without a bound
    for j in range(ACT):
        if free[j] < epsilon_std:  # the bound is not reached; its multiplier goes to 0
            assert kl_std[j] < epsilon_std and alphas["std"][j] < 0.1
            continue
        inner, outer = 1.0, float(fit[j])
        for _ in range(100):
            variance = 0.5 * (inner + outer)
            if 0.5 * (1 / variance - 1 + math.log(variance)) < epsilon_std:
                inner = variance
            else:
                outer = variance
        assert alphas["std"][j].item() == pytest.approx((fit[j] - variance) / (variance - 1), rel=1e-2)
        assert kl_std[j] == pytest.approx(epsilon_std, rel=1e-2)
    assert (free > epsilon_std).any()


def test_a_bandit_with_a_quadratic_reward() -> None:
    torch.manual_seed(1)
    rng = np.random.default_rng(1)
    states = np.eye(2, dtype=np.float32)
    optima = np.array([[0.4, -0.6], [-0.5, 0.2]])
    # The temperature starts too high by far.
    agent = MPOAgent(
        2, 2, -2.0, 2.0, "cpu", (16,), (64,), policy_lr=0.005, q_lr=0.01, temperature_lr=0.1, lambda_lr=0.1,
        temperature_init=4.0, init_log_alpha_mean=3.0, init_log_alpha_stddev=24.0, kl_epsilon=0.2,
        mstep_kl_epsilon=0.02, mstep_kl_epsilon_stddev=0.0003, target_networks_update_period=10,
    )  # fmt: skip
    rows: list[tuple[NDArray[Any], ...]] = []
    history = []
    for _ in range(350):
        which = rng.integers(2, size=16)
        executed, _, _ = agent.act_with_logp(states[which])
        rewards = -((executed - optima[which]) ** 2).sum(-1, keepdims=True)
        rows = [*rows, *zip(states[which], executed, rewards, strict=True)][-1500:]
        obs, actions, rewards = map(np.stack, zip(*(rows[i] for i in rng.integers(len(rows), size=32)), strict=True))
        batch = {"obs": obs, "actions": actions, "rewards": rewards, "next_obs": obs, "dones": np.ones((32, 1))}
        metrics = agent.update(batch)
        assert metrics is not None
        error = np.abs(agent.act(states, deterministic=True) - optima).max()
        history.append((error, metrics["kl/q_pi"], metrics["kl/mean"] / 0.02, metrics["kl/std"] / 0.0003))
    error, kl_q, kl_mean, kl_std = np.array(history).T
    assert error[:20].mean() > 0.5 and error[-50:].mean() < 0.15
    assert kl_q[-150:].mean() == pytest.approx(1, abs=0.1)
    # Within the bounds, on average; that of the deviation, which shrinks for ever, is used.
    assert kl_mean.mean() < 1 and kl_mean[:50].mean() > 0.1
    assert kl_std.mean() < 1.1 and kl_std[-100:].mean() == pytest.approx(1, abs=0.5)
