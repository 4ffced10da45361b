from __future__ import annotations

import csv
import math
import re
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch

import minerva
from minerva.trainers.vmpo import trainer as trainer_module
from minerva.trainers.vmpo.batch import Batch, make_batch
from minerva.trainers.vmpo.trainer import VMPOTrainer
from minerva.utils.running_norm import RunningNorm
from tests.environments.tiny_envs import Pulse, Talking
from tests.trainers.ppo.small_run import logged, metrics_of, same, state_of
from tests.trainers.vmpo.small_run import ROLLOUT, TOTAL, small_trainer, train

# Learning rates


@pytest.mark.formula("minerva.trainers.on_policy", r"s_u = 1 - \frac{u - 1}{U}")
def test_learning_rates_fall_linearly_where_that_is_wanted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = small_trainer(anneal_lr=True, policy_lr=0.008, eval_episodes=0)
    scales = []
    learn = trainer.updater.learn

    def watch(batch: Batch, lr_scale: float, *rest: Any) -> Any:
        scales.append(lr_scale)
        return learn(batch, lr_scale, *rest)

    monkeypatch.setattr(trainer.updater, "learn", watch)
    trainer.train(ROLLOUT * 4, tmp_path / "run")
    trainer.close()
    assert scales == [1.0, 0.75, 0.5, 0.25]
    assert [rate for _, rate in logged(tmp_path / "run", "charts/learning_rate")] == [0.008, 0.006, 0.004, 0.002]


def test_a_scale_of_the_rates_slows_policy_and_critic_and_leaves_the_duals() -> None:
    agents = []
    for lr_scale in (0.0, 1.0):
        trainer = small_trainer(m_steps=1)
        trainer.collector.begin()
        while not trainer.collector.rollout.full:
            trainer.collector.step()
        before = {name: part.clone() for name, part in trainer.agent.state_dict().items()}
        batch = make_batch(trainer.agent.policy, trainer.collector.rollout, trainer.config)
        assert trainer.updater.learn(batch, lr_scale) is not None
        trainer.close()
        agents.append({name: not torch.equal(part, before[name]) for name, part in trainer.agent.state_dict().items()})
    still, moved = agents
    weights = [name for name in moved if name.endswith("weight")]
    duals = [name for name in moved if name.startswith(("alphas", "temperature"))]
    assert weights and all(moved[name] and not still[name] for name in weights)
    assert duals and all(moved[name] and still[name] for name in duals)


def test_learning_rates_stay_by_default(tmp_path: Path) -> None:
    train(tmp_path / "run", ROLLOUT * 3, policy_lr=0.008, eval_episodes=0)
    assert {rate for _, rate in logged(tmp_path / "run", "charts/learning_rate")} == {0.008}


# Evaluation


def test_evaluation_leaves_training_untouched(tmp_path: Path) -> None:
    train(tmp_path / "often", eval_interval=1)
    train(tmp_path / "never", eval_episodes=0)
    often, never = state_of(tmp_path / "often"), state_of(tmp_path / "never")
    assert len(logged(tmp_path / "often", "eval/return_mean")) == 6
    for part in ("agent", "optimizer", "action_noise", "collector"):
        assert same(often[part], never[part]), part


def test_a_trained_policy_acts_from_its_checkpoint(tmp_path: Path) -> None:
    trainer = train(tmp_path / "run", num_envs=2, total_steps=2 * TOTAL)
    assert (tmp_path / "run" / "vmpo_best.pt").exists()
    policy = minerva.load(tmp_path / "run")
    obs = np.random.default_rng(0).normal(size=(5, 3)).astype(np.float32)
    expected = trainer.agent.act(obs, deterministic=True)[0]
    np.testing.assert_array_equal(policy.act(obs), expected)
    assert policy.act(obs[0]).shape == (1,)
    # Pendulum's bounds are ±2, and come with the checkpoint.
    actions = policy.act(np.repeat(obs, 400, axis=0), deterministic=False)
    assert 1.8 < np.abs(actions).max() <= 2.0


