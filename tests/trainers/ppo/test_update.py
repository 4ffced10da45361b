from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import torch

from minerva.trainers.ppo import update as update_module
from minerva.trainers.ppo.agent import Agent
from minerva.trainers.ppo.config import PPOConfig
from minerva.trainers.ppo.update import (
    Batch,
    Coefficients,
    MinibatchLosses,
    filled_up,
    make_batch,
    make_gradient_step,
    make_optimizer,
    minibatch_losses,
    update,
)
from minerva.utils.running_norm import RunningNorm
from tests.objectives import oracle_ppo as oracle
from tests.trainers.ppo.samples import (
    ACT,
    OBS,
    layers_of,
    make_agent,
    make_config,
    make_rollout,
    run_update,
    same,
    weights_of,
)


def no_memory(count: int) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.zeros(count, 0), torch.zeros(count)


@contextmanager
def recorded(
    monkeypatch: pytest.MonkeyPatch,
    change: Callable[[int, MinibatchLosses], MinibatchLosses] = lambda i, losses: losses,
) -> Iterator[list[tuple[Batch, MinibatchLosses]]]:
    """Watch the minibatches of an update, and change what comes out of the i-th."""
    seen: list[tuple[Batch, MinibatchLosses]] = []

    def watch(agent: Agent, batch: Batch, config: PPOConfig, coefficients: Coefficients) -> MinibatchLosses:
        losses = change(len(seen), minibatch_losses(agent, batch, config, coefficients))
        seen.append((batch, losses))
        return losses

    with monkeypatch.context() as patch:
        patch.setattr(update_module, "minibatch_losses", watch)
        yield seen


# The optimizer


def test_optimizers() -> None:
    agent = make_agent()
    adam = make_optimizer(agent, make_config(policy_lr=0.01))
    assert isinstance(adam, torch.optim.Adam)
    assert (adam.defaults["lr"], adam.defaults["eps"], adam.defaults["betas"]) == (0.01, 1e-5, (0.9, 0.999))
    sgd = make_optimizer(agent, make_config(optimizer_type="sgd", sgd_momentum=0.7, policy_lr=0.1))
    assert isinstance(sgd, torch.optim.SGD)
    assert (sgd.defaults["lr"], sgd.defaults["momentum"]) == (0.1, 0.7)
    for optimizer in (adam, sgd):
        held = {id(p) for group in optimizer.param_groups for p in group["params"]}
        assert held == {id(p) for p in agent.parameters()}
    with pytest.raises(ValueError, match=r"optimizer_type: must be 'adam' or 'sgd', got 'rmsprop'"):
        make_config(optimizer_type="rmsprop")


# The batch


@pytest.mark.parametrize("estimator", ["gae", "returns"])
def test_batch_of_a_rollout_against_the_oracle(estimator: str) -> None:
    agent = make_agent()
    rollout = make_rollout(agent)
    config = make_config(advantage_estimator=estimator, gamma=0.9, gae_lambda=0.8)
    batch = make_batch(agent, rollout, config)
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
        parameters, values = agent.describe(obs, *no_memory(rows))
        log_probs = agent.score(parameters, actions)[0] + 0.4 * draw(rows)
        values = values + 0.4 * draw(rows)
    weights = (torch.rand(rows, generator=generator) < 0.8).double()
    if real is not None:
        weights = (torch.arange(rows) < real).double()
    targets = values + 0.5 * draw(rows)
    state, starts = no_memory(rows)
    return Batch(obs, actions, log_probs, values, 3 * draw(rows) + 1, targets, weights, starts, state)


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
    found, expected = minibatch_losses(agent, batch, config), oracle_losses(agent, batch, config)
    for field in dataclasses.fields(expected):
        value = getattr(found, field.name).item()
        assert value == pytest.approx(getattr(expected, field.name), rel=1e-10, abs=1e-12), field.name
    if real is None:  # the batch does reach the branches that it is for
        assert 0.2 < expected.clipfrac < 0.9


@pytest.mark.parametrize("fields", VARIANTS)
def test_gradient_of_the_loss_against_finite_differences_of_the_oracle(fields: dict[str, Any]) -> None:
    agent, config = make_agent().double(), make_config(**fields)
    batch = random_batch(agent)
    minibatch_losses(agent, batch, config).total.backward()  # type: ignore[no-untyped-call]
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
    losses = minibatch_losses(agent, random_batch(agent), make_config())
    assert losses.total.requires_grad
    assert not any(part.requires_grad for part in losses[4:])


# The update


