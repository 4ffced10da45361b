from __future__ import annotations

import signal
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch

from benchmarks.kill_and_resume import Case, Kill, Worker, compare, run_disturbed
from minerva import checkpointing
from minerva.checkpointing import CheckpointError
from minerva.trainers.run import RunState
from tests.trainers.ppo.small_run import (
    ROLLOUT,
    TOTAL,
    assert_resumes_exactly,
    metrics_of,
    same,
    same_run,
    small_trainer,
    snapshot,
    state_of,
    train,
)

# Killed for good, in real processes


def kill_case(env_id: str, num_envs: int, total_steps: int) -> Case:
    return Case(
        env_id,
        num_envs,
        total_steps,
        fields={
            "rollout_steps": 64,
            "update_epochs": 3,
            "eval_episodes": 1,
            "eval_interval": 500,
            "eval_max_steps": 50,
            "checkpoint_interval": 100,  # most of them fall into the middle of a rollout
        },
    )


@pytest.mark.parametrize(
    ("env_id", "num_envs", "total_steps", "kills"),
    [
        # benchmarks/kill_and_resume.py does this ten times a run, at random, on three environments.
        ("Pendulum-v1", 1, 2048, [Kill(700, 0.013), Kill(1500, 0.041)]),
        ("HalfCheetah-v5", 4, 4096, [Kill(None, 1.2), Kill(900, 0.027), Kill(2300, 0.055)]),
    ],
)
def test_killed_and_resumed_ends_bit_identical(
    env_id: str, num_envs: int, total_steps: int, kills: list[Kill], tmp_path: Path
) -> None:
    case = kill_case(env_id, num_envs, total_steps)
    undisturbed = case.make_trainer()
    undisturbed.train(total_steps, out_dir=tmp_path / "undisturbed")
    undisturbed.close()
    done = run_disturbed(case, tmp_path / "disturbed", kills)
    assert all(kill["code"] == -signal.SIGKILL for kill in done)
    assert done[-1]["saved"] is not None and 0 < done[-1]["saved"] <= done[-1]["killed_at"] < total_steps
    assert compare(tmp_path / "undisturbed", tmp_path / "disturbed") == dict.fromkeys(
        ["weights", "optimizer", "reward_normalizer", "generators", "environments", "rollout", "chosen", "counters",
         "metrics", "best"],
        True,
    )  # fmt: skip


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, -signal.SIGINT), (signal.SIGTERM, 128 + signal.SIGTERM)])
def test_a_signal_in_mid_rollout_saves_and_exits_and_the_run_goes_on_exactly(
    number: int, code: int, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    total, rollout = 8192, 4096  # a rollout that lasts, so that the signal finds it under way
    case = Case(
        "Pendulum-v1", 1, total, fields={**small_fields(), "rollout_steps": rollout, "checkpoint_interval": None}
    )
    worker = Worker(case, tmp_path / "run")
    assert worker.reach(500)
    worker.process.send_signal(number)
    assert worker.finish() == code
    state = state_of(tmp_path / "run")
    # The step that was under way was finished, no checkpoint was due, and what was saved is where it stopped.
    assert 500 <= state["env_steps"] == worker.step < total
    assert state["env_steps"] % rollout == state["collector"]["rollout"]["position"] > 0
    trainer = case.make_trainer()
    trainer.load(tmp_path / "run")
    trainer.train(total)
    whole = case.make_trainer()
    whole.train(total, out_dir=tmp_path / "whole")
    for finished in (trainer, whole):
        finished.close()
    assert all(compare(tmp_path / "run", tmp_path / "whole").values())


def small_fields() -> dict[str, Any]:
    return {"rollout_steps": 512, "update_epochs": 1, "eval_episodes": 1, "eval_max_steps": 5, "minibatch_size": 512}


def test_comparison_sees_a_difference(tmp_path: Path) -> None:
    # The evidence is worth as much as the comparison: each part of it can fail.
    train(tmp_path / "one")
    train(tmp_path / "two")
    assert all(compare(tmp_path / "one", tmp_path / "two").values())
    path = tmp_path / "two" / "ppo_last.pt"
    changes: dict[str, Callable[[dict[str, Any]], Any]] = {
        "weights": lambda saved: saved["state"]["agent"]["policy.policy_logstd"].add_(1.0),
        "optimizer": lambda saved: saved["state"]["optimizer"]["policy.average"].add_(1.0),
        "reward_normalizer": lambda saved: saved["state"]["collector"]["reward_normalizer"]["statistics.var"].add_(1.0),
        "generators": lambda saved: saved["state"]["action_noise"].add_(1),
        "environments": lambda saved: saved["state"]["collector"]["env"]["episode_seeds"].__setitem__(0, 1),
        "rollout": lambda saved: saved["state"]["collector"]["rollout"]["obs"].add_(1.0),
        "counters": lambda saved: saved["run"].__setitem__("updates", 5),
    }
    for part, change in changes.items():
        checkpoint = checkpointing.read(path)
        kept = path.read_bytes()
        change(checkpoint)
        checkpointing.write(path, checkpoint)
        verdict = compare(tmp_path / "one", tmp_path / "two")
        assert [name for name, equal in verdict.items() if not equal] == [part]
        path.write_bytes(kept)
    with (tmp_path / "two" / "metrics.csv").open("a") as file:
        file.write("96,losses/value_loss,1.0\n96,charts/SPS,1.0\n")
    assert not compare(tmp_path / "one", tmp_path / "two")["metrics"]


# In this process: every step


@pytest.mark.parametrize("env_id", ["Pendulum-v1", "Hopper-v5", "dm_control/cartpole/swingup"])
def test_every_kind_of_environment_goes_on_exactly(env_id: str, tmp_path: Path) -> None:
    fields: dict[str, Any] = {"num_envs": 2, "eval_max_steps": 3}
    total = 2 * ROLLOUT * 6
    # Stopped and resumed again and again: restarts, full rollouts and first steps are among the steps that this hits.
    stops = [2, 34, 64, 66, 100, 130]
    assert_resumes_exactly(lambda: small_trainer(env_id, **fields), stops, total, tmp_path)


@pytest.mark.parametrize("step", range(1, 2 * ROLLOUT + 2, 3))
def test_any_step_is_a_good_one_to_resume_from(step: int, tmp_path: Path) -> None:
    # Episodes of 7 steps: terminations, restarting steps and first steps come by in turn.
    fields: dict[str, Any] = {"env_kwargs": {"max_episode_steps": 7}, "eval_episodes": 0, "update_epochs": 1}
    whole = train(tmp_path / "whole", ROLLOUT * 3, **fields)
    train(tmp_path / "run", ROLLOUT * 3, lambda trainer: trainer.env_steps < step, **fields)
    trainer = small_trainer(**fields)
    trainer.load(tmp_path / "run")
    trainer.train(ROLLOUT * 3)
    trainer.close()
    assert whole.env_steps == trainer.env_steps
    assert same_run(tmp_path / "whole", tmp_path / "run")


def test_a_saved_state_is_not_changed_by_what_follows(tmp_path: Path) -> None:
    trainer = small_trainer()
    trainer.train(TOTAL, tmp_path / "run", lambda trainer: trainer.env_steps < 20)
    state = trainer.state_dict()
    collector = state["collector"]
    before = torch.cat(
        [collector["rollout"]["obs"].flatten(), *[a.flatten() for a in collector["env"]["actions"]]]
    ).clone()
    trainer.train(TOTAL)
    trainer.close()
    after = torch.cat([collector["rollout"]["obs"].flatten(), *[a.flatten() for a in collector["env"]["actions"]]])
    assert torch.equal(before, after)


# Damaged and foreign checkpoints


def test_a_damaged_last_checkpoint_falls_back_to_the_best_and_says_so(tmp_path: Path) -> None:
    train(tmp_path / "whole")
    train(tmp_path / "run")
    last = tmp_path / "run" / "ppo_last.pt"
    last.write_bytes(last.read_bytes()[:-100])
    best = state_of(tmp_path / "run", "best")["env_steps"]
    trainer = small_trainer()
    trainer.load(tmp_path / "run")
    assert trainer.env_steps == best
    assert any("ppo_last.pt is damaged" in note and "ppo_best.pt instead" in note for note in trainer.notes)
    with pytest.warns(RuntimeWarning, match=r"ppo_last.pt is damaged .* Using ppo_best.pt instead"):
        trainer.train(TOTAL)
    trainer.close()
    assert same_run(tmp_path / "whole", tmp_path / "run")


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"env_id": "InvertedPendulum-v5"}, "was made on Pendulum-v1, whose observation space is not that of Inverted"),
        ({"num_envs": 2}, "was made with num_envs = 1, got 2; give the same"),
        ({"policy_layer_sizes": (9,)}, r"was made with policy_layer_sizes = \[8\], got \[9\]"),
        ({"critic_layer_sizes": (9,)}, r"was made with critic_layer_sizes = \[8\], got \[9\]"),
        ({"normalize_obs": False}, "was made with normalize_obs = True, got False"),
        ({"normalize_reward": False}, "was made with normalize_reward = True, got False"),
        ({"rollout_steps": ROLLOUT // 2}, f"was made with rollout_steps = {ROLLOUT}, got {ROLLOUT // 2}"),
        ({"optimizer_type": "sgd"}, "was made with optimizer_type = adam, got sgd"),
    ],
)
def test_a_checkpoint_of_another_shape_is_refused(fields: dict[str, Any], message: str, tmp_path: Path) -> None:
    train(tmp_path / "run", ROLLOUT)
    before = snapshot(tmp_path / "run")
    trainer = small_trainer(**fields)
    state = trainer.state_dict()
    with pytest.raises(CheckpointError, match=message):
        trainer.load(tmp_path / "run")
    assert same(trainer.state_dict(), state) and trainer.run_state == RunState()
    trainer.close()
    assert snapshot(tmp_path / "run") == before


