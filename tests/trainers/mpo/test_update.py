from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from minerva.trainers.mpo import update as update_module
from minerva.trainers.mpo.update import Noise, noise_shapes
from tests.networks.samples import float64
from tests.trainers.mpo.small_agent import (
    ACT,
    METRICS,
    RETRACE,
    ROWS,
    SAMPLES,
    SETTINGS,
    STEPS,
    Arrays,
    agent_batch,
    assert_same_as_oracle,
    duals_of,
    make_agent,
    make_oracle,
    n_step_transitions,
    oracle_batch,
    sequences,
    state_of,
    transitions,
)

CASES: dict[str, tuple[Callable[[int], Arrays], dict[str, Any]]] = {
    "transitions": (transitions, {}),
    "n_step": (n_step_transitions, {"n_step": 3}),
    "retrace": (sequences, RETRACE),
    "penalty": (transitions, {"action_penalization": True, "epsilon_penalty": 0.02}),
    "m_steps": (transitions, {"m_steps": 3}),
    "target_tau": (transitions, {"target_tau": 0.3}),
    "period": (transitions, {"target_networks_update_period": 2}),
    "sgd, clipped": (transitions, {"optimizer_type": "sgd", "max_grad_norm": 0.1, "sgd_momentum": 0.7}),
    "sgd, not clipped": (transitions, {"optimizer_type": "sgd", "max_grad_norm": 1e3}),
    "bound of its own": (transitions, {"mstep_kl_epsilon_stddev": 0.3}),
    "lambda_init": (transitions, {"init_log_alpha_mean": None, "init_log_alpha_stddev": None, "lambda_init": 0.3}),
    "shared pass": (transitions, {"shared_critic_pass": True, "m_steps": 2, "action_penalization": True}),
    "floor": (transitions, {"optimizer_type": "sgd", "temperature_lr": 1e3, "lambda_lr": 1e3, "max_grad_norm": 10.0}),
    "everything": (sequences, {
        **RETRACE, "action_penalization": True, "m_steps": 2, "target_networks_update_period": 2, "max_grad_norm": 0.05,
        "mstep_kl_epsilon_stddev": 0.001,
    }),
}  # fmt: skip


@pytest.mark.formula(
    "minerva.trainers.mpo.update",
    (
        r"D_{\mu,j} = \mathbb{E}_b\, \mathrm{KL}\left( \mathcal{N}(\mu'_b, \sigma'_b) \,\|\, \mathcal{N}(\mu_b, "
        r"\sigma'_b) \right)_j"
    ),
    (
        r"D_{\sigma,j} = \mathbb{E}_b\, \mathrm{KL}\left( \mathcal{N}(\mu'_b, \sigma'_b) \,\|\, "
        r"\mathcal{N}(\mu'_b, \sigma_b) \right)_j"
    ),
    r"q_{b,i} \leftarrow q_{b,i} + q^c_{b,i}",
    r"\frac{1}{\epsilon} \mathbb{E}_b \left[ \mathrm{KL}(q_b \,\|\, u) \right]",
    r"\lVert \theta - \theta_{\mathrm{old}} \rVert_2",
    r"\theta' \leftarrow (1 - \tau)\, \theta' + \tau\, \theta",
    r"\phi' \leftarrow (1 - \tau)\, \phi' + \tau\, \phi",
    r"\theta' \leftarrow \theta, \quad \phi' \leftarrow \phi \qquad \text{where } u \bmod P = 0",
    r"V(s') = \frac{1}{S} \sum_{i=1}^{S} Q'(s', a'_i)",
    r"V(s') = \frac{1}{S} \sum_{i=1}^{S} Q'(s', a_i)",
    r"\log \frac{\pi'(a_t|s_t)}{b(a_t|s_t)} = \log \pi'(a_t|s_t) - \log b(a_t|s_t)",
    r"V(s_{t+1}) = \frac{1}{R} \sum_{i=1}^{R} Q'(s_{t+1}, a'_i)",
    r"a_i = \mu' + \sigma' \xi_i, \quad \xi_i \sim \mathcal{N}(0, I)",
    r"L_Q = \mathbb{E}\left[(Q(s, a) - y)^2\right]",
    r"L_\eta = \mathbb{E}_b[L_{\eta,b}]",
    (
        r"L_\alpha = \sum_j \alpha_{\mu,j} (\epsilon_\mu - D_{\mu,j}) + \sum_j \alpha_{\sigma,j} (\epsilon_\sigma "
        r"- D_{\sigma,j})"
    ),
    r"L_{\mathrm{dual}} = L_\eta + L_\alpha",
    r"L_{\mathrm{dual}} = L_\eta + L_\alpha + \mathbb{E}_b[L_{\eta_c,b}]",
    r"L_\mu = -\mathbb{E}_b \sum_i q_{b,i} \log \mathcal{N}(a_i; \mu, \sigma')",
    r"L_\sigma = -\mathbb{E}_b \sum_i q_{b,i} \log \mathcal{N}(a_i; \mu', \sigma)",
    r"L_\pi = L_\mu + L_\sigma + \sum_j \alpha_{\mu,j} D_{\mu,j} + \sum_j \alpha_{\sigma,j} D_{\sigma,j}",
)
@pytest.mark.parametrize("case", CASES)
def test_three_updates_equal_the_oracles(case: str) -> None:
    make_batch, fields = CASES[case]
    generator = torch.Generator().manual_seed(1)
    with float64():
        agent = make_agent(**fields)
        oracle = make_oracle(agent, **fields)
        before = state_of(agent)
        for seed in range(3):
            batch = oracle_batch(make_batch(seed), SETTINGS["gamma"])
            tensors = agent_batch(batch)
            noise = Noise(*(torch.randn(shape, generator=generator) for shape in noise_shapes(tensors, agent.config)))
            expected = oracle.update(batch, *noise)
            finite, metrics = agent.step(tensors, noise)
            assert finite
            found = update_module.named_metrics(metrics)
            assert {name: found[name] for name in METRICS} == pytest.approx(expected, rel=1e-6, abs=1e-9)
            assert_same_as_oracle(agent, oracle, atol=1e-8)
            if "clipped" in case:
                norms = np.array(list(oracle.norms.values()))
                assert len(norms) == 3 and ((norms < 0.5e3) if "not" in case else (norms > 0.1)).all()
    if case == "floor":
        assert all((dual == -18).all() for name, dual in duals_of(agent).items() if name != "penalty_temperature")
    if not fields.get("action_penalization"):
        assert duals_of(agent)["penalty_temperature"].item() == SETTINGS["temperature_init"]
    assert agent.state.q.steps.item() == agent.state.duals.steps.item() == 3
    assert agent.state.policy.steps.item() == 3 * agent.config.m_steps
    after = state_of(agent)
    assert (after["policy.average"] != 0).any() and (
        after["policy.policy_mean.bias"] != before["policy.policy_mean.bias"]
    ).all()


