from __future__ import annotations

import math
import os
import warnings
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

from minerva.networks.duals import MINIMUM
from minerva.storage.rollout import RolloutBuffer
from minerva.trainers import accelerate
from minerva.trainers.accelerate import compiler_available
from minerva.trainers.vmpo.agent import VMPOAgent, make_batch
from minerva.trainers.vmpo.update import Learned
from tests.objectives import oracle_vmpo
from tests.trainers.ppo.small_run import same
from tests.trainers.vmpo.small_agent import ACT, HIGH, LOW, OBS, float64, learned, make_agent, make_data

# The update, against the oracle

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
    "minerva.trainers.vmpo.kinds",
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
        state = oracle_state(agent, {name: value for name, value in fields.items() if name != "temperature_init"})
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


def oracle_state(agent: VMPOAgent, fields: dict[str, Any]) -> oracle_vmpo.State:
    duals = {"eta": agent.log_temperature, "mu": agent.log_alpha_mu, "sigma": agent.log_alpha_sigma}
    return oracle_vmpo.State(
        {name: value.detach().numpy().copy() for name, value in agent.policy.named_parameters()},
        {name: parameter.detach().numpy().copy() for name, parameter in duals.items()},
        settings=oracle_vmpo.Settings(**fields),
    )


def assert_same_as_oracle(agent: VMPOAgent, state: oracle_vmpo.State) -> None:
    for name, parameter in agent.policy.named_parameters():
        np.testing.assert_allclose(parameter.detach().numpy(), state.networks[name], rtol=1e-5, atol=1e-6)
    found = torch.stack([agent.log_temperature, agent.log_alpha_mu, agent.log_alpha_sigma])
    np.testing.assert_allclose(found.detach().numpy(), list(state.duals.values()), rtol=1e-7)


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
        batch = make_batch(agent, rollout)
        generator = torch.Generator().manual_seed(5)
        twin = torch.Generator().manual_seed(5)
        for _ in range(2):
            metrics = agent.learn(batch, 1.0, generator, rollout)
            orders = [torch.randperm(12, generator=twin).tolist() for _ in range(3)] if minibatches > 1 else None
            arrays = {name: value.numpy() for name, value in batch.items()} | {"importance_weights": np.ones((12, 1))}
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


def make_rollout(agent: VMPOAgent, steps: int) -> RolloutBuffer:
    """Two environments, over ends of both kinds; the policy that acted is the agent's."""
    rollout = RolloutBuffer(steps, 2, OBS, ACT, torch.device("cpu"))
    torch.manual_seed(8)
    rollout.obs = torch.randn(steps + 1, 2, OBS)
    rollout.actions = agent.choose(rollout.obs[:-1].flatten(0, 1), deterministic=False).view(steps, 2, ACT)
    rollout.rewards, rollout.position = torch.randn(steps, 2), steps
    rollout.terminated[1, 0] = rollout.truncated[3, 1] = 1
    rollout.restarting[2, 0] = rollout.restarting[4, 1] = 1
    for name in ("terminated", "truncated", "restarting"):
        setattr(rollout, name, getattr(rollout, name).to(rollout.obs.dtype))
    return rollout


def test_advantages_are_not_estimated_anew_without_a_rollout() -> None:
    agent = make_agent(recompute_advantages=True)
    with pytest.raises(ValueError, match="recompute_advantages: needs the rollout that a batch was made of; got none"):
        agent.update(make_data(agent))


@pytest.mark.parametrize("fields", [{"minibatches": 4}, {"recompute_advantages": True}])
def test_what_a_memory_cannot_have(fields: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=rf"{next(iter(fields))}: must be (1|False) for a policy with a memory"):
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


@pytest.mark.formula("minerva.networks.duals", r"x \leftarrow \max(x, -18)")
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
    message = r"topk_fraction: must keep at least one of the 13 samples that do not .*got 0.07; give a larger one, or"
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


# Batches that are not finite


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


@pytest.mark.parametrize("name", ["total", "alpha", "norms"])
def test_a_bad_number_in_a_late_step_undoes_the_early_ones(name: str) -> None:
    agent = make_agent(m_steps=4)
    batch = make_data(agent)
    before, calls = learned(agent), 0
    honest = agent._steps.m_step

    def poisoned(*arguments: Any) -> Any:
        nonlocal calls
        calls += 1
        fitted, losses = honest(*arguments)
        return fitted, losses._replace(**{name: losses.total * math.nan}) if calls == 4 else losses

    agent._steps = agent._steps._replace(m_step=poisoned)
    with pytest.warns(RuntimeWarning, match="skipped"):
        assert agent.update(batch) is None
    assert calls == 4 and same(learned(agent), before)


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


# Optimizer state


def test_optimizer_state_is_taken_back() -> None:
    agent, other = make_agent(), make_agent(seed=3)
    agent.update(make_data(agent))
    other.load_state_dict(agent.state_dict())
    other.load_optimizer_state(agent.optimizer_state())
    assert same(learned(agent), learned(other))
    batch = make_data(agent, seed=4)
    agent.update(batch)
    other.update(batch)
    assert same(learned(agent), learned(other))
    other.load_optimizer_state({**agent.optimizer_state(), "skipped": 7})
    assert other.skipped == 7


def test_a_saved_optimizer_state_is_not_changed_by_what_follows() -> None:
    agent = make_agent()
    agent.update(make_data(agent))
    state = agent.optimizer_state()
    kept = {name: value.clone() for name, value in state.items() if isinstance(value, Tensor)}
    agent.update(make_data(agent, seed=1))
    assert all(torch.equal(state[name], value) for name, value in kept.items())


