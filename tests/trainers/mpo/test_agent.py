from __future__ import annotations

import copy
import math
import os
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.distributions import Independent, Normal

from minerva.networks.action_critic import Critic as NetworksCritic
from minerva.networks.diagonal_gaussian import DiagonalGaussianPolicy as NetworksPolicy
from minerva.trainers.accelerate import compiler_available
from minerva.trainers.health import warn_of_skipped
from minerva.trainers.mpo import update as update_module
from minerva.trainers.mpo.agent import Actor, Critic, DiagonalGaussianPolicy, MPOAgent
from minerva.trainers.mpo.config import MPOConfig
from minerva.trainers.mpo.update import Batch, Noise, SequenceBatch, make_step, noise_shapes
from minerva.utils.running_norm import RunningNorm
from tests.trainers.mpo.oracle_mpo_update import Oracle

OBS, ACT, ROWS, SAMPLES, STEPS = 3, 2, 5, 6, 4
LOW, HIGH = np.array([-0.75, -0.5]), np.array([0.5, 1.0])
NETWORKS = ("policy", "policy_target", "q", "q_target")
METRICS = {
    "loss/q", "loss/policy", "loss/dual_eta", "loss/dual", "kl/q_pi", "kl/mean", "kl/std", "eta", "alpha_mean",
    "alpha_std", "lambda", "q/min", "q/max", "pi/std_min", "pi/std_max", "entropy", "train/param_delta",
}  # fmt: skip

Arrays = dict[str, NDArray[Any]]

# Far from the defaults, all rates different, and multipliers that matter.
SETTINGS: dict[str, Any] = {
    "policy_lr": 0.02, "q_lr": 0.03, "temperature_lr": 0.05, "lambda_lr": 0.04, "gamma": 0.9, "kl_epsilon": 0.2,
    "mstep_kl_epsilon": 0.03, "temperature_init": 0.2, "init_log_alpha_mean": 0.5, "init_log_alpha_stddev": -0.5,
    "action_samples": SAMPLES,
}  # fmt: skip
RETRACE: dict[str, Any] = {
    "use_retrace": True, "retrace_steps": STEPS, "retrace_mc_actions": 3, "retrace_lambda": 0.8,
}  # fmt: skip


@contextmanager
def default_dtype(dtype: torch.dtype) -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def make_agent(seed: int = 0, **fields: Any) -> MPOAgent:
    torch.manual_seed(seed)
    agent = MPOAgent(OBS, ACT, LOW, HIGH, "cpu", (8, 5), (7, 6), **{**SETTINGS, **fields})
    with torch.no_grad():
        # Away from the start, and targets that differ: every part of the networks then matters.
        for name in NETWORKS:
            for parameter in getattr(agent, name).parameters():
                parameter.add_(torch.randn(parameter.shape), alpha=0.2)
    return agent


def make_oracle(agent: MPOAgent, **fields: Any) -> Oracle:
    networks = {name: list(getattr(agent, name).parameters()) for name in NETWORKS}
    return Oracle(networks, torch.from_numpy(LOW), torch.from_numpy(HIGH), {**SETTINGS, **fields})


def transitions(seed: int = 0, rows: int = ROWS) -> Arrays:
    rng = np.random.default_rng(seed)
    return {
        "obs": rng.normal(size=(rows, OBS)),
        "actions_exec": rng.normal(size=(rows, ACT)),  # some outside the bounds
        "rewards": rng.normal(size=(rows, 1)),
        "dones": (np.arange(rows) % 3 == 1).astype(float)[:, None],
        "next_obs": rng.normal(size=(rows, OBS)),
    }


def n_step_transitions(seed: int = 0) -> Arrays:
    batch = transitions(seed)
    del batch["dones"]
    return {**batch, "discounts": np.array([0.9**3, 0.9, 0.0, 0.9**2, 0.9**3])[:, None]}


