from __future__ import annotations

import csv
import math
from pathlib import Path
from typing import Any

import pytest
import torch

import minerva
from minerva.networks.actor_critic import ActorCritic
from minerva.trainers.ppo import update as update_module
from minerva.trainers.ppo.config import PPOConfig
from minerva.trainers.ppo.trainer import PPOTrainer
from minerva.trainers.ppo.update import Batch, Coefficients, MinibatchLosses, make_batch, minibatch_losses
from minerva.utils.running_norm import RunningNorm
from tests.environments.tiny_envs import Pulse, Talking
from tests.trainers.ppo.small_run import ROLLOUT, logged, metrics_of, same, small_trainer, state_of


def test_the_first_ratio_of_every_update_is_one_in_a_real_run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The policy that acted, on what it saw, is the policy that the first minibatch is scored with."""
    trainer = small_trainer(
        "HalfCheetah-v5", num_envs=2, rollout_steps=64, minibatch_size=32, eval_episodes=0, policy_lr=3e-3,
        target_kl=None, policy_layer_sizes=(64, 64), critic_layer_sizes=(64, 64),
    )  # fmt: skip
    agent, act = trainer.agent, trainer.collector.actor
    normalizer = agent.obs_normalizer
    assert isinstance(normalizer, RunningNorm)
    seen: list[tuple[torch.Tensor, torch.Tensor]] = []  # what the policy saw, and how it scored what it did
    first_ratios: list[float] = []
    later_ratios: list[float] = []
    means: list[torch.Tensor] = []
    minibatches = 0

    def score(policy: ActorCritic, actions: torch.Tensor, *inputs: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            return policy.head.log_prob(policy.forward_sequence(*inputs).params, actions)

    def watch_act(*arrays: Any) -> tuple[Any, Any, None]:
        actions, state, _ = act(*arrays)
        inputs = [torch.tensor(array) for array in arrays]
        seen.append((inputs[0], score(agent.policy, torch.tensor(actions), *inputs)))
        return actions, state, None

    def watch_batch(*args: Any) -> Batch:
        nonlocal minibatches
        batch = make_batch(*args)
        assert torch.equal(batch.obs, torch.stack([obs for obs, _ in seen]).flatten(0, 1))
        torch.testing.assert_close(
            batch.log_probs, torch.stack([score for _, score in seen]).flatten(), rtol=0.0, atol=1e-5
        )
        seen.clear()
        means.append(normalizer.mean.clone())
        minibatches = 0
        return batch

    def watch_losses(policy: ActorCritic, batch: Batch, **settings: Any) -> tuple[torch.Tensor, MinibatchLosses]:
        nonlocal minibatches
        inputs = batch.obs, batch.recurrent_state, batch.episode_starts
        ratio = (score(policy, batch.actions, *inputs) - batch.log_probs).exp()
        (later_ratios if minibatches else first_ratios).append((ratio - 1).abs().max().item())
        minibatches += 1
        assert torch.equal(normalizer.mean, means[-1])  # statistics stand still while a batch is optimized
        return minibatch_losses(policy, batch, **settings)

    monkeypatch.setattr(trainer.collector, "actor", watch_act)
    monkeypatch.setattr(update_module, "make_batch", watch_batch)
    monkeypatch.setattr(update_module, "minibatch_losses", watch_losses)
    trainer.train(64 * 2 * 6, tmp_path / "run")
    trainer.close()
    assert len(first_ratios) == 6 and max(first_ratios) < 1e-5
    assert max(later_ratios) > 0.01  # the policy did move, and so did the normalizer
    assert (means[0] - means[-1]).abs().max() > 0.01


@pytest.mark.formula("minerva.trainers.on_policy", r"s_u = 1 - \frac{u - 1}{U}")
def test_learning_rate_falls_linearly_from_its_start(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    trainer = small_trainer(policy_lr=0.007, eval_episodes=0)
    rates: list[float] = []

    def watch(
        policy: ActorCritic, batch: Batch, config: PPOConfig, coefficients: Coefficients
    ) -> tuple[torch.Tensor, MinibatchLosses]:
        rates.append(coefficients.learning_rate.item())
        return minibatch_losses(policy, batch, config, coefficients)

    monkeypatch.setattr(update_module, "minibatch_losses", watch)
    result = trainer.train(ROLLOUT * 8 + 5, tmp_path / "run")  # 5 steps are left over: U is 8
    trainer.close()
    assert (result.updates, result.env_steps) == (8, ROLLOUT * 8)
    expected = [0.007 * (1 - (u - 1) / 8) for u in range(1, 9)]
    assert list(dict.fromkeys(rates)) == pytest.approx(expected, rel=1e-6)
    assert logged(tmp_path / "run", "charts/learning_rate") == [(ROLLOUT * u, expected[u - 1]) for u in range(1, 9)]


def test_scheduled_settings_follow_what_remains_of_the_run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    asked: list[float] = []

    def rate(remaining: float) -> float:
        asked.append(remaining)
        return 0.01 * remaining**2

    trainer = small_trainer(
        policy_lr=rate, clip_ratio="lin_0.4", clip_ratio_vf="const_0.3", ent_coef="cos_0.02", eval_episodes=0
    )
    seen: list[tuple[float, ...]] = []

    def watch(
        policy: ActorCritic, batch: Batch, config: PPOConfig, coefficients: Coefficients
    ) -> tuple[torch.Tensor, MinibatchLosses]:
        seen.append(tuple(round(part.item(), 6) for part in coefficients))
        return minibatch_losses(policy, batch, config, coefficients)

    monkeypatch.setattr(update_module, "minibatch_losses", watch)
    trainer.train(ROLLOUT * 4, tmp_path / "run")
    trainer.close()
    rates = [value for _, value in logged(tmp_path / "run", "charts/learning_rate")]
    assert rates == pytest.approx([0.01, 0.005625, 0.0025, 0.000625])
    assert set(asked) == {1.0, 0.75, 0.5, 0.25}
    cosine = [round(0.01 * (1 - math.cos(math.pi * share)), 6) for share in (1, 0.75, 0.5, 0.25)]
    expected = list(zip((0.4, 0.3, 0.2, 0.1), [0.3] * 4, cosine, (0.01, 0.005625, 0.0025, 0.000625), strict=True))
    assert list(dict.fromkeys(seen)) == expected
    # The function is not in the checkpoint: acting needs none, going on does.
    minerva.load(tmp_path / "run")
    again = small_trainer(policy_lr=rate, clip_ratio="lin_0.4", clip_ratio_vf="const_0.3", ent_coef="cos_0.02")
    again.load(tmp_path / "run")
    again.close()


def test_learning_rate_stays_without_annealing(tmp_path: Path) -> None:
    trainer = small_trainer(policy_lr=0.007, eval_episodes=0, anneal_lr=False)
    trainer.train(ROLLOUT * 3, tmp_path / "run")
    trainer.close()
    assert {rate for _, rate in logged(tmp_path / "run", "charts/learning_rate")} == {0.007}


def test_too_few_steps_for_one_update_are_an_error_that_says_both_numbers_and_makes_nothing(tmp_path: Path) -> None:
    trainer = small_trainer(num_envs=2)
    before = trainer.state_dict()
    with pytest.raises(ValueError, match=r"total_steps: .*rollout_steps \* num_envs = 32.*got 31"):
        trainer.train(ROLLOUT * 2 - 1, tmp_path / "run")
    assert same(trainer.state_dict(), before)
    assert list(tmp_path.iterdir()) == []
    trainer.close()


def test_logged_names_are_those_of_the_specification(tmp_path: Path) -> None:
    trainer = small_trainer(env_kwargs={"max_episode_steps": 10})
    trainer.train(ROLLOUT * 2, tmp_path / "run")
    trainer.close()
    with (tmp_path / "run" / "metrics.csv").open(newline="") as file:
        names = {row["name"] for row in csv.DictReader(file)}
    losses = "value_loss policy_loss entropy old_approx_kl approx_kl clipfrac explained_variance"
    evaluation = "return_mean return_std return_min return_max return_median length_mean"
    assert names == {
        "charts/learning_rate", "charts/SPS", "charts/SPS_training", "time/seconds",
        "train/episode_return", "train/episode_length",
        *(f"losses/{name}" for name in losses.split()), *(f"eval/{name}" for name in evaluation.split()),
    }  # fmt: skip
    # The x axis is the environment step. An episode of 10 steps, a restarting step, and 10 steps again.
    assert [step for step, _ in logged(tmp_path / "run", "train/episode_length")] == [10, 21, 32]
    assert {value for _, value in logged(tmp_path / "run", "train/episode_length")} == {10.0}
    assert [step for step, _ in logged(tmp_path / "run", "losses/value_loss")] == [16, 32]


def test_a_run_of_no_finite_loss_stops_and_keeps_its_weights(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    trainer = small_trainer(eval_episodes=0)
    trainer.train(ROLLOUT * 2, tmp_path / "run")
    agent = {name: x.clone() for name, x in trainer.agent.named_parameters()}
    saved = (tmp_path / "run" / "ppo_last.pt").read_bytes()

    def poisoned(*arguments: Any, **settings: Any) -> tuple[torch.Tensor, MinibatchLosses]:
        total, losses = minibatch_losses(*arguments, **settings)
        return total * math.nan, losses

    monkeypatch.setattr(update_module, "minibatch_losses", poisoned)
    with pytest.raises(FloatingPointError, match="every loss of update 3 was infinite or not a number"):
        trainer.train(ROLLOUT * 4, tmp_path / "run")
    trainer.close()
    assert same(dict(trainer.agent.named_parameters()), agent)
    assert (tmp_path / "run" / "ppo_last.pt").read_bytes() == saved


def test_skipped_minibatches_are_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    calls = 0

    def poisoned(*arguments: Any, **settings: Any) -> tuple[torch.Tensor, MinibatchLosses]:
        nonlocal calls
        calls += 1
        total, losses = minibatch_losses(*arguments, **settings)
        return total * math.nan if calls == 6 else total, losses

    monkeypatch.setattr(update_module, "minibatch_losses", poisoned)
    trainer = small_trainer(eval_episodes=0)
    with pytest.warns(RuntimeWarning, match="1 minibatches of update 2 had a loss or gradient that is not finite"):
        result = trainer.train(ROLLOUT * 3, tmp_path / "run")
    trainer.close()
    assert result.updates == 3
    assert all(x.isfinite().all() for x in trainer.agent.parameters())
    assert "Warning: 1 minibatches of update 2 had a loss" in (tmp_path / "run" / "notes.log").read_text()


@pytest.mark.parametrize("estimator", ["gae", "returns"])
@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
def test_every_kind_of_update_trains(estimator: str, optimizer: str, tmp_path: Path) -> None:
    trainer = small_trainer(
        advantage_estimator=estimator, optimizer_type=optimizer, recompute_advantages=True, normalize_obs=False,
        normalize_reward=False, clip_vloss=False, norm_adv=False, eval_episodes=0,
    )  # fmt: skip
    before = {name: x.clone() for name, x in trainer.agent.named_parameters()}
    trainer.train(ROLLOUT * 2, tmp_path / "run")
    trainer.close()
    after = dict(trainer.agent.named_parameters())
    assert all(not torch.equal(after[name], before[name]) and after[name].isfinite().all() for name in before)
    assert all(math.isfinite(value) for _, _, value in metrics_of(tmp_path / "run"))


def test_config_and_keywords() -> None:
    config = PPOConfig(gamma=0.9, console=False)
    trainer = PPOTrainer("Pendulum-v1", 3, "cpu", config, gae_lambda=0.5)
    assert (trainer.config.gamma, trainer.config.gae_lambda, trainer.seed) == (0.9, 0.5, 3)
    trainer.close()
    with pytest.raises(ValueError, match=r"gama: not a setting of PPOConfig. Did you mean gamma"):
        PPOTrainer("Pendulum-v1", 3, "cpu", gama=0.9)
    with pytest.raises(ValueError, match="seed: must be a whole number from 0 on, got -1"):
        PPOTrainer("Pendulum-v1", -1, "cpu")
    with pytest.raises(ValueError, match="device: 'gpu' is not available here"):
        PPOTrainer("Pendulum-v1", 1, "gpu")
    with pytest.raises(ValueError, match=r"env: .*action space: must be a Box, Discrete, .* got Text"):
        PPOTrainer(Talking, 1, "cpu")


def test_seed_decides_the_weights_and_leaves_the_global_generator_alone() -> None:
    before = torch.random.get_rng_state()
    trainers = [small_trainer(seed=seed) for seed in (1, 1, 2)]
    assert torch.equal(torch.random.get_rng_state(), before)
    states = [trainer.agent.state_dict() for trainer in trainers]
    assert same(dict(states[0]), dict(states[1])) and not same(dict(states[0]), dict(states[2]))
    for trainer in trainers:
        trainer.close()


def test_it_learns(tmp_path: Path) -> None:
    trainer = small_trainer(Pulse, rollout_steps=128, minibatch_size=32, update_epochs=5, policy_lr=0.01, seed=0)
    result = trainer.train(128 * 12, tmp_path / "run")
    trainer.close()
    assert result.first_evaluation is not None and result.last_evaluation is not None
    assert abs(result.first_evaluation.returns.mean()) < 0.5  # the mean action starts near 0
    assert result.last_evaluation.returns.mean() > 2.0
    assert state_of(tmp_path / "run")["best_return"] > 2.0