@pytest.mark.skipif(
    not compiler_available() and not os.environ.get("CI"), reason="no C++ compiler is installed (Debian: g++)"
)
@pytest.mark.parametrize("shared", [False, True])
def test_compiled_and_plain_updates_are_the_same_algorithm(shared: bool) -> None:
    fields: dict[str, Any] = {"m_steps": 3, "shared_encoder": shared, "policy_lr": 0.01, "alpha_lr": 0.01}
    plain, fast = make_agent(**fields), make_agent(**fields)
    fast.use_accelerated(compile_it=True, capture_it=False)
    for seed in range(3):
        batch = make_data(plain, seed=seed)
        one, other = plain.update(batch), fast.update(batch)
        assert one is not None and other is not None
        for name, value in one.items():
            assert other[name] == pytest.approx(value, rel=1e-3, abs=1e-4), name
    for name, tensor in learned(plain).items():
        torch.testing.assert_close(learned(fast)[name], tensor, rtol=1e-3, atol=1e-5, msg=name)
    before = learned(fast)
    batch["returns"][4] = 1e30
    with pytest.warns(RuntimeWarning, match="skipped"):
        assert fast.update(batch) is None
    assert same(learned(fast), before)


# Known optima


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


class OnCPU:
    """What `Captured` does, without a GPU: the same memory for what goes in and what comes out, call after call."""

    def __init__(self, function: Any, written: Any) -> None:
        self._function = function
        self._in: list[Tensor] | None = None
        self._out: Any = None

    def __call__(self, *inputs: Any) -> Any:
        leaves = accelerate._leaves(inputs)
        self._in = self._in or [leaf.clone() for leaf in leaves]
        for held, leaf in zip(self._in, leaves, strict=True):
            held.copy_(leaf)
        out = self._function(*accelerate._like(inputs, iter(self._in)))
        if self._out is None:
            self._out = accelerate._like(out, (leaf.clone() for leaf in accelerate._leaves(out)))
        for held, leaf in zip(accelerate._leaves(self._out), accelerate._leaves(out), strict=True):
            held.copy_(leaf)
        return self._out


@pytest.mark.parametrize(
    ("fields", "recompute"), [({}, False), ({"minibatches": 4}, False), ({"topk_fraction": 1.0}, True)]
)
def test_captured_steps_hand_on_what_they_should(
    fields: dict[str, Any], recompute: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("minerva.trainers.vmpo.update.Captured", OnCPU)
    fields = {"m_steps": 3, "rollout_steps": 8, "num_envs": 2, "policy_lr": 0.01, **fields}
    plain, captured = (make_agent(**fields, recompute_advantages=recompute) for _ in range(2))
    captured.use_accelerated(compile_it=False, capture_it=True)
    rollout = make_rollout(plain, 8)

    def both(batch: dict[str, Tensor], seed: int) -> None:
        made_of = rollout if recompute else None
        found = [agent.learn(batch, 0.5, torch.Generator().manual_seed(seed), made_of) for agent in (plain, captured)]
        assert found[0] == found[1] is not None and same(learned(plain), learned(captured))

    for seed in range(3):
        batch = make_batch(plain, rollout) if recompute else make_data(plain, seed=seed)
        both(batch, seed)
    before = learned(captured)
    if not recompute:
        batch["returns"][4] = 1e30  # a step that is undone, and one after it
        with pytest.warns(RuntimeWarning, match="skipped"):
            assert captured.learn(batch) is None
        assert same(learned(captured), before)
        both(make_data(plain, seed=9), 9)


@pytest.mark.parametrize("which", ["e_step", "m_step"])
def test_a_bad_number_of_an_early_captured_step_is_not_written_over(
    which: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("minerva.trainers.vmpo.update.Captured", OnCPU)
    agent = make_agent(m_steps=3, rollout_steps=8, num_envs=2, recompute_advantages=True)
    rollout, before, calls = make_rollout(agent, 8), learned(agent), 0
    honest = getattr(agent._steps, which)

    def poisoned(*arguments: Any) -> Any:
        nonlocal calls
        calls += 1
        result = honest(*arguments)
        if calls > 1:
            return result
        if which == "m_step":
            return result[0], result[1]._replace(norms=result[1].norms * math.inf)
        return result._replace(metrics={**result.metrics, "vmpo/dual_loss": torch.tensor(math.nan)})

    agent._update.steps = agent._steps = agent._steps._replace(**{which: poisoned})
    agent.use_accelerated(compile_it=False, capture_it=True)
    with pytest.warns(RuntimeWarning, match="skipped"):
        assert agent.learn(make_batch(agent, rollout), rollout=rollout) is None
    assert calls == 3 and same(learned(agent), before)


@pytest.mark.parametrize("fraction", [0.5, 1.0])
def test_no_step_asks_what_its_numbers_are(fraction: float) -> None:
    """A graph is captured without a look at the numbers in it: these tensors have none."""
    agent = make_agent(topk_fraction=fraction, control_variate=True)
    rows, (fitted, tempered) = agent._to_rows(make_data(agent)), agent._learned

    def traced(step: Any, *arguments: Any) -> Any:
        def flat(*tensors: Tensor) -> list[Tensor]:
            return accelerate._leaves((step(*accelerate._like(arguments, iter(tensors))),))

        make_fx(flat, tracing_mode="fake", _allow_non_fake_inputs=True)(*accelerate._leaves(arguments))
        return step(*arguments)

    with torch.no_grad():
        result = traced(agent._steps.e_step, tempered, rows)
        fitted, losses = traced(agent._steps.m_step, fitted, result.weighted, torch.ones(1))
        new = Learned(fitted, result.tempered)
        traced(agent._steps.close, fitted.policy, new, result.weighted, losses, torch.ones(4))