def test_a_checkpoint_of_another_algorithm_is_refused(tmp_path: Path) -> None:
    train(tmp_path / "run", ROLLOUT)
    checkpoint = checkpointing.read(tmp_path / "run" / "ppo_last.pt")
    checkpointing.write(tmp_path / "run" / "mpo_last.pt", {**checkpoint, "algorithm": "mpo"})
    trainer = small_trainer()
    for load in (trainer.load, trainer.init_from):
        with pytest.raises(CheckpointError, match=r"is one of mpo, not of ppo; use `minerva train mpo`"):
            load(tmp_path / "run" / "mpo_last.pt")
    trainer.close()


def test_an_action_space_of_another_size_is_refused(tmp_path: Path) -> None:
    class Wide(gymnasium.Env[Any, Any]):
        observation_space = gymnasium.make("Pendulum-v1").observation_space
        action_space = gymnasium.spaces.Box(-2, 2, (3,))

        def reset(self, **_: Any) -> Any:
            return np.zeros(3, dtype=np.float32), {}

    train(tmp_path / "run", ROLLOUT)
    trainer = small_trainer(Wide)
    with pytest.raises(CheckpointError, match="whose action space is not that of custom"):
        trainer.load(tmp_path / "run")
    trainer.close()


def test_an_environment_that_is_not_deterministic_goes_on_and_says_so(tmp_path: Path) -> None:
    noise = iter(range(10_000_000))

    class Drifting(gymnasium.Env[Any, Any]):
        observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (1,))
        action_space = gymnasium.spaces.Box(-1, 1, (1,))

        def reset(self, **_: Any) -> Any:
            return np.array([next(noise)], dtype=np.float32), {}

        def step(self, action: Any) -> Any:
            return np.array([next(noise)], dtype=np.float32), 0.0, False, False, {}

    train(tmp_path / "run", ROLLOUT * 2, lambda trainer: trainer.env_steps < 20, env_id=Drifting, eval_episodes=0)
    trainer = small_trainer(Drifting, eval_episodes=0)
    trainer.load(tmp_path / "run")
    assert any("not deterministic" in note for note in trainer.notes)
    with pytest.warns(RuntimeWarning, match="Note: environment 0 did not return to its saved state"):
        assert trainer.train(ROLLOUT * 2).updates == 2
    trainer.close()


