from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import torch

from minerva.acceleration.applied import moments
from minerva.acceleration.learnable import Learnable, Optimizer
from minerva.acceleration.tree import detached
from minerva.networks.actor_critic import ActorCritic
from minerva.trainers.ppo import update as update_module
from minerva.trainers.ppo.config import PPOConfig
from minerva.trainers.ppo.update import (
    Batch,
    Coefficients,
    MinibatchLosses,
    Updater,
    coefficients_at,
    make_batch,
    minibatch_losses,
)
from minerva.utils.running_norm import RunningNorm
from tests.objectives import oracle_ppo as oracle
from tests.trainers.ppo.samples import OBS, make_agent, make_config, make_rollout, run_update, weights_of
from tests.trainers.ppo.small_run import same


@contextmanager
def recorded(
    monkeypatch: pytest.MonkeyPatch,
    change: Callable[[int, MinibatchLosses], MinibatchLosses] = lambda i, losses: losses,
) -> Iterator[list[tuple[Batch, MinibatchLosses]]]:
    """Watch the minibatches of an update, and change what comes out of the i-th."""
    seen: list[tuple[Batch, MinibatchLosses]] = []

    def watch(
        policy: ActorCritic, batch: Batch, config: PPOConfig, coefficients: Coefficients
    ) -> tuple[torch.Tensor, MinibatchLosses]:
        losses = change(len(seen), minibatch_losses(policy, batch, config, coefficients)[1])
        seen.append((batch, detached(losses)))
        return losses.total, losses

    with monkeypatch.context() as patch:
        patch.setattr(update_module, "minibatch_losses", watch)
        yield seen


# The optimizer