@pytest.mark.parametrize("max_grad_norm", [0.05, 1e6])
def test_one_step_goes_down_the_gradient_clipped_to_its_norm(max_grad_norm: float) -> None:
    agent = make_agent()
    config = make_config(
        minibatch_size=24, update_epochs=1, optimizer_type="sgd", policy_lr=0.1, max_grad_norm=max_grad_norm
    )
    rollout = make_rollout(agent)
    before = [p.detach().clone() for p in agent.parameters()]
    loss = minibatch_losses(agent, make_batch(agent, rollout, config), config).total
    gradients = torch.autograd.grad(loss, list(agent.parameters()))
    norm = math.sqrt(sum((g.double() ** 2).sum().item() for g in gradients))
    assert 0.05 < norm < 1e6
    scale = min(1.0, max_grad_norm / norm)
    run_update(agent, rollout, config)
    for parameter, start, gradient in zip(agent.parameters(), before, gradients, strict=True):
        torch.testing.assert_close(parameter.detach(), start - 0.1 * scale * gradient, rtol=1e-4, atol=1e-6)


def test_every_row_once_an_epoch_in_a_new_order_and_the_short_minibatch_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    agent = make_agent()
    rollout, config = make_rollout(agent), make_config(minibatch_size=7, update_epochs=3)
    full = make_batch(agent, rollout, config)
    with recorded(monkeypatch) as seen:
        result = run_update(agent, rollout, config)
    assert [len(batch.obs) for batch, _ in seen] == [7, 7, 7, 3] * 3
    assert (result.gradient_steps, result.skipped) == (12, 0)
    orders = []
    for epoch in range(3):
        parts = [torch.cat(columns) for columns in zip(*(b for b, _ in seen[4 * epoch : 4 * epoch + 4]), strict=True)]
        order = [int((full.obs == row).all(1).nonzero()) for row in parts[0]]
        assert sorted(order) == list(range(24))
        assert all(torch.equal(part, whole[order]) for part, whole in zip(parts, full, strict=True))  # rows stay whole
        orders.append(order)
    assert orders[0] != orders[1] != orders[2]


def test_the_order_is_drawn_from_the_generator_alone() -> None:
    results = []
    for seed in (0, 1):
        agent = make_agent()
        torch.manual_seed(seed)
        run_update(agent, make_rollout(agent), make_config())
        results.append(weights_of(agent))
    assert same(*results)


def test_a_short_minibatch_of_one_row_is_learned_from() -> None:
    agent = make_agent()
    rollout, config = make_rollout(agent), make_config(minibatch_size=23, update_epochs=1)
    result = run_update(agent, rollout, config)
    assert (result.gradient_steps, result.skipped) == (2, 0)
    assert all(p.isfinite().all() for p in agent.parameters())


@pytest.mark.parametrize(
    ("target_kl", "last_kl", "epochs"),
    [(0.1, 0.11, 1), (0.1, 0.09, 4), (0.125, 0.125, 4), (None, 9.0, 4), (0.0, 9.0, 4), (-1.0, 9.0, 4)],
)
def test_early_stop_by_the_last_minibatch_of_an_epoch(
    monkeypatch: pytest.MonkeyPatch, target_kl: float | None, last_kl: float, epochs: int
) -> None:
    agent = make_agent()

    def kl(i: int, losses: MinibatchLosses) -> MinibatchLosses:
        # Three minibatches an epoch: what the first two say must not matter.
        return losses._replace(approx_kl=torch.tensor(last_kl if i % 3 == 2 else 5.0))

    with recorded(monkeypatch, kl) as seen:
        result = run_update(agent, make_rollout(agent), make_config(update_epochs=4, target_kl=target_kl))
    assert len(seen) == 3 * epochs == result.gradient_steps


def test_what_is_logged_and_of_which_minibatch(monkeypatch: pytest.MonkeyPatch) -> None:
    agent = make_agent()
    rollout, config = make_rollout(agent), make_config(update_epochs=2, policy_lr=0.05, clip_ratio=0.02)
    batch = make_batch(agent, rollout, config)
    with recorded(monkeypatch) as seen:
        metrics = run_update(agent, rollout, config).metrics
    _, last = seen[-1]
    assert 0 < np.mean([losses.clipfrac.item() for _, losses in seen]) < 1
    assert metrics == {
        "losses/value_loss": last.value.item(),
        "losses/policy_loss": last.policy.item(),
        "losses/entropy": last.entropy.item(),
        "losses/old_approx_kl": last.old_approx_kl.item(),
        "losses/approx_kl": last.approx_kl.item(),
        "losses/clipfrac": pytest.approx(np.mean([losses.clipfrac.item() for _, losses in seen])),
        "losses/explained_variance": pytest.approx(
            oracle.explained_variance(*(x.double().numpy() for x in (batch.returns, batch.values, batch.weights))),
            rel=1e-4,
        ),
    }


