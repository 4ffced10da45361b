from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch

import minerva
from benchmarks.kill_and_resume import Case, Kill, compare, run_disturbed
from minerva import checkpointing
from minerva.callbacks import Callback
from minerva.trainers.mpo import trainer as trainer_module
from minerva.trainers.mpo.trainer import MPOTrainer
from minerva.trainers.mpo.update import Batch
from minerva.trainers.trainer import memory_folder
from tests.trainers.ppo.small_run import logged, metrics_of, same_run, state_of

TOTAL = 160


def fields(**more: Any) -> dict[str, Any]:
    return {
        "policy_layer_sizes": (8, 8),
        "critic_layer_sizes": (8, 8),
        "replay_size": 100,  # it overflows
        "update_after": 20,
        "batch_size": 8,
        "action_samples": 4,
        "log_interval": 10,
        "eval_episodes": 1,
        "eval_max_steps": 5,
        "console": False,
        "compile": False,
        **more,
    }


def small(env_id: Any = "Pendulum-v1", seed: int = 1, **more: Any) -> MPOTrainer:
    return MPOTrainer(env_id, seed, "cpu", **fields(**more))


def train(folder: Path, total_steps: int = TOTAL, callbacks: Any = None, **more: Any) -> MPOTrainer:
    trainer = small(**more)
    try:
        trainer.train(total_steps, out_dir=folder, callbacks=callbacks)
    finally:
        trainer.close()
    return trainer


VARIANTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "several environments": {"num_envs": 3, "n_step": 3, "normalize_obs": True, "update_interval": 4},
    "retrace": {"use_retrace": True, "retrace_steps": 4, "action_penalization": True, "updates_per_step": 0.3},
    "overlap": {"overlap": True, "num_envs": 2, "update_interval": 6},
    "moving average": {"target_tau": 0.01, "m_steps": 2, "optimizer_type": "sgd", "updates_per_step": 1.7},
}


# Resume


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("step", [1, 19, 77])
def test_a_run_that_is_stopped_and_resumed_is_bit_for_bit_the_same(variant: str, step: int, tmp_path: Path) -> None:
    more = VARIANTS[variant]
    train(tmp_path / "whole", **more)
    train(tmp_path / "run", callbacks=lambda trainer: trainer.env_steps < step, **more)
    assert step <= state_of(tmp_path / "run")["env_steps"] < step + 3
    resumed = small(**more)
    resumed.load(tmp_path / "run")
    resumed.train()
    resumed.close()
    # A callback's stop is followed by an evaluation of its own, which a run in one go does not have.
    verdict = compare(tmp_path / "whole", tmp_path / "run")
    assert {name for name, equal in verdict.items() if not equal} <= {"metrics", "best", "counters"}
    assert verdict["weights"] and verdict["optimizer"] and verdict["replay"] and verdict["generators"]
    updates = [row for row in metrics_of(tmp_path / "run") if not row[1].startswith("eval/")]
    assert updates == [row for row in metrics_of(tmp_path / "whole") if not row[1].startswith("eval/")]


@pytest.mark.parametrize(
    ("env_id", "num_envs", "total_steps", "kills"),
    [
        ("Pendulum-v1", 1, 700, [Kill(150, 0.013), Kill(420, 0.041)]),
        ("HalfCheetah-v5", 2, 900, [Kill(None, 1.2), Kill(300, 0.027), Kill(600, 0.055)]),
    ],
)
def test_killed_and_resumed_ends_bit_identical(
    env_id: str, num_envs: int, total_steps: int, kills: list[Kill], tmp_path: Path
) -> None:
    more = fields(replay_size=400, eval_interval=200, checkpoint_interval=40, use_retrace=True, retrace_steps=3)
    more["overlap"] = num_envs > 1
    case = Case(env_id, num_envs, total_steps, fields=more, algo="mpo")
    undisturbed = case.make_trainer()
    undisturbed.train(total_steps, out_dir=tmp_path / "undisturbed")
    undisturbed.close()
    done = run_disturbed(case, tmp_path / "disturbed", kills)
    assert all(kill["code"] == -signal.SIGKILL for kill in done)
    assert compare(tmp_path / "undisturbed", tmp_path / "disturbed") == dict.fromkeys(
        [
            "weights",
            "optimizer",
            "generators",
            "environments",
            "transitions",
            "current_obs",
            "chosen",
            "counters",
            "metrics",
            "replay",
            "best",
        ],
        True,
    )


def test_the_comparison_sees_a_difference_in_the_replay(tmp_path: Path) -> None:
    train(tmp_path / "one")
    trainer = train(tmp_path / "two")
    assert compare(tmp_path / "one", tmp_path / "two")["replay"]
    trainer.memory.rewards[3] += 1
    trainer.memory._saved.clear()  # so that all of it is written again
    trainer.save(tmp_path / "two" / "mpo_last.pt")
    assert not compare(tmp_path / "one", tmp_path / "two")["replay"]