def sequences(seed: int = 0) -> Arrays:
    rng = np.random.default_rng(seed)
    dones, ended = np.zeros((ROWS, STEPS, 1)), np.zeros((ROWS, STEPS, 1))
    dones[1, 1] = dones[3, 0] = dones[4, 3] = 1
    ended[2, 2:] = ended[1, 1:] = ended[3, 0:] = ended[4, 3] = 1  # row 2 was truncated
    return {
        "obs": rng.normal(size=(ROWS, STEPS, OBS)),
        "actions_exec": rng.normal(size=(ROWS, STEPS, ACT)),
        "actions_raw": rng.normal(size=(ROWS, STEPS, ACT)),
        "behaviour_logp": rng.normal(size=(ROWS, STEPS, 1)) - 5,  # ratios on both sides of 1
        "rewards": rng.normal(size=(ROWS, STEPS, 1)),
        "dones": dones,
        "ended": ended,
        "next_obs": rng.normal(size=(ROWS, STEPS, OBS)),
    }


def oracle_batch(batch: Arrays, gamma: float) -> dict[str, Tensor]:
    tensors = {name: torch.from_numpy(value) for name, value in batch.items()}
    flat = {name: tensors[name].squeeze(-1) for name in tensors.keys() & {"rewards", "behaviour_logp", "ended"}}
    result = {**tensors, **flat, "actions": tensors["actions_exec"]}
    if "behaviour_logp" in batch:
        return {**result, "terminated": tensors["dones"].squeeze(-1)}
    discounts = tensors["discounts"] if "discounts" in batch else gamma * (1 - tensors["dones"])
    return {**result, "discounts": discounts.squeeze(-1)}


def agent_batch(batch: dict[str, Tensor]) -> Batch | SequenceBatch:
    kind = SequenceBatch if "behaviour_logp" in batch else Batch
    return kind(*(batch[name] for name in kind._fields))


def duals_of(agent: MPOAgent) -> dict[str, Tensor]:
    return {
        "temperature": agent.log_temperature,
        "alpha_mean": agent.log_alpha_mean,
        "alpha_stddev": agent.log_alpha_stddev,
        "penalty_temperature": agent.duals.penalty_temperature.parameter,
    }


def assert_same_as_oracle(agent: MPOAgent, oracle: Oracle, atol: float) -> None:
    for name in NETWORKS:
        found = torch.cat([parameter.detach().reshape(-1) for parameter in getattr(agent, name).parameters()])
        expected = torch.cat([tensor.detach().reshape(-1) for tensor in oracle.networks[name]])
        torch.testing.assert_close(found.double(), expected, rtol=0, atol=atol, msg=lambda text: f"{name}: {text}")  # noqa: B023
    for name, dual in duals_of(agent).items():
        torch.testing.assert_close(dual.detach().double(), oracle.duals[name].detach(), rtol=1e-6, atol=atol)


def state_of(agent: MPOAgent) -> dict[str, Tensor]:
    state = {name: value.clone() for name, value in agent.state_dict().items()}
    return {**state, **{name: value for name, value in agent.optimizer_state().items() if name != "skipped"}}