@pytest.mark.formula("minerva.trainers.mpo.agent", r"\gamma (1 - d)")
@pytest.mark.parametrize("case", ["transitions", "n_step", "retrace"])
def test_the_public_update_equals_the_oracles_in_float32(case: str) -> None:
    make_batch, fields = CASES[case]
    agent = make_agent(**fields)
    oracle = make_oracle(agent, **fields)
    for seed in range(3):
        batch = make_batch(seed)
        state = agent.generator.get_state()
        noise = agent.draw_noise(agent.to_batch(batch))
        agent.generator.set_state(state)
        found = agent.update(batch)
        expected = oracle.update(oracle_batch(batch, SETTINGS["gamma"]), *(part.double() for part in noise))
        assert found is not None
        assert {name for name in found if not name.startswith("health/")} == METRICS
        assert {name: found[name] for name in METRICS} == pytest.approx(expected, rel=2e-4, abs=1e-5)
    assert_same_as_oracle(agent, oracle, atol=5e-5)


def test_noise_is_standard_normal_of_the_right_shape() -> None:
    agent = make_agent(**RETRACE)
    e_step, critic = agent.draw_noise(agent.to_batch(sequences()))
    assert e_step.shape == (ROWS, SAMPLES, ACT) and critic.shape == (ROWS, STEPS, 3, ACT)
    agent = make_agent(action_samples=50)
    e_step, critic = agent.draw_noise(agent.to_batch(transitions(rows=200)))
    assert e_step.shape == critic.shape == (200, 50, ACT)
    for part in (e_step, critic):
        assert part.mean().item() == pytest.approx(0, abs=0.03) and part.std().item() == pytest.approx(1, abs=0.02)
    assert abs((e_step * critic).mean().item()) < 0.03


def test_health_beside_the_metrics() -> None:
    agent = make_agent()
    metrics = agent.update(transitions())
    assert metrics is not None
    assert {name for name in metrics if name not in METRICS} == {
        "health/kl_mean_ratio", "health/kl_std_ratio", "health/ess", "health/dual_saturation", "health/skipped",
        "health/alpha_mean_0", "health/alpha_mean_1", "health/alpha_std_0", "health/alpha_std_1",
    }  # fmt: skip
    alphas = nn.functional.softplus(agent.log_alpha_mean) + 1e-8
    assert [metrics[f"health/alpha_mean_{j}"] for j in range(ACT)] == pytest.approx(alphas.tolist())
    assert 1 < metrics["health/ess"] < SAMPLES
    assert metrics["lambda"] == metrics["alpha_mean"] and metrics["health/dual_saturation"] == 0


def test_no_gradient_is_left_behind() -> None:
    agent = make_agent()
    agent.update(transitions())
    assert all(parameter.grad is None for parameter in agent.parameters())