# The run


def test_what_is_learned_from_is_what_the_policy_saw_and_did(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    trainer = small_trainer("HalfCheetah-v5", num_envs=2, eval_episodes=0, policy_lr=3e-3)
    normalizer, act = trainer.agent.obs_normalizer, trainer.collector.actor
    assert isinstance(normalizer, RunningNorm)
    seen: list[tuple[torch.Tensor, torch.Tensor, torch.Tensor]] = []
    batches = []
    learn = trainer.updater.learn

    def watch_act(obs: Any, *memory: Any) -> tuple[Any, Any, Any]:
        actions, *rest = act(obs, *memory)
        rows = torch.tensor(obs)
        with torch.no_grad():
            seen.append((rows, torch.tensor(actions), trainer.agent.policy(rows)[0]))
        return actions, *rest

    def watch_update(batch: Batch, *rest: Any) -> Any:
        obs, actions, means = (torch.stack(parts).flatten(0, 1) for parts in zip(*seen, strict=True))
        assert torch.equal(batch.obs, obs) and torch.equal(batch.actions, actions)
        torch.testing.assert_close(batch.old[0], means, rtol=0, atol=1e-5)
        seen.clear()
        statistics = normalizer.mean.clone()
        metrics = learn(batch, *rest)
        assert torch.equal(normalizer.mean, statistics)
        batches.append(metrics)
        return metrics

    monkeypatch.setattr(trainer.collector, "actor", watch_act)
    monkeypatch.setattr(trainer.updater, "learn", watch_update)
    trainer.train(ROLLOUT * 2 * 4, tmp_path / "run")
    trainer.close()
    assert len(batches) == 4


def test_logged_names_are_those_of_the_specification(tmp_path: Path) -> None:
    train(tmp_path / "run", ROLLOUT * 2, env_kwargs={"max_episode_steps": 10})
    with (tmp_path / "run" / "metrics.csv").open(newline="") as file:
        names = {row["name"] for row in csv.DictReader(file)}
    groups = {
        "loss": "total value policy policy_weighted_nll policy_noise policy_kl_mean_pen policy_kl_std_pen alpha",
        "kl": "mean std mean_sel std_sel",
        "vmpo": "alpha_mu alpha_sigma dual_loss epsilon_eta temperature_raw adv_std_over_temperature selected_frac "
        "threshold ess restarting_frac importance_mean",
        "train": "entropy param_delta mean_abs_action episode_return episode_length",
        "adv": "raw_mean raw_std",
        "returns": "raw_mean raw_std",
        "value": "explained_var pred_mean pred_std",
        "health": "kl_mean_ratio kl_std_ratio dual_saturation skipped",
        "charts": "SPS SPS_training learning_rate",
        "time": "seconds",
        "eval": "return_mean return_std return_min return_max return_median length_mean",
    }
    assert names == {f"{group}/{name}" for group, text in groups.items() for name in text.split()}
    # Steps 11 and 22 cross into a new episode.
    assert logged(tmp_path / "run", "vmpo/restarting_frac") == [(16, 1 / 16), (32, 1 / 16)]


def test_names_logged_with_discrete_actions_are_those_of_the_page(tmp_path: Path) -> None:
    train(tmp_path / "run", ROLLOUT * 16, env_id="CartPole-v1", num_envs=2, control_variate=True)
    found = {name for _, name, _ in metrics_of(tmp_path / "run")}
    assert all(math.isfinite(value) for _, _, value in metrics_of(tmp_path / "run"))
    own = {
        "kl/policy", "kl/policy_sel", "loss/policy_kl_pen", "vmpo/alpha", "health/kl_ratio", "loss/policy_noise",
        "train/entropy", "train/episode_return", "eval/return_mean",
    }  # fmt: skip
    gone = {
        "kl/mean",
        "kl/std_sel",
        "vmpo/alpha_mu",
        "vmpo/alpha_sigma",
        "health/kl_mean_ratio",
        "train/mean_abs_action",
    }
    assert own <= found and not gone & found
    page = (Path(__file__).parents[3] / "docs" / "algorithms" / "vmpo.md").read_text()
    logs = page.partition("## What it logs")[2].partition("\n## ")[0]
    discrete = page.partition("## Discrete actions")[2].partition("\n## ")[0]
    rows = [line.split("|")[1:3] for line in discrete.splitlines() if line.startswith("| `")]
    listed = set(re.findall(r"^\| `([^`]+)` \|", logs, re.MULTILINE))
    for new, old in rows:
        listed -= set(re.findall(r"`([^`]+)`", old))
        listed |= set(re.findall(r"`([^`]+)`", new))
    assert listed == found | {"charts/SPS", "charts/SPS_training", "time/seconds"}


def test_runs_with_discrete_actions_hear_of_their_own_illnesses() -> None:
    trainer = small_trainer("CartPole-v1")
    trainer.close()
    well = {
        "vmpo/ess": 8.0, "vmpo/temperature_raw": 0.7, "vmpo/alpha": 1.0, "health/kl_ratio": 1.2, "train/entropy": 0.01,
        "health/dual_saturation": 0.0, "health/skipped": 0.0, "vmpo/selected_frac": 0.5,
    }  # fmt: skip
    assert {rule.metric for rule in trainer.health._rules} == well.keys()  # each of them is looked at
    assert [said for _ in range(50) for said in trainer.health.check(well)] == []
    for ill, text in (
        ({"health/kl_ratio": 10.5}, "moved 10.5 times as far as epsilon_mu allows"),
        ({"vmpo/alpha": 2e5}, "multiplier of the policy's KL has exploded"),
        ({"train/entropy": 5e-5}, "stopped exploring"),
    ):
        said = [text for _ in range(5) for text in trainer.health.check({**well, **ill})]
        assert len(said) == 1 and text in said[0]


def test_a_bad_update_is_skipped_and_the_run_goes_on(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    honest, calls = make_batch, 0
    trainer = small_trainer(eval_episodes=0)
    kept: list[Any] = []

    def poisoned(*arguments: Any) -> Batch:
        nonlocal calls
        calls += 1
        batch = honest(*arguments)
        if calls == 2:
            batch.advantages[3] = math.nan
        if calls in (2, 3):
            parameters = {name: value.clone() for name, value in trainer.agent.named_parameters()}
            kept.append((parameters, trainer.optimizer_state()))
        return batch

    monkeypatch.setattr(trainer_module, "make_batch", poisoned)
    with pytest.warns(RuntimeWarning, match=r"skipped \(1 so far\)"):
        result = trainer.train(ROLLOUT * 4, tmp_path / "run")
    trainer.close()
    assert (result.updates, result.env_steps) == (4, ROLLOUT * 4)
    noted = (tmp_path / "run" / "notes.log").read_text()
    assert f"step {ROLLOUT * 2}  Warning: a batch gave a number that is not finite and was skipped (1 so far)" in noted
    before, after = kept
    assert (before[1].pop("skipped"), after[1].pop("skipped")) == (0, 1)
    assert all(same(a, b) for a, b in zip(before, after, strict=True))
    assert logged(tmp_path / "run", "health/skipped") == [(16, 0.0), (32, 1.0), (48, 1.0), (64, 1.0)]
    assert [step for step, _ in logged(tmp_path / "run", "loss/total")] == [16, 48, 64]


def test_skipped_updates_are_part_of_the_state() -> None:
    trainer = small_trainer()
    trainer.load_optimizer_state({**trainer.optimizer_state(), "skipped": 7})
    trainer.close()
    assert trainer.agent.skipped == 7 == trainer.optimizer_state()["skipped"]


def test_an_ill_run_is_told_so_once(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    # Steps that are far too large for bounds that are far too small.
    train(tmp_path / "run", ROLLOUT * 12, console=True, eval_episodes=0, policy_lr=0.05, epsilon_mu=1e-6)
    said = capsys.readouterr().out
    assert said.count("times as far as epsilon_mu allows") == 1
    assert "kl_mean" in state_of(tmp_path / "run")["health"]["warned"]
    trainer = small_trainer(console=True, eval_episodes=0, policy_lr=0.05, epsilon_mu=1e-6)
    trainer.load(tmp_path / "run")
    trainer.train(ROLLOUT * 20)
    trainer.close()
    assert "times as far as epsilon_mu allows" not in capsys.readouterr().out


def test_too_few_steps_for_one_update_are_an_error_that_says_both_numbers_and_makes_nothing(tmp_path: Path) -> None:
    trainer = small_trainer(num_envs=2)
    with pytest.raises(ValueError, match=r"total_steps: .*rollout_steps \* num_envs = 32.*got 31"):
        trainer.train(ROLLOUT * 2 - 1, tmp_path / "run")
    trainer.close()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("estimator", ["returns", "dae", "gae"])
@pytest.mark.parametrize(
    "fields", [{"shared_encoder": True}, {"ppo_like_backbone": True}, {"optimizer_type": "sgd", "normalize_obs": False}]
)
def test_every_kind_of_update_trains(estimator: str, fields: dict[str, Any], tmp_path: Path) -> None:
    trainer = small_trainer(advantage_estimator=estimator, eval_episodes=0, **fields)
    before = {name: x.clone() for name, x in trainer.agent.named_parameters()}
    trainer.train(ROLLOUT * 2 + 5, tmp_path / "run")  # 5 steps are left over
    trainer.close()
    assert (trainer.updates, trainer.env_steps) == (2, ROLLOUT * 2)
    after = dict(trainer.agent.named_parameters())
    assert all(not torch.equal(after[name], before[name]) and after[name].isfinite().all() for name in before)
    assert all(math.isfinite(value) for _, _, value in metrics_of(tmp_path / "run"))


class Boundless(gymnasium.Env[Any, Any]):
    observation_space = gymnasium.spaces.Box(-1, 1, (1,))
    action_space = gymnasium.spaces.Box(-np.inf, np.inf, (2,))

    def reset(self, **_: Any) -> Any:
        return np.zeros(1, dtype=np.float32), {}


def test_mistakes() -> None:
    with pytest.raises(ValueError, match=r"env: .* whose bounds must be finite for vmpo, .*; wrap it .*, or use ppo"):
        VMPOTrainer(Boundless, 1, "cpu")
    with pytest.raises(
        ValueError, match=r"env: .* has an unsupported action space: must be a Box, Discrete, .*, got Text.*Wrap"
    ):
        VMPOTrainer(Talking, 1, "cpu")
    with pytest.raises(ValueError, match=r"topk_fraction: must lie in \(0, 1\], got 2.0"):
        VMPOTrainer("Pendulum-v1", 1, "cpu", topk_fraction=2.0)


def test_seed_decides_the_weights_and_leaves_the_global_generator_alone() -> None:
    before = torch.random.get_rng_state()
    trainers = [small_trainer(seed=seed) for seed in (1, 1, 2)]
    assert torch.equal(torch.random.get_rng_state(), before)
    states = [dict(trainer.agent.state_dict()) for trainer in trainers]
    assert same(states[0], states[1]) and not same(states[0], states[2])
    for trainer in trainers:
        trainer.close()


def test_it_learns(tmp_path: Path) -> None:
    trainer = small_trainer(Pulse, rollout_steps=128, m_steps=10, policy_lr=0.005, value_lr=0.01, seed=1)
    result = trainer.train(128 * 12, tmp_path / "run")
    trainer.close()
    assert result.first_evaluation is not None and result.last_evaluation is not None
    assert abs(result.first_evaluation.returns.mean()) < 2.0
    assert result.last_evaluation.returns.mean() > 3.0