def test_the_optimizer_of_the_config(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[dict[str, Any]] = []

    class Watched(Optimizer[ActorCritic]):
        def step(self, *arguments: Any) -> Learnable:
            made.append({name: getattr(self, name) for name in ("kind", "learning_rate", "momentum", "eps")})
            return super().step(*arguments)

    monkeypatch.setattr(update_module, "Optimizer", Watched)
    for fields, kind, momentum in (
        ({"policy_lr": 0.01}, "adam", 0.9),
        ({"optimizer_type": "sgd", "sgd_momentum": 0.7, "policy_lr": 0.1}, "sgd", 0.7),
    ):
        agent, config = make_agent(), make_config(**fields)
        updater = Updater(agent.policy, config)
        assert len(updater.state.policy.parameters) == sum(p.numel() for p in agent.parameters())
        made.clear()
        updater.learn(make_rollout(agent), 0.5, torch.Generator().manual_seed(3))
        assert {found["kind"] for found in made} == {kind}
        assert made[0]["learning_rate"].item() == pytest.approx(config.policy_lr_at(0.5), rel=1e-6)
        assert (made[0]["momentum"] if kind == "sgd" else made[0]["eps"]) == (momentum if kind == "sgd" else 1e-5)
    with pytest.raises(ValueError, match=r"optimizer_type: must be 'adam' or 'sgd', got 'rmsprop'"):
        make_config(optimizer_type="rmsprop")


# The update


@pytest.mark.parametrize("max_grad_norm", [0.05, 1e6])
def test_one_step_goes_down_the_gradient_clipped_to_its_norm(max_grad_norm: float) -> None:
    agent = make_agent()
    config = make_config(
        minibatch_size=24, update_epochs=1, optimizer_type="sgd", policy_lr=0.1, max_grad_norm=max_grad_norm
    )
    rollout = make_rollout(agent)
    before = [p.detach().clone() for p in agent.parameters()]
    batch = make_batch(agent.policy, rollout, config)
    loss, _ = minibatch_losses(agent.policy, batch, config, coefficients_at(1.0, config, batch.values))
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
    full = make_batch(agent.policy, rollout, config)
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
        # Three minibatches per epoch: what the first two say must not matter.
        return losses._replace(approx_kl=torch.tensor(last_kl if i % 3 == 2 else 5.0))

    with recorded(monkeypatch, kl) as seen:
        result = run_update(agent, make_rollout(agent), make_config(update_epochs=4, target_kl=target_kl))
    assert len(seen) == 3 * epochs == result.gradient_steps


def test_what_is_logged_and_of_which_minibatch(monkeypatch: pytest.MonkeyPatch) -> None:
    agent = make_agent()
    rollout, config = make_rollout(agent), make_config(update_epochs=2, policy_lr=0.05, clip_ratio=0.02)
    batch = make_batch(agent.policy, rollout, config)
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
        updater = Updater(agent.policy, config)
        result = run_update(agent, rollout, config, updater)
        outcomes.append((weights_of(agent), moments(updater.state), result))
    assert same(outcomes[0][0], outcomes[1][0])
    assert same(outcomes[0][1], outcomes[1][1])
    assert outcomes[0][2].metrics == outcomes[1][2].metrics


def test_a_step_before_a_time_limit_does_see_the_last_observation() -> None:
    agent = make_agent()
    rollout, config = make_rollout(agent), make_config()
    before = make_batch(agent.policy, rollout, config)
    rollout.obs[7, 1] += 1.0  # where the truncated episode ended, at t = 6
    after = make_batch(agent.policy, rollout, config)
    changed = (before.advantages != after.advantages).reshape(12, 2)
    assert changed[:7, 1].all() and not changed[:, 0].any()


@pytest.mark.parametrize("optimizer_type", ["adam", "sgd"])
@pytest.mark.parametrize("poison", ["rewards", "loss", "gradient"])
def test_a_loss_that_is_not_finite_touches_nothing(
    monkeypatch: pytest.MonkeyPatch, optimizer_type: str, poison: str
) -> None:
    agent = make_agent()
    config = make_config(optimizer_type=optimizer_type, update_epochs=2)
    updater = Updater(agent.policy, config)
    run_update(agent, make_rollout(agent), config, updater)  # so that the optimizer has a state to lose
    before, state = weights_of(agent), moments(updater.state)
    assert state["policy.average"].any() and state["policy.steps"].item() == 6
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
        result = run_update(agent, rollout, config, updater)
    assert (result.gradient_steps, result.skipped) == (0, len(seen)) == (0, 6) and updater.skipped == 6
    assert same(weights_of(agent), before)
    assert same(moments(updater.state), state)


def test_one_bad_minibatch_is_skipped_and_the_others_count(monkeypatch: pytest.MonkeyPatch) -> None:
    agent = make_agent()

    def change(i: int, losses: MinibatchLosses) -> MinibatchLosses:
        return losses._replace(total=losses.total * math.nan) if i == 1 else losses

    before = weights_of(agent)
    with recorded(monkeypatch, change):
        result = run_update(agent, make_rollout(agent), make_config(update_epochs=1))
    assert (result.gradient_steps, result.skipped) == (2, 1)
    assert all(p.isfinite().all() for p in agent.parameters()) and not same(weights_of(agent), before)


@pytest.mark.parametrize("bad", [0, 2])
def test_what_is_logged_is_of_the_minibatches_that_counted(bad: int, monkeypatch: pytest.MonkeyPatch) -> None:
    agent, rollout = make_agent(), make_rollout(make_agent())
    order = torch.randperm(24, generator=torch.Generator().manual_seed(3))
    rollout.actions.view(24, -1)[order[8 * bad]] = math.inf
    with recorded(monkeypatch, lambda i, losses: losses) as seen:
        result = run_update(agent, rollout, make_config(update_epochs=1, clip_ratio=1e-9, policy_lr=0.1))
    assert (result.gradient_steps, result.skipped) == (2, 1)
    counted = [losses for i, (_, losses) in enumerate(seen) if i != bad]
    clipped = [losses.clipfrac.item() for losses in counted]
    assert result.metrics["losses/clipfrac"] == pytest.approx(sum(clipped) / 2) and sum(clipped) > 0
    assert result.metrics["losses/approx_kl"] == counted[-1].approx_kl.item()
    assert all(map(math.isfinite, {**result.means, **result.metrics}.values()))


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
    first = make_batch(agent.policy, rollout, config)
    expected: list[Batch] = []

    def remember(i: int, losses: MinibatchLosses) -> MinibatchLosses:
        expected.append(make_batch(agent.policy, rollout, config))
        return losses

    with recorded(monkeypatch, remember) as seen:
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