def test_the_best_checkpoint_holds_no_replay_and_a_run_can_go_on_from_it(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    train(tmp_path / "run", eval_interval=40)
    best = tmp_path / "run" / "mpo_best.pt"
    assert checkpointing.read(best)["memory"] is None and not memory_folder(best).exists()
    assert memory_folder(tmp_path / "run" / "mpo_last.pt").is_dir()
    resumed = small()
    resumed.load(best)
    at, updates = resumed.collector.transitions, resumed.updates
    assert len(resumed.memory) == 0
    assert any("holds no replay" in note for note in resumed.notes)
    made: list[int] = []
    resumed.train(at + 60, out_dir=tmp_path / "other", callbacks=lambda trainer: made.append(trainer.updates - updates))
    resumed.close()
    # Nothing is learned from a replay of a few transitions.
    assert made[18] == 0 and made[-1] > 30


def test_a_checkpoint_may_be_saved_without_the_replay_on_request(tmp_path: Path) -> None:
    trainer = train(tmp_path / "run")
    trainer.save(tmp_path / "small.pt", memory=False)
    trainer.save(tmp_path / "whole.pt")
    assert not memory_folder(tmp_path / "small.pt").exists() and memory_folder(tmp_path / "whole.pt").is_dir()
    again = small()
    again.load(tmp_path / "whole.pt")
    np.testing.assert_array_equal(again.memory.obs, trainer.memory.obs)
    again.close()


def test_a_damaged_replay_is_told_and_costs_nothing_but_the_replay(tmp_path: Path) -> None:
    whole = train(tmp_path / "run")
    segment = next(memory_folder(tmp_path / "run" / "mpo_last.pt").iterdir())
    segment.write_bytes(segment.read_bytes()[:-7])
    trainer = small()
    trainer.load(tmp_path / "run")
    trainer.close()
    assert any("segment" in note and "20 transitions are collected" in note for note in trainer.notes), trainer.notes
    assert len(trainer.memory) == 0
    assert all(torch.equal(a, b) for a, b in zip(trainer.agent.learned, whole.agent.learned, strict=True))


def test_a_checkpoint_without_a_replay_empties_that_of_the_trainer_it_is_loaded_into(tmp_path: Path) -> None:
    trainer = train(tmp_path / "run")
    trainer.save(tmp_path / "small.pt", memory=False)
    other = small(seed=2)
    other.train(TOTAL, out_dir=tmp_path / "other")
    assert len(other.memory) > 50
    other.load(tmp_path / "small.pt")
    other.close()
    assert len(other.memory) == 0 and np.array_equal(other.memory.current_obs, trainer.memory.current_obs)


def test_checkpoints_with_dots_in_their_names_do_not_share_a_replay(tmp_path: Path) -> None:
    trainer = small()
    trainer.train(60, out_dir=tmp_path / "run")
    trainer.save(tmp_path / "x.step60")
    kept = trainer.memory.obs.copy()
    trainer.collector.step()
    trainer.save(tmp_path / "x.step61")
    again = small()
    again.load(tmp_path / "x.step60")
    again.close()
    trainer.close()
    np.testing.assert_array_equal(again.memory.obs[: again.memory._head], kept[: again.memory._head])


@pytest.mark.parametrize("overlap", [False, True])
def test_a_callback_that_fails_before_an_update_loses_none(overlap: bool, tmp_path: Path) -> None:
    train(tmp_path / "whole", overlap=overlap)

    class Fails(Callback):
        def on_rollout_end(self, trainer: Any) -> None:
            if trainer.env_steps == 70:
                raise RuntimeError("no")

    with pytest.raises(RuntimeError, match="no"):
        train(tmp_path / "run", callbacks=Fails(), overlap=overlap)
    assert (state_of(tmp_path / "run")["collector"]["chosen"] is not None) == overlap
    resumed = small(overlap=overlap)
    resumed.load(tmp_path / "run")
    resumed.train()
    resumed.close()
    assert all(compare(tmp_path / "whole", tmp_path / "run").values())


def test_update_after_may_be_changed_until_the_first_update(tmp_path: Path) -> None:
    train(tmp_path / "run", 50 + 400, update_after=400, callbacks=lambda trainer: trainer.env_steps < 50)
    resumed = small(update_after=400)
    resumed.load(tmp_path / "run")
    resumed.train(100, update_after=60)
    resumed.close()
    assert resumed.updates == 40


def test_a_compiled_run_goes_on_without_a_compiler(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    train(tmp_path / "run", callbacks=lambda trainer: trainer.env_steps < 50)
    resumed = small(compile="auto", console=True)
    resumed.load(tmp_path / "run")
    resumed.acceleration = "compiled"
    monkeypatch.setattr(trainer_module, "compiler_available", lambda: False)
    resumed.train(80)
    resumed.close()
    assert str(resumed.acceleration) == "none" and "No C++ compiler" in capsys.readouterr().out


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
    assert trainer.agent.learned.updates.item() == trainer.updates
    assert trainer.env_steps == -(-TOTAL // num_envs) * num_envs


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_run_that_is_given_more_steps_is_the_longer_run(variant: str, tmp_path: Path) -> None:
    more = {"eval_episodes": 0, **VARIANTS[variant]}
    train(tmp_path / "whole", 60, **more)
    trainer = small(**more)
    trainer.train(36, out_dir=tmp_path / "parts")
    trainer.train(60)
    trainer.close()
    one, other = state_of(tmp_path / "whole"), state_of(tmp_path / "parts")
    assert all(torch.equal(one["agent"][name], other["agent"][name]) for name in one["agent"])
    assert torch.equal(one["action_noise"], other["action_noise"])


@pytest.mark.parametrize("overlap", [False, True])
def test_the_policy_that_acts_is_the_newest_or_with_overlap_a_round_older(overlap: bool, tmp_path: Path) -> None:
    trainer = small(overlap=overlap, eval_episodes=0)
    honest, known = trainer.collector._act, {}

    def act(obs: Any) -> Any:
        known[trainer.env_steps] = int(trainer.agent.learned.updates)  # of the policy that acts in the next step
        return honest(obs)

    trainer.collector._act = act
    trainer.train(50, out_dir=tmp_path / "run")
    trainer.close()
    assert known == {step: max(0, step - 20 - overlap) for step in range(50 + overlap)}
    assert trainer.updates == 30


def test_arguments_of_train_are_those_of_the_specification(tmp_path: Path) -> None:
    trainer = small()
    trainer.train(60, 40, 4, tmp_path / "run")
    trainer.close()
    assert (trainer.updates, trainer.config.batch_size, trainer.config.update_after) == (20, 4, 40)


def test_restarting_steps_are_no_transitions(tmp_path: Path) -> None:
    trainer = train(tmp_path / "run", 450, num_envs=1, updates_per_step=0.1)
    # Pendulum's episodes last 200 steps: two restarts in 450 steps.
    assert (trainer.env_steps, trainer.collector.transitions) == (450, 448)


def test_a_run_too_short_for_an_update_says_so(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    train(tmp_path / "run", 20)
    said = capsys.readouterr().out
    assert "total_steps = 20" in said and "update_after = 20" in said and not (tmp_path / "run").exists()


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
    assert trainer.memory.dropped > 40
    assert len(warned) == 5
    assert trainer.agent.skipped == 0 and trainer.updates == trainer.collector.transitions - 20 > 30
    assert all(torch.isfinite(value).all() for value in trainer.agent.state_dict().values())
    assert logged(tmp_path / "run", "health/dropped")[-1][1] > 40


def test_an_update_that_is_not_finite_changes_nothing_and_the_run_goes_on(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    trainer = small(eval_episodes=0, log_interval=1)
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
            callbacks=lambda t: states.append([part.clone() for part in t.agent.learned]),
        )
    trainer.close()
    first = 20 + 3  # the state before update 3 is seen at the step before it
    for later in range(first, first + 4):
        assert all(torch.equal(a, b) for a, b in zip(states[first], states[later], strict=True))
    assert not torch.equal(states[first][0], states[first + 4][0])
    assert trainer.agent.skipped == 3 and trainer.updates == 40
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


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"env_id": "CartPole-v1"}, "action space"),
        ({"batch_size": 101}, r"batch_size: must be at most replay_size = 100"),
        ({"use_retrace": True, "retrace_steps": 101}, r"retrace_steps: must be at most replay_size / num_envs = 100"),
        ({"n_step": 40, "num_envs": 3}, r"n_step: must be at most replay_size / num_envs = 33"),
        ({"use_retrace": True, "n_step": 5}, r"n_step: must be 1 together with use_retrace"),
        ({"replay_size": 10**15}, r"replay_size: there is not enough memory .* choose a smaller one"),
    ],
)
def test_settings_that_cannot_work_are_refused(more: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        small(**more)


# What comes of it


def test_a_saved_policy_acts_as_the_trainer_does(tmp_path: Path) -> None:
    trainer = train(tmp_path / "run", normalize_obs=True)
    policy = minerva.load(tmp_path / "run")
    obs = np.random.default_rng(0).normal(size=(5, 3)).astype(np.float32)
    expected = trainer.deterministic_action(torch.from_numpy(obs)).numpy()
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
    trainer = small(eval_episodes=0, log_interval=1)
    twin = small()
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
    assert all(torch.equal(a, b) for a, b in zip(trainer.agent.learned, twin.agent.learned, strict=True))