def test_what_a_checkpoint_holds(tmp_path: Path) -> None:
    train(tmp_path / "run", 2 * ROLLOUT, num_envs=2)
    checkpoint = checkpointing.read(tmp_path / "run" / "ppo_last.pt")
    assert (checkpoint["algorithm"], checkpoint["env_id"], checkpoint["seed"]) == ("ppo", "Pendulum-v1", 1)
    assert checkpoint["config"]["num_envs"] == 2 and checkpoint["versions"]["torch"] == version("torch")
    assert checkpoint["observation_space"]["shape"] == [3] and checkpoint["action_space"]["shape"] == [1]
    assert {"obs_normalizer.mean", "obs_normalizer.var", "obs_normalizer.count", "policy.policy_logstd"} <= checkpoint[
        "state"
    ]["agent"].keys()
    assert metrics_of(tmp_path / "run")


def test_a_run_is_evaluated_on_its_own_seeds_whatever_the_trainer_was_made_with(tmp_path: Path) -> None:
    train(tmp_path / "run", ROLLOUT)
    whole, other = small_trainer(), small_trainer(seed=123)
    for trainer in (whole, other):
        trainer.load(tmp_path / "run")
    assert other.seed == whole.seed
    assert np.array_equal(other.evaluate().returns, whole.evaluate().returns)
    whole.close()
    other.close()