def test_normalizer_stands_still_while_a_batch_is_optimized() -> None:
    agent = make_agent()
    assert isinstance(agent.obs_normalizer, RunningNorm)
    agent.obs_normalizer.update(torch.randn(10, OBS))
    before = {name: x.clone() for name, x in agent.obs_normalizer.state_dict().items()}
    rollout = make_rollout(agent)
    obs = rollout.obs.clone()
    run_update(agent, rollout, make_config())
    assert same(dict(agent.obs_normalizer.state_dict()), before)
    assert torch.equal(rollout.obs, obs)


def test_restarting_steps_have_no_influence() -> None:
    outcomes = []
    for disturbed in (False, True):
        agent = make_agent()
        rollout = make_rollout(agent)
        if disturbed:
            for t, n in rollout.restarting.nonzero().tolist():
                rollout.actions[t, n] += torch.tensor([3.0, -2.0])
                rollout.rewards[t, n] = 77.0
            rollout.obs[4, 0] = torch.tensor([9.0, -9.0, 9.0])  # after a terminal step: nobody bootstraps from it
        config = make_config(update_epochs=3, minibatch_size=5, ent_coef=0.01)
        optimizer = make_optimizer(agent, config)
        result = run_update(agent, rollout, config, optimizer)
        outcomes.append((weights_of(agent), optimizer.state_dict(), result))
    assert same(outcomes[0][0], outcomes[1][0])
    assert same(outcomes[0][1], outcomes[1][1])
    assert outcomes[0][2].metrics == outcomes[1][2].metrics


def test_a_step_before_a_time_limit_does_see_the_last_observation() -> None:
    agent = make_agent()
    rollout, config = make_rollout(agent), make_config()
    before = make_batch(agent, rollout, config)
    rollout.obs[7, 1] += 1.0  # where the truncated episode ended, at t = 6
    after = make_batch(agent, rollout, config)
    changed = (before.advantages != after.advantages).reshape(12, 2)
    assert changed[:7, 1].all() and not changed[:, 0].any()


@pytest.mark.parametrize("optimizer_type", ["adam", "sgd"])
@pytest.mark.parametrize("poison", ["rewards", "loss", "gradient"])
def test_a_loss_that_is_not_finite_touches_nothing(
    monkeypatch: pytest.MonkeyPatch, optimizer_type: str, poison: str
) -> None:
    agent = make_agent()
    config = make_config(optimizer_type=optimizer_type, update_epochs=2)
    optimizer = make_optimizer(agent, config)
    run_update(agent, make_rollout(agent), config, optimizer)  # so that the optimizer has a state to lose
    before, state = weights_of(agent), make_snapshot(optimizer)
    rollout = make_rollout(agent, seed=1)
    if poison == "rewards":
        rollout.rewards[:] = math.nan

    def change(i: int, losses: MinibatchLosses) -> MinibatchLosses:
        if poison == "loss":
            return losses._replace(total=losses.total * math.inf)
        if poison == "gradient":  # the root's slope at 0 is infinite, its value is not
            return losses._replace(total=losses.total + (agent.actor_logstd * 0).sum().sqrt())
        return losses

    with recorded(monkeypatch, change) as seen:
        result = run_update(agent, rollout, config, optimizer)
    assert (result.gradient_steps, result.skipped) == (0, len(seen)) == (0, 6)
    assert same(weights_of(agent), before)
    assert same(make_snapshot(optimizer), state)


