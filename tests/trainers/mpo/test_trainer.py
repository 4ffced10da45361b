from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces

import minerva
from minerva.acceleration.tree import leaves
from minerva.trainers.mpo.trainer import MPOTrainer
from minerva.trainers.mpo.update import Batch
from minerva.utils.running_norm import RunningNorm
from tests.environments.tiny_envs import Noisy
from tests.trainers.mpo.small_run import TOTAL, VARIANTS, small_trainer, train
from tests.trainers.ppo.small_run import logged, metrics_of, same, same_run, state_of

# The schedule


@pytest.mark.parametrize("more", [{"num_envs": 1}, {"num_envs": 3}])
def test_evaluation_does_not_touch_the_run(more: dict[str, Any], tmp_path: Path) -> None:
    train(tmp_path / "off", eval_episodes=0, **more)
    train(tmp_path / "on", eval_interval=1, eval_episodes=2, **more)
    off, on = state_of(tmp_path / "off"), state_of(tmp_path / "on")
    for name in ("agent", "optimizer", "collector", "action_noise", "update_noise", "replay_order"):
        assert str(off[name]) == str(on[name])
    assert all(torch.equal(off["agent"][name], on["agent"][name]) for name in off["agent"])


@pytest.mark.parametrize(
    ("ratio", "interval", "num_envs"), [(1.0, 1, 1), (0.5, 1, 1), (2.0, 1, 1), (1.0, 8, 1), (0.25, 1, 2), (1.0, 1, 4)]
)
def test_updates_follow_the_transitions_collected(ratio: float, interval: int, num_envs: int, tmp_path: Path) -> None:
    counts: dict[int, int] = {}

    def watch(trainer: MPOTrainer) -> None:
        counts[trainer.collector.transitions] = trainer.updates  # before the updates of this step

    trainer = train(
        tmp_path / "run",
        callbacks=watch,
        updates_per_step=ratio,
        update_interval=interval,
        num_envs=num_envs,
        eval_episodes=0,
    )
    counts[trainer.collector.transitions + num_envs] = trainer.updates
    for transitions, updates in counts.items():
        owed = ratio * max(0, transitions - num_envs - 20)
        assert int(owed) - interval * max(ratio, 1) <= updates <= owed
    assert trainer.updates >= ratio * (TOTAL - 20) - interval * ratio - 1
    assert trainer.agent.state.q.steps.item() == trainer.updates
    assert trainer.env_steps == -(-TOTAL // num_envs) * num_envs


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_run_that_is_given_more_steps_is_the_longer_run(variant: str, tmp_path: Path) -> None:
    more = {"eval_episodes": 0, **VARIANTS[variant]}
    train(tmp_path / "whole", 60, **more)
    trainer = small_trainer(**more)
    trainer.train(36, out_dir=tmp_path / "parts")
    trainer.train(60)
    trainer.close()
    one, other = state_of(tmp_path / "whole"), state_of(tmp_path / "parts")
    assert all(torch.equal(one["agent"][name], other["agent"][name]) for name in one["agent"])
    assert torch.equal(one["action_noise"], other["action_noise"])


@pytest.mark.parametrize("overlap", [False, True])
def test_the_policy_that_acts_is_the_newest_or_with_overlap_a_round_older(overlap: bool, tmp_path: Path) -> None:
    trainer = small_trainer(overlap=overlap, eval_episodes=0)
    honest, known = trainer.collector.actor, {}

    def act(*inputs: Any) -> Any:
        known[trainer.env_steps] = int(trainer.agent.state.q.steps)  # of the policy that acts in the next step
        return honest(*inputs)

    trainer.collector.actor = act
    trainer.train(50, out_dir=tmp_path / "run")
    trainer.close()
    assert known == {step: max(0, step - 20 - overlap) for step in range(50 + overlap)}
    assert trainer.updates == 30


def test_the_policy_acts_on_normalized_observations(tmp_path: Path) -> None:
    trainer = small_trainer(normalize_obs=True, num_envs=2, eval_episodes=0)
    honest, normalizer, steps = trainer.collector.actor, trainer.agent.obs_normalizer, 0

    def act(obs: Any, *others: Any) -> Any:
        nonlocal steps
        steps += 1
        raw = trainer.replay.current_obs
        np.testing.assert_array_equal(obs, normalizer(torch.from_numpy(raw)).numpy())
        assert (obs != raw).any()
        return honest(obs, *others)

    trainer.collector.actor = act
    trainer.train(40, out_dir=tmp_path / "run")
    trainer.close()
    assert steps == 20


@pytest.mark.parametrize("more", [{}, {"n_step": 3}, {"use_retrace": True, "retrace_steps": 4}])
def test_it_learns_from_normalized_observations(more: dict[str, Any], tmp_path: Path) -> None:
    trainer = train(tmp_path / "run", 60, normalize_obs=True, num_envs=2, eval_episodes=0, **more)
    order, config = copy.deepcopy(trainer.replay_order), trainer.config
    raw: Any = (
        trainer.replay.sample_windows(8, 4, order)
        if config.sequences
        else trainer.replay.sample(8, order, config.n_step, config.gamma)
    )
    normalizer = trainer.agent.obs_normalizer
    assert isinstance(normalizer, RunningNorm)
    (batch,) = trainer._sample(1)
    for found, rows in ((batch.obs, raw.obs), (batch.next_obs, raw.next_obs)):
        expected = (rows - normalizer.mean.numpy()) / np.sqrt(normalizer.var.numpy() + 1e-8)
        np.testing.assert_allclose(found.numpy(), expected, rtol=1e-4, atol=1e-5)


def test_arguments_of_train_are_those_of_the_specification(tmp_path: Path) -> None:
    trainer = small_trainer()
    trainer.train(60, 40, 4, tmp_path / "run")
    trainer.close()
    assert (trainer.updates, trainer.config.batch_size, trainer.config.update_after) == (20, 4, 40)


def test_restarting_steps_are_no_transitions(tmp_path: Path) -> None:
    trainer = train(tmp_path / "run", 450, num_envs=1, updates_per_step=0.1)
    # Pendulum's episodes last 200 steps: two restarts in 450 steps.
    assert (trainer.env_steps, trainer.collector.transitions) == (450, 448)


def test_a_run_too_short_for_an_update_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"total_steps: must be more than update_after = 20, .* got 20: nothing would"):
        train(tmp_path / "run", 20)
    assert not (tmp_path / "run").exists()


