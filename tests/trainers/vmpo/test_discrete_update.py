"""The update for discrete actions: against an oracle, what has no influence, what is not finite, known optima."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import Space, spaces

from minerva.trainers.vmpo.agent import VMPOAgent
from tests.networks.samples import float64
from tests.trainers.ppo.small_run import same
from tests.trainers.vmpo import oracle_discrete
from tests.trainers.vmpo.against_oracle import assert_same_as_oracle, oracle_state
from tests.trainers.vmpo.small_agent import OBS, learned, make_discrete_agent, make_discrete_data

CHOICE, CHOICES, SWITCHES = spaces.Discrete(3, start=5), spaces.MultiDiscrete([3, 2]), spaces.MultiBinary(2)
VARIANTS: list[tuple[Space[Any], bool, dict[str, Any]]] = [
    (CHOICE, False, {}),
    (CHOICE, False, {"control_variate": True, "topk_fraction": 0.7}),
    (CHOICE, True, {"control_variate": True, "shared_encoder": True}),
    (CHOICES, False, {"ppo_like_backbone": True, "topk_fraction": 1.0, "control_variate": True}),
    (CHOICE, True, {"optimizer_type": "sgd", "max_grad_norm": 0.05, "normalize_advantages": False}),
]


@pytest.mark.formula(
    "minerva.trainers.vmpo.update",
    r"\log \pi(a_t|s_t) = \log \pi(u_t|s_t) - \log \left| \frac{\partial a_t}{\partial u_t} \right|",
    r"D_k = \mathbb{E}[D_{k,t} \mid \bar{w}_t > 0]",
    r"L_n = \mathbb{E}[n_t]",
    r"L = L_{\mathrm{NLL}} - L_n + \sum_k \alpha_k D_k + L_V",
    r"L_\alpha = \sum_k \alpha_k (\epsilon_k - D_k)",
)
@pytest.mark.formula(
    "minerva.networks.heads",
    r"H(\pi'_t, \pi_t) = H(\pi'_t) + \mathrm{KL}(\pi'_t \,\|\, \pi_t)",
    r"D_t = \mathrm{KL}(\pi'_t \,\|\, \pi_t)",
)
@pytest.mark.parametrize("optional", [False, True])
@pytest.mark.parametrize(("space", "masks", "variant"), VARIANTS)
def test_whole_updates_against_the_oracle(
    space: Space[Any], masks: bool, variant: dict[str, Any], optional: bool
) -> None:
    fields: dict[str, Any] = {
        "m_steps": 2, "policy_lr": 0.02, "value_lr": 0.03, "temperature_lr": 0.05, "alpha_lr": 0.04,
        "temperature_init": 0.8, "epsilon_eta": 0.2, "epsilon_mu": 0.02, "epsilon_sigma": 1e9, **variant,
    }  # fmt: skip
    with float64():
        agent = make_discrete_agent(space, masks, **fields)
        batches = [make_discrete_data(agent, rows=10, seed=seed, optional=optional) for seed in range(2)]
        state = oracle_state(agent, fields)
        for batch in batches:  # the second one finds moments that are there
            metrics = agent.update(batch)
            arrays = {name: value.numpy() for name, value in batch.items()}
            if masks:
                arrays["masks"], arrays["obs"] = arrays["obs"][:, OBS:], arrays["obs"][:, :OBS]
            for name in ("restarting_weights", "importance_weights"):
                arrays.setdefault(name, np.ones((10, 1)))
            expected = oracle_discrete.update(state, arrays, [[0, 1, 2], [3, 4]][: batch["actions"].shape[1]])
            assert metrics is not None
            for name, value in expected.items():
                assert metrics[name] == pytest.approx(value, rel=1e-5, abs=1e-7), name
        assert_same_as_oracle(agent, state)


def test_metrics_have_one_divergence_and_one_multiplier() -> None:
    agent = make_discrete_agent(CHOICE)
    metrics = agent.update(make_discrete_data(agent))
    assert metrics is not None
    names = {
        "loss": "total value policy policy_weighted_nll policy_noise policy_kl_pen alpha",
        "kl": "policy policy_sel",
        "vmpo": "alpha dual_loss epsilon_eta temperature_raw adv_std_over_temperature selected_frac threshold ess "
        "restarting_frac importance_mean",
        "train": "entropy param_delta",
        "adv": "raw_mean raw_std",
        "returns": "raw_mean raw_std",
        "value": "explained_var pred_mean pred_std",
        "health": "kl_ratio dual_saturation",
    }
    assert metrics.keys() == {f"{group}/{name}" for group, text in names.items() for name in text.split()}
    assert all(type(value) is float and math.isfinite(value) for value in metrics.values())


def test_each_kind_of_agent_has_its_own_multipliers() -> None:
    agent = make_discrete_agent(CHOICE)
    assert torch.nn.functional.softplus(agent.log_alpha).item() == pytest.approx(1.0)
    for name in ("log_alpha_mu", "log_alpha_sigma"):
        with pytest.raises(AttributeError, match=f"'VMPOAgent' object has no attribute '{name}'"):
            getattr(agent, name)
    with pytest.raises(AttributeError, match="'VMPOAgent' object has no attribute 'log_alpha'"):
        VMPOAgent(2, 1).log_alpha  # noqa: B018


# What has no influence, and what is not finite


@pytest.mark.parametrize("masks", [False, True])
@pytest.mark.parametrize("garbage", [1e9, -1e30, math.nan, math.inf])
def test_restarting_rows_have_no_influence(garbage: float, masks: bool) -> None:
    results = []
    for value in (0.0, garbage):
        agent = make_discrete_agent(CHOICE, masks, m_steps=2, control_variate=True)
        batch = make_discrete_data(agent)
        rows = batch["restarting_weights"][:, 0] == 0
        assert rows.sum() == 3
        for name, part in batch.items():
            if name != "restarting_weights":
                part[rows] = value
        results.append((agent.update(batch), learned(agent)))
    assert results[0][0] == results[1][0] is not None
    assert same(results[0][1], results[1][1])


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("name", ["obs", "actions", "old_logits", "returns", "advantages", "importance_weights"])
def test_a_bad_number_leaves_everything_as_it_was_and_learning_goes_on(name: str, bad: float) -> None:
    agents = [make_discrete_agent(CHOICE, masks=True, m_steps=2) for _ in range(2)]
    good = make_discrete_data(agents[0])
    for agent in agents:
        agent.update(good)
    before = learned(agents[0])
    poisoned = {key: value.clone() for key, value in good.items()}
    poisoned[name][4, 0] = bad
    with pytest.warns(RuntimeWarning, match=r"not finite and was skipped \(1 so far\)"):
        assert agents[0].update(poisoned) is None
    assert same(learned(agents[0]), before) and agents[0].skipped == 1
    assert agents[0].update(good) == agents[1].update(good)
    assert same(learned(agents[0]), learned(agents[1]))


def test_a_mask_that_forbids_what_the_old_policy_might_have_done_leaves_everything_as_it_was() -> None:
    agent = make_discrete_agent(CHOICE, masks=True)
    batch = make_discrete_data(agent)
    before = learned(agent)
    batch["old_logits"][:] = 0.0  # possible then, forbidden now: an infinite divergence
    with pytest.warns(RuntimeWarning, match="skipped"):
        assert agent.update(batch) is None
    assert same(learned(agent), before)


# Mistakes


@pytest.mark.parametrize(
    ("space", "action", "message"),
    [
        (CHOICE, 3.0, r"batch: actions must be whole numbers from 0 on, below \[3\] in each entry; got 3"),
        (CHOICE, -1.0, r"below \[3\] in each entry; got -1"),
        (CHOICE, 0.5, r"below \[3\] in each entry; got 0.5"),
        (CHOICES, 2.0, r"below \[3, 2\] in each entry; got 2"),
        (SWITCHES, 2.0, r"below \[2, 2\] in each entry; got 2"),
    ],
)
def test_what_is_no_choice_is_an_error(space: Space[Any], action: float, message: str) -> None:
    agent = make_discrete_agent(space)
    batch = make_discrete_data(agent)
    batch["actions"][0, -1] = action
    with pytest.raises(ValueError, match=message):
        agent.update(batch)


def test_a_batch_of_the_other_kind_is_an_error() -> None:
    agent = make_discrete_agent(CHOICE)
    batch = make_discrete_data(agent)
    with pytest.raises(ValueError, match="batch: must hold old_logits as well; got obs, actions, returns"):
        agent.update({name: part for name, part in batch.items() if name != "old_logits"})


# Known optima


def bandit(**fields: Any) -> VMPOAgent:
    torch.manual_seed(0)
    sizes = {"policy_layer_sizes": (8,), "value_layer_sizes": (8,), "ppo_like_backbone": True}
    return VMPOAgent(1, 1, action_space=spaces.Discrete(4), **{**sizes, **fields})


def test_the_best_arm_of_a_bandit_is_found_inside_the_bound() -> None:
    agent = bandit(policy_lr=4e-3, value_lr=3e-2, m_steps=40, alpha_lr=0.1, temperature_lr=0.05)
    pay = torch.tensor([0.0, 0.5, 1.0, 0.8])
    obs, generator = torch.zeros(256, 1), torch.Generator().manual_seed(0)
    log: list[dict[str, float]] = []
    for _ in range(16):
        actions, values, logits = agent.act(obs, generator=generator)
        rewards = pay[actions.long()]
        metrics = agent.update(
            {"obs": obs, "actions": actions, "old_logits": logits, "returns": rewards, "advantages": rewards - values}
        )
        assert metrics is not None
        log.append(metrics)
    action, _, logits = agent.act(obs[:1], deterministic=True)
    assert action.item() == 2 and logits.softmax(-1)[0, 2] > 0.9
    ratios = np.array([metrics["health/kl_ratio"] for metrics in log])
    assert ratios[2:].max() < 1.3  # the multiplier takes two updates to find its size
    assert 0.6 < ratios[3:12].mean() < 1.1  # as long as it holds the policy back, the bound is tight
    assert log[-1]["vmpo/alpha"] < 0.2 < 2 < log[4]["vmpo/alpha"]  # at the optimum nothing has to


def test_the_multiplier_converges_to_where_its_bound_is_tight() -> None:
    """One state, one batch, many M-steps: the constrained fit, whose solution is a mixture of fit and old policy."""
    epsilon = 0.02
    with float64():
        agent = bandit(policy_lr=4e-3, alpha_lr=0.03, m_steps=1000, max_grad_norm=1e9, epsilon_mu=epsilon)
        obs, generator = torch.zeros(200, 1), torch.Generator().manual_seed(0)
        actions, values, logits = agent.act(obs, generator=generator)
        advantages = actions + 0.3 * torch.randn(200, 1, generator=generator)
        metrics = agent.update(
            {"obs": obs, "actions": actions, "old_logits": logits, "returns": values, "advantages": advantages}
        )
        assert metrics is not None
        scaled = (advantages - advantages.mean())[:, 0] / advantages.std(unbiased=False)
        kept = scaled >= scaled.topk(100).values[-1]
        psi = torch.softmax(scaled[kept], 0)  # the temperature is 1
        fit = np.array([psi[actions[kept, 0] == arm].sum().item() for arm in range(4)])
        old = torch.softmax(logits[0], 0).numpy()
        # The gradient of the Lagrangian vanishes at (fit + α old) / (1 + α), and α is where KL(old ‖ that) = ε.
        low, high = 1e-6, 1e6
        for _ in range(200):
            alpha = math.sqrt(low * high)
            new = (fit + alpha * old) / (1 + alpha)
            low, high = (alpha, high) if (old * np.log(old / new)).sum() > epsilon else (low, alpha)
        assert metrics["kl/policy_sel"] == pytest.approx(epsilon, rel=1e-3)
        assert metrics["vmpo/alpha"] == pytest.approx(alpha, rel=0.01)
        np.testing.assert_allclose(torch.softmax(agent.act(obs[:1])[2][0], 0).numpy(), new, atol=1e-3)


def test_the_temperature_converges_to_where_its_bound_is_tight() -> None:
    agent = make_discrete_agent(CHOICE, temperature_lr=0.05, epsilon_eta=0.3)
    batch = make_discrete_data(agent, rows=64, optional=False)
    for _ in range(200):
        metrics = agent.update(batch)
    assert metrics is not None
    advantages = batch["advantages"][:, 0]
    scaled = (advantages - advantages.mean()) / advantages.std(unbiased=False) / metrics["vmpo/temperature_raw"]
    psi = torch.softmax(scaled.topk(32).values, 0)
    assert (psi * (psi * 32).log()).sum().item() == pytest.approx(0.3, rel=0.01)