def make_snapshot(optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    state = optimizer.state_dict()
    copied = {
        i: {key: value.clone() if isinstance(value, torch.Tensor) else value for key, value in slots.items()}
        for i, slots in state["state"].items()
    }
    return {"state": copied, "param_groups": state["param_groups"]}


def test_one_bad_minibatch_is_skipped_and_the_others_count(monkeypatch: pytest.MonkeyPatch) -> None:
    agent = make_agent()

    def change(i: int, losses: MinibatchLosses) -> MinibatchLosses:
        return losses._replace(total=losses.total * math.nan) if i == 1 else losses

    before = weights_of(agent)
    with recorded(monkeypatch, change):
        result = run_update(agent, make_rollout(agent), make_config(update_epochs=1))
    assert (result.gradient_steps, result.skipped) == (2, 1)
    assert all(p.isfinite().all() for p in agent.parameters()) and not same(weights_of(agent), before)


@pytest.mark.parametrize("recompute", [False, True])
@pytest.mark.parametrize("estimator", ["gae", "returns"])
def test_advantages_are_estimated_anew_only_when_asked(
    monkeypatch: pytest.MonkeyPatch, recompute: bool, estimator: str
) -> None:
    agent = make_agent()
    rollout = make_rollout(agent)
    config = make_config(
        update_epochs=3,
        minibatch_size=24,
        policy_lr=0.05,
        recompute_advantages=recompute,
        advantage_estimator=estimator,
    )
    first = make_batch(agent, rollout, config)
    expected: list[Batch] = []
    with recorded(monkeypatch, lambda i, losses: expected.append(make_batch(agent, rollout, config)) or losses) as seen:  # type: ignore[func-returns-value]
        run_update(agent, rollout, config)
    for epoch, (batch, _) in enumerate(seen):
        order = [int((first.obs == row).all(1).nonzero()) for row in batch.obs]
        source = expected[epoch] if recompute else first  # with the critic as it is before this epoch
        torch.testing.assert_close(batch.advantages, source.advantages[order])
        torch.testing.assert_close(batch.returns, source.returns[order])
        # The clip ranges stay around the policy and the critic that collected.
        assert torch.equal(batch.log_probs, first.log_probs[order])
        assert torch.equal(batch.values, first.values[order])
        if epoch > 0:
            assert not torch.allclose(expected[epoch].advantages, first.advantages)


def test_the_step_that_is_compiled_agrees_with_the_plain_one(monkeypatch: pytest.MonkeyPatch) -> None:
    # Compiling takes half a minute and is torch's business; what is compiled is ours.
    monkeypatch.setattr(torch, "compile", lambda function, **_: function)
    config = make_config(update_epochs=2, minibatch_size=7, ent_coef=0.01, policy_lr=0.01)
    outcomes = []
    for compiled in (False, True):
        agent = make_agent()
        optimizer = make_optimizer(agent, config)
        step = make_gradient_step(agent, optimizer, config, compiled)
        generator = torch.Generator().manual_seed(3)
        results = [update(agent, step, make_rollout(agent, seed=seed), config, generator) for seed in (0, 1)]
        outcomes.append((weights_of(agent), make_snapshot(optimizer)["state"], results))
    (weights, moments, results), (other_weights, other_moments, other_results) = outcomes
    for name, value in weights.items():
        torch.testing.assert_close(other_weights[name], value, rtol=1e-4, atol=1e-6)
    for i, slots in moments.items():
        for name, value in slots.items():
            torch.testing.assert_close(other_moments[i][name], value, rtol=1e-3, atol=1e-7)
    for result, other in zip(results, other_results, strict=True):
        assert (result.gradient_steps, result.skipped) == (other.gradient_steps, other.skipped) == (8, 0)
        assert other.metrics == pytest.approx(result.metrics, rel=1e-3, abs=1e-6)


@pytest.mark.parametrize("poison", ["rewards", "a row"])
def test_the_step_that_is_compiled_leaves_out_what_is_not_finite(monkeypatch: pytest.MonkeyPatch, poison: str) -> None:
    monkeypatch.setattr(torch, "compile", lambda function, **_: function)
    agent, config = make_agent(), make_config(update_epochs=1)
    optimizer = make_optimizer(agent, config)
    step = make_gradient_step(agent, optimizer, config, compiled=True)
    update(agent, step, make_rollout(agent), config, torch.Generator().manual_seed(3))
    before, state = weights_of(agent), make_snapshot(optimizer)
    rollout = make_rollout(agent, seed=1)
    if poison == "rewards":
        rollout.rewards[:] = math.nan
    else:
        rollout.actions[0, 0] = math.inf
    result = update(agent, step, rollout, config, torch.Generator().manual_seed(3))
    if poison == "rewards":
        assert (result.gradient_steps, result.skipped) == (0, 3)
        assert same(weights_of(agent), before) and same(make_snapshot(optimizer), state)
    else:
        assert (result.gradient_steps, result.skipped) == (2, 1)
        assert all(p.isfinite().all() for p in agent.parameters())


def test_a_minibatch_that_was_filled_up_has_the_losses_of_the_short_one() -> None:
    agent, config = make_agent().double(), make_config(rollout_steps=64, minibatch_size=32)
    short = random_batch(agent, rows=5)
    filled = filled_up(short, config)
    assert len(filled.obs) == 32 and filled.weights.sum() == short.weights.sum()
    assert filled_up(filled, config) is filled
    expected, found = minibatch_losses(agent, short, config), minibatch_losses(agent, filled, config)
    torch.testing.assert_close(tuple(found), tuple(expected), rtol=1e-5, atol=1e-6)