def test_metrics_are_logged_at_the_interval(tmp_path: Path) -> None:
    train(tmp_path / "run", eval_episodes=0)
    steps = [step for step, _ in logged(tmp_path / "run", "loss/q")]
    assert steps == [21, *range(30, TOTAL + 1, 10)]
    names = {name for _, name, _ in metrics_of(tmp_path / "run")}
    assert {"eta", "alpha_mean", "alpha_std", "health/ess", "health/kl_mean_ratio", "health/dropped"} <= names


def test_the_same_seed_gives_the_same_run_and_another_another(tmp_path: Path) -> None:
    for name, seed in (("one", 1), ("two", 1), ("three", 2)):
        train(tmp_path / name, seed=seed)
    assert same_run(tmp_path / "one", tmp_path / "two")
    assert not torch.equal(*(state_of(tmp_path / name)["agent"]["q.head.weight"] for name in ("one", "three")))


# What goes wrong


class Broken(gymnasium.Env[Any, Any]):
    """Every fourth observation and every seventh reward is not a number."""

    observation_space = gymnasium.spaces.Box(-10, 10, (2,), np.float32)
    action_space = gymnasium.spaces.Box(-1, 1, (1,), np.float32)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        self.steps = 0
        return np.zeros(2, np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.steps += 1
        obs = np.full(2, self.steps % 5 if self.steps % 4 else np.nan, np.float32)
        return obs, float("inf") if self.steps % 7 == 0 else 1.0, False, self.steps == 20, {}


@pytest.mark.parametrize("normalize_obs", [False, True])
def test_transitions_that_are_not_finite_are_dropped_and_told_and_the_run_goes_on(
    normalize_obs: bool, tmp_path: Path
) -> None:
    with pytest.warns(RuntimeWarning, match="not finite") as warned:
        trainer = train(tmp_path / "run", env_id=Broken, normalize_obs=normalize_obs)
    assert trainer.replay.dropped > 40
    assert len(warned) == 5
    assert (tmp_path / "run" / "notes.log").read_text().count("Warning: custom:") == 5
    assert trainer.agent.skipped == 0 and trainer.updates == trainer.collector.transitions - 20 > 30
    assert all(torch.isfinite(value).all() for value in trainer.agent.state_dict().values())
    assert logged(tmp_path / "run", "health/dropped")[-1][1] > 40


def test_an_update_that_is_not_finite_changes_nothing_and_the_run_goes_on(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    trainer = small_trainer(eval_episodes=0, log_interval=1)
    sample = trainer._sample

    def spoiled(count: int) -> Any:
        batches = sample(count)
        if 3 <= trainer.updates < 6:
            batches[0].rewards[2] = float("nan")
        return batches

    monkeypatch.setattr(trainer, "_sample", spoiled)
    states: list[list[Any]] = []
    with pytest.warns(RuntimeWarning, match="skipped"):
        trainer.train(
            60,
            out_dir=tmp_path / "run",
            callbacks=lambda t: states.append([part.clone() for part in leaves(t.agent.state)]),
        )
    trainer.close()
    first = 20 + 3  # the state before update 3 is seen at the step before it
    for later in range(first, first + 4):
        assert all(torch.equal(a, b) for a, b in zip(states[first], states[later], strict=True))
    assert not torch.equal(states[first][0], states[first + 4][0])
    assert trainer.agent.skipped == 3 and trainer.updates == 40
    assert "Warning: a batch gave a number that is not finite" in (tmp_path / "run" / "notes.log").read_text()
    assert logged(tmp_path / "run", "health/skipped")[-1][1] == 3


def test_dropped_transitions_of_several_environments_at_once_are_told(tmp_path: Path) -> None:
    with pytest.warns(RuntimeWarning, match="not finite") as warned:
        train(tmp_path / "run", env_id=Broken, num_envs=8)
    assert "(8 so far)" in str(warned[0].message)


def test_what_is_wrong_with_learning_is_told_without_a_console(tmp_path: Path) -> None:
    # A large step, a tiny bound, and multipliers that hold nothing back.
    with (
        pytest.warns(RuntimeWarning, match="Health: the policy's standard deviation has moved"),
        pytest.warns(RuntimeWarning, match="Health: the policy's mean has moved"),
    ):
        train(
            tmp_path / "run",
            policy_lr=0.3,
            mstep_kl_epsilon=1e-6,
            init_log_alpha_mean=-10.0,
            init_log_alpha_stddev=-10.0,
            log_interval=1,
            eval_episodes=0,
        )


class Wide(Noisy):
    """Of its observations, 2³¹ take 80 TB."""

    observation_space = spaces.Box(-1, 1, (10_000,), np.float32)


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"env_id": "CartPole-v1"}, "action space"),
        ({"batch_size": 101}, r"batch_size: must be at most replay_size = 100"),
        ({"use_retrace": True, "retrace_steps": 101}, r"retrace_steps: must be at most replay_size / num_envs = 100"),
        ({"n_step": 40, "num_envs": 3}, r"n_step: must be at most replay_size / num_envs = 33"),
        ({"use_retrace": True, "n_step": 5}, r"n_step: must be 1 together with use_retrace"),
        ({"replay_size": 10**15}, r"replay_size: must be at most 2,147,483,647, got 1000000000000000"),
        (
            {"env_id": Wide, "replay_size": 2**31 - 1},
            r"replay_size: there is not enough memory .* choose a smaller one",
        ),
    ],
)
def test_settings_that_cannot_work_are_refused(more: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        small_trainer(**more)


# What comes of it


def test_a_saved_policy_acts_as_the_trainer_does(tmp_path: Path) -> None:
    trainer = train(tmp_path / "run", normalize_obs=True)
    policy = minerva.load(tmp_path / "run")
    obs = np.random.default_rng(0).normal(size=(5, 3)).astype(np.float32)
    expected = trainer.agent.act(obs, deterministic=True)
    np.testing.assert_array_equal(policy.act(obs), expected)
    assert np.abs(expected).max() <= 2.0  # Pendulum's bounds
    samples = policy.act(np.repeat(obs[:1], 200, axis=0), deterministic=False)
    assert samples.std() > 0.1


def test_it_learns(tmp_path: Path) -> None:
    trainer = MPOTrainer(
        "Pendulum-v1", 1, "cpu", policy_layer_sizes=(64, 64), critic_layer_sizes=(64, 64), batch_size=64, console=False,
        compile=False, eval_interval=10_000, temperature_lr=1e-2, lambda_lr=1e-2, mstep_kl_epsilon=5e-3,
        mstep_kl_epsilon_stddev=1e-4, init_log_alpha_mean=1.0, init_log_alpha_stddev=1.0, policy_lr=1e-3, q_lr=1e-3,
        updates_per_step=0.5, max_grad_norm=40.0,
    )  # fmt: skip
    result = trainer.train(6_000, out_dir=tmp_path / "run")
    trainer.close()
    assert result.first_evaluation is not None and result.last_evaluation is not None
    assert result.first_evaluation.returns.mean() < -900
    assert result.last_evaluation.returns.mean() > -350


def test_metrics_of_the_loop_are_those_of_update(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    # The loop's form and the public one must be the same computation.
    trainer = small_trainer(eval_episodes=0, log_interval=1)
    twin = small_trainer()
    twin.agent.load_state_dict(trainer.agent.state_dict())
    twin.update_noise.set_state(trainer.update_noise.get_state())
    sample = trainer._sample
    public: list[dict[str, float] | None] = []

    def watch(count: int) -> Any:
        batches = sample(count)
        for b in batches:
            assert isinstance(b, Batch)
            column = {"rewards": b.rewards[:, None], "discounts": b.discounts[:, None]}
            public.append(
                twin.agent.update({"obs": b.obs, "actions_exec": b.actions, "next_obs": b.next_obs, **column})
            )
        return batches

    monkeypatch.setattr(trainer, "_sample", watch)
    trainer.train(40, out_dir=tmp_path / "run")
    trainer.close()
    twin.close()
    assert len(public) == 20
    for (_, value), metrics in zip(logged(tmp_path / "run", "loss/policy"), public, strict=True):
        assert metrics is not None and metrics["loss/policy"] == value
    assert same(leaves(trainer.agent.state), leaves(twin.agent.state))