def same(a: dict[str, Tensor], b: dict[str, Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


# The agent


def test_networks_at_the_start() -> None:
    torch.manual_seed(0)
    agent = MPOAgent(OBS, ACT, LOW, HIGH, "cpu", [8, 5], [7])
    assert agent.config.policy_layer_sizes == (8, 5) and agent.config.critic_layer_sizes == (7,)
    assert Critic is NetworksCritic and DiagonalGaussianPolicy is NetworksPolicy
    assert next(agent.policy.encoder.parameters()).shape == (8, OBS)
    assert next(agent.q.encoder.parameters()).shape == (7, OBS + ACT)
    for network in (agent.policy, agent.q):
        np.testing.assert_array_equal(network.action_low, LOW)
        np.testing.assert_array_equal(network.action_high, HIGH)
    for online, target in ((agent.policy, agent.policy_target), (agent.q, agent.q_target)):
        assert same(online.state_dict(), target.state_dict())
        assert all(parameter.requires_grad for parameter in online.parameters())
        assert not any(parameter.requires_grad for parameter in target.parameters())
        assert next(online.parameters()).data_ptr() != next(target.parameters()).data_ptr()
    assert isinstance(agent.obs_normalizer, nn.Identity)


def test_duals_at_the_start() -> None:
    agent = MPOAgent(OBS, ACT, LOW, HIGH)
    # The parameters, before the softplus.
    assert agent.log_temperature.item() == 1.0
    assert agent.log_alpha_mean.tolist() == [10.0] * ACT and agent.log_alpha_stddev.tolist() == [1000.0] * ACT
    agent = MPOAgent(
        OBS,
        ACT,
        LOW,
        HIGH,
        temperature_init=-3.0,
        lambda_init=0.7,
        init_log_alpha_mean=None,
        init_log_alpha_stddev=None,
    )
    assert agent.log_temperature.item() == -3.0
    for parameter in (agent.log_alpha_mean, agent.log_alpha_stddev):
        assert nn.functional.softplus(parameter).tolist() == pytest.approx([0.7] * ACT, rel=1e-6)
    agent = MPOAgent(OBS, ACT, LOW, HIGH, temperature_init=-50.0, lambda_init=1e-12, init_log_alpha_mean=None)
    assert agent.log_temperature.item() == -18.0 and agent.log_alpha_mean.tolist() == [-18.0] * ACT


def test_settings_come_from_a_config_and_from_fields_on_top_of_it() -> None:
    config = MPOConfig(gamma=0.5, policy_layer_sizes=(4,))
    agent = MPOAgent(OBS, ACT, -1.0, 1.0, config=config, q_lr=0.1)
    assert (agent.config.gamma, agent.config.q_lr, agent.config.policy_layer_sizes) == (0.5, 0.1, (4,))
    with pytest.raises(ValueError, match=r"^gama: not a setting of MPOConfig\. Did you mean gamma"):
        MPOAgent(OBS, ACT, -1.0, 1.0, gama=0.9)


# The update


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


@pytest.mark.formula("minerva.networks.duals", r"x \leftarrow \max(x, -18)")
@pytest.mark.formula(
    "minerva.trainers.mpo.update.MPOUpdate.__call__",
    (
        r"D_{\mu,j} = \mathbb{E}_b\, \mathrm{KL}\left( \mathcal{N}(\mu'_b, \sigma'_b) \,\|\, \mathcal{N}(\mu_b, "
        r"\sigma'_b) \right)_j"
    ),
    (
        r"D_{\sigma,j} = \mathbb{E}_b\, \mathrm{KL}\left( \mathcal{N}(\mu'_b, \sigma'_b) \,\|\, "
        r"\mathcal{N}(\mu'_b, \sigma_b) \right)_j"
    ),
)
@pytest.mark.formula(
    "minerva.trainers.mpo.update.MPOUpdate._policy_loss",
    (
        r"D_{\mu,j} = \mathbb{E}_b\, \mathrm{KL}\left( \mathcal{N}(\mu'_b, \sigma'_b) \,\|\, \mathcal{N}(\mu_b, "
        r"\sigma'_b) \right)_j"
    ),
    (
        r"D_{\sigma,j} = \mathbb{E}_b\, \mathrm{KL}\left( \mathcal{N}(\mu'_b, \sigma'_b) \,\|\, "
        r"\mathcal{N}(\mu'_b, \sigma_b) \right)_j"
    ),
)
@pytest.mark.formula(
    "minerva.trainers.mpo.update",
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
    with default_dtype(torch.float64):
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
            found = update_module.named_metrics(metrics, agent.config)
            assert {name: found[name] for name in METRICS} == pytest.approx(expected, rel=1e-6, abs=1e-9)
            assert_same_as_oracle(agent, oracle, atol=1e-8)
            if "clipped" in case:
                norms = np.array(list(oracle.norms.values()))
                assert len(norms) == 3 and ((norms < 0.5e3) if "not" in case else (norms > 0.1)).all()
    if case == "floor":
        assert all((dual == -18).all() for name, dual in duals_of(agent).items() if name != "penalty_temperature")
    if not fields.get("action_penalization"):
        assert duals_of(agent)["penalty_temperature"].item() == SETTINGS["temperature_init"]
    assert agent.learned.updates.item() == 3
    after = state_of(agent)
    assert (after["policy_moments"] != 0).any() and (
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


# What a batch may look like


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


# Numbers that are not finite


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
            warn_of_skipped(count, seen)
        told += [count] if caught else []
    assert told == [3, 7, 120, 340]


# Known optima


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
    assert metrics.eta.item() == pytest.approx(eta, rel=2e-3)
    assert metrics.kl_q_pi.item() == pytest.approx(1, abs=2e-3)

    # The M-step's fit moves the mean to (fit + α old) / (1 + α), at a distance that the bound allows.
    fit = weights @ actions
    alpha_mean = np.abs(fit - mean[0]) / (std[0] * math.sqrt(2 * epsilon_mean)) - 1
    assert (alpha_mean > 1).all()
    assert metrics.alpha_mean.tolist() == pytest.approx(alpha_mean, rel=1e-2)
    assert metrics.kl_mean.tolist() == pytest.approx([epsilon_mean] * ACT, rel=1e-2)

    # The variance likewise: it becomes (fit + α old) / (1 + α), relative to the old one.
    fit = weights @ (actions - mean[0]) ** 2 / std[0] ** 2
    free = 0.5 * (1 / fit - 1 + np.log(fit))  # what the KL would be without a bound
    for j in range(ACT):
        if free[j] < epsilon_std:  # the bound is not reached; its multiplier goes to 0
            assert metrics.kl_std[j] < epsilon_std and metrics.alpha_std[j] < 0.1
            continue
        inner, outer = 1.0, float(fit[j])
        for _ in range(100):
            variance = 0.5 * (inner + outer)
            if 0.5 * (1 / variance - 1 + math.log(variance)) < epsilon_std:
                inner = variance
            else:
                outer = variance
        assert metrics.alpha_std[j].item() == pytest.approx((fit[j] - variance) / (variance - 1), rel=1e-2)
        assert metrics.kl_std[j].item() == pytest.approx(epsilon_std, rel=1e-2)
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


# Acting


def log_density(mean: Tensor, log_std: Tensor, actions: Tensor) -> Tensor:
    policy = Independent(Normal(mean.double(), log_std.double().exp()), 1)
    density: Tensor = policy.log_prob(actions.double())  # type: ignore[no-untyped-call]
    return density


@pytest.mark.parametrize("shape", [(OBS,), (1, OBS), (7, OBS)])
@pytest.mark.parametrize("deterministic", [False, True])
def test_acting(shape: tuple[int, ...], deterministic: bool) -> None:
    agent = make_agent()
    obs = np.random.default_rng(0).normal(size=shape)
    state = agent.generator.get_state()
    executed, raw, log_prob = agent.act_with_logp(obs, deterministic)
    assert all(isinstance(part, np.ndarray) and part.dtype == np.float32 for part in (executed, raw, log_prob))
    assert executed.shape == raw.shape == (*shape[:-1], ACT) and log_prob.shape == (*shape[:-1], 1)
    np.testing.assert_array_equal(executed, np.clip(raw, LOW, HIGH).astype(np.float32))
    with torch.no_grad():
        mean, log_std = agent.policy(torch.as_tensor(obs, dtype=torch.float32))
    expected = log_density(mean, log_std, torch.from_numpy(raw)).numpy()
    np.testing.assert_allclose(log_prob[..., 0], expected, rtol=1e-5, atol=1e-5)
    assert np.array_equal(raw, mean.numpy()) == deterministic

    agent.generator.set_state(state)
    assert np.array_equal(agent.act(obs, deterministic), executed)
    agent.generator.set_state(state)
    tensors = agent.act_with_logp(torch.from_numpy(obs), deterministic)  # tensors give tensors
    for tensor, array in zip(tensors, (executed, raw, log_prob), strict=True):
        assert isinstance(tensor, Tensor) and not tensor.requires_grad and np.array_equal(tensor.numpy(), array)
    again = agent.act(obs, deterministic)
    assert np.array_equal(again, executed) == deterministic


def test_actions_follow_the_policy() -> None:
    agent = make_agent()
    obs = torch.randn(1, OBS).expand(20_000, OBS)
    executed, raw, _ = agent.act_with_logp(obs)
    with torch.no_grad():
        mean, log_std = agent.policy(obs[:1])
    torch.testing.assert_close(raw.mean(0), mean[0], atol=0.05, rtol=0)
    torch.testing.assert_close(raw.std(0), log_std[0].exp(), atol=0, rtol=0.03)
    assert ((executed >= torch.from_numpy(LOW)) & (executed <= torch.from_numpy(HIGH))).all()
    assert (raw != executed).any()


def test_choosing_with_another_generator_leaves_the_agents_own_alone() -> None:
    agent = make_agent()
    obs, state = torch.randn(4, OBS), agent.generator.get_state()
    chosen = agent.choose(obs, deterministic=False, generator=torch.Generator().manual_seed(3))
    agent.generator.manual_seed(3)
    assert torch.equal(agent.act(obs), chosen)
    agent.generator.set_state(state)
    assert torch.equal(agent.choose(obs, deterministic=True), agent.act(obs, deterministic=True))
    assert torch.equal(agent.generator.get_state(), state)


@pytest.mark.formula(
    "minerva.trainers.mpo.agent",
    r"\log b(a) = \sum_j \left( -\tfrac12 \xi_j^2 - \log \sigma_j \right) - \tfrac{A}{2} \log 2\pi",
    r"a = \mu + \sigma \xi, \quad \xi \sim \mathcal{N}(0, I)",
)
@pytest.mark.parametrize("normalize_obs", [False, True])
def test_the_actor_equals_the_policy_before_and_after_an_update(normalize_obs: bool) -> None:
    agent = make_agent(normalize_obs=normalize_obs)
    if isinstance(agent.obs_normalizer, RunningNorm):
        agent.obs_normalizer.update(np.random.default_rng(1).normal(1.0, 2.0, size=(50, OBS)))
    actor = Actor(agent, torch.Generator().manual_seed(7))
    noise = torch.Generator().manual_seed(7)
    obs = np.random.default_rng(0).normal(size=(6, OBS)).astype(np.float32)
    means = []
    for seed in range(3):
        raw, log_probs = actor(obs)
        assert raw.dtype == log_probs.dtype == np.float32 and raw.shape == (6, ACT) and log_probs.shape == (6,)
        with torch.no_grad():
            mean, log_std = agent.policy(agent.prepared(torch.from_numpy(obs)))
            expected = mean + log_std.exp() * torch.randn((6, ACT), generator=noise)
        np.testing.assert_allclose(raw, expected, rtol=1e-5, atol=1e-5)
        expected = log_density(mean, log_std, torch.from_numpy(raw))
        np.testing.assert_allclose(log_probs, expected.numpy(), rtol=1e-4, atol=1e-4)
        means.append(mean)
        assert agent.update(transitions(seed)) is not None
        actor.refresh()
    assert (means[0] != means[1]).all() and (means[1] != means[2]).all()


@pytest.mark.formula(
    "minerva.trainers.mpo.agent",
    r"\log b(a) = \sum_j \left( -\tfrac12 \xi_j^2 - \log \sigma_j \right) - \tfrac{A}{2} \log 2\pi",
    r"a = \mu + \sigma \xi, \quad \xi \sim \mathcal{N}(0, I)",
)
def test_the_actors_log_std_is_clamped_and_bad_outputs_become_0() -> None:
    agent = make_agent()
    actor = Actor(agent, torch.Generator().manual_seed(7))
    with torch.no_grad():
        agent.policy.policy_logstd.bias.copy_(torch.tensor([1e4, math.inf]))
        agent.policy.policy_mean.bias.copy_(torch.tensor([math.nan, -math.inf]))
    raw, log_probs = actor(np.zeros((5, OBS), np.float32))
    noise = torch.randn((5, ACT), generator=torch.Generator().manual_seed(7))
    np.testing.assert_allclose(raw, noise * torch.tensor([math.exp(2), 1.0]), rtol=1e-6)
    np.testing.assert_allclose(log_probs, -0.5 * (noise**2).sum(-1) - 2 - math.log(2 * math.pi), rtol=1e-5)


# Saving


def test_an_agent_goes_on_from_its_saved_state() -> None:
    agent, other = make_agent(), make_agent(seed=5)
    for seed in range(2):
        agent.update(transitions(seed))
    with pytest.warns(RuntimeWarning):
        agent.update({**transitions(), "rewards": np.full((ROWS, 1), math.nan)})
    other.load_state_dict(agent.state_dict())
    other.load_optimizer_state(agent.optimizer_state())
    other.generator.set_state(agent.generator.get_state())
    assert other.skipped.item() == 1 and other.learned.updates.item() == 2
    assert agent.update(transitions(2)) == other.update(transitions(2))
    assert same(state_of(agent), state_of(other))
    saved = agent.optimizer_state()
    agent.update(transitions(3))
    assert torch.equal(saved["policy_moments"], other.learned.policy_moments)  # a copy


def test_a_copy_learns_as_the_agent_does_and_apart_from_it() -> None:
    agent = make_agent(target_networks_update_period=2)
    agent.update(transitions(0))
    twin = copy.deepcopy(agent)
    kept = state_of(agent)
    for seed in (1, 2):
        twin.update(transitions(seed))
    assert same(state_of(agent), kept)
    for seed in (1, 2):
        agent.update(transitions(seed))
    assert same(state_of(agent), state_of(twin))
    obs = np.zeros((2, OBS))
    assert np.array_equal(agent.act(obs, deterministic=True), twin.act(obs, deterministic=True))


# Compiled and captured


def check_accelerated(agent: MPOAgent, plain: MPOAgent, compiled: bool, captured: bool) -> None:
    step = make_step(agent.compute, agent.learned, agent.skipped, Batch, compiled, captured)
    for seed in range(5):
        batch = plain.to_batch(transitions(seed))
        noise = plain.draw_noise(batch)
        if seed == 3:  # this one is skipped, by both
            batch.rewards[1] = math.nan
        expected_finite, expected = plain.step(batch, noise)
        finite, metrics = step(*batch, *noise)
        assert bool(finite) == bool(expected_finite) == (seed != 3)
        if finite:
            torch.testing.assert_close(tuple(metrics), tuple(expected), rtol=1e-3, atol=1e-5)
        torch.testing.assert_close(tuple(agent.learned), tuple(plain.learned), rtol=1e-4, atol=2e-5)
    assert agent.learned.updates.item() == 4 and agent.skipped.item() == 1


@pytest.mark.skipif(
    not compiler_available() and not os.environ.get("CI"), reason="no C++ compiler is installed (Debian: g++)"
)
def test_a_compiled_update_equals_the_plain_one() -> None:
    # Slow: about half a minute of compiling.
    fields = {"action_penalization": True, "target_networks_update_period": 2}
    check_accelerated(make_agent(**fields), make_agent(**fields), compiled=True, captured=False)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="graphs are captured on a GPU")
def test_a_captured_update_equals_the_plain_one() -> None:
    agents = []
    for _ in range(2):
        agent = MPOAgent(OBS, ACT, LOW, HIGH, "cuda", (8, 5), (7, 6), **SETTINGS)
        with torch.no_grad():
            for vector, other in zip(agent.learned, make_agent().learned, strict=True):
                vector.copy_(other)
        agents.append(agent)
    check_accelerated(agents[0], agents[1], compiled=False, captured=True)
    actor = Actor(agents[0], torch.Generator().manual_seed(7))
    obs = np.zeros((2, OBS), np.float32)
    before, _ = actor(obs)
    agents[0].update(transitions(9))
    actor.refresh()
    noise = torch.randn((2, ACT), generator=torch.Generator().manual_seed(7))
    with torch.no_grad():
        mean, log_std = (part.cpu() for part in agents[0].policy(torch.zeros(2, OBS, device="cuda")))
    fresh = Actor(agents[0], torch.Generator().manual_seed(7))
    np.testing.assert_allclose(fresh(obs)[0], mean + log_std.exp() * noise, rtol=1e-4, atol=1e-4)
    assert (actor(obs)[0] != before).all()
