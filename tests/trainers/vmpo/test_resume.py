from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from minerva.acceleration import applied
from minerva.acceleration.applied import Acceleration
from minerva.acceleration.compiled import compiler_available
from minerva.checkpointing import CheckpointError
from minerva.trainers.vmpo.trainer import VMPOTrainer
from tests.trainers.ppo.small_run import assert_resumes_exactly, same, same_run, state_of
from tests.trainers.vmpo.small_run import ROLLOUT, TOTAL, small_trainer, train


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"env_id": "Hopper-v5", "num_envs": 2, "eval_max_steps": 3, "advantage_estimator": "gae"},
        {"optimizer_type": "sgd", "normalize_reward": True, "ppo_like_backbone": True},
        {"minibatches": 4, "recompute_advantages": True, "anneal_lr": True, "m_steps": 2},
    ],
)
def test_a_run_goes_on_bit_for_bit(fields: dict[str, Any], tmp_path: Path) -> None:
    # Before the first update, in the middle of a rollout, at its end, after it.
    count = fields.get("num_envs", 1)
    stops = [count * step for step in (1, ROLLOUT - 1, ROLLOUT, ROLLOUT + 1, 3 * ROLLOUT + 5)]
    trainer = assert_resumes_exactly(lambda: small_trainer(**fields), stops, count * TOTAL, tmp_path)
    assert state_of(tmp_path / "run")["updates"] == count * TOTAL // trainer.config.batch_size


@pytest.mark.parametrize("step", range(2, 2 * ROLLOUT, 5))
def test_any_step_is_a_good_one_to_resume_from(step: int, tmp_path: Path) -> None:
    # Episodes of 7 steps: ends, restarting steps and first steps come by in turn.
    fields: dict[str, Any] = {"env_kwargs": {"max_episode_steps": 7}, "eval_episodes": 0, "m_steps": 1}
    trainer = assert_resumes_exactly(lambda: small_trainer(**fields), [step], 3 * ROLLOUT, tmp_path)
    assert state_of(tmp_path / "run")["updates"] == 3 * ROLLOUT // trainer.config.batch_size


@pytest.mark.skipif(
    not compiler_available() and not os.environ.get("CI"), reason="no C++ compiler is installed (Debian: g++)"
)
def test_a_compiled_run_goes_on_bit_for_bit(tmp_path: Path) -> None:
    train(tmp_path / "whole", ROLLOUT * 3, compile=True, eval_episodes=0)
    train(tmp_path / "run", ROLLOUT * 3, lambda trainer: trainer.env_steps < ROLLOUT + 3, compile=True, eval_episodes=0)
    # Whatever the rest of the run is started with: what was decided at its start is kept.
    trainer = small_trainer(compile=False, eval_episodes=0)
    trainer.load(tmp_path / "run")
    trainer.train(ROLLOUT * 3)
    trainer.close()
    assert state_of(tmp_path / "run")["acceleration"] == Acceleration(compiled=True)
    assert same_run(tmp_path / "whole", tmp_path / "run")


@pytest.mark.parametrize(("total_steps", "compiled"), [(ROLLOUT * 10, True), (ROLLOUT * 9, False)])
def test_long_runs_are_compiled(
    total_steps: int, compiled: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(VMPOTrainer, "worth_compiling", {"cpu": 20})
    monkeypatch.setattr(applied, "compiler_available", lambda: True)
    trainer = small_trainer(compile="auto", eval_episodes=0)
    asked: list[Acceleration] = []
    monkeypatch.setattr(trainer.updater, "set_acceleration", asked.append)
    trainer.train(total_steps, tmp_path / "run", lambda trainer: trainer.env_steps < 5)
    trainer.close()
    assert asked == [(compiled, False)] == [state_of(tmp_path / "run")["acceleration"]]


def test_without_a_compiler_steps_run_as_they_are(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(applied, "compiler_available", lambda: False)
    train(tmp_path / "run", ROLLOUT, compile=True, console=True, eval_episodes=0)
    assert "No C++ compiler is installed" in capsys.readouterr().out
    assert state_of(tmp_path / "run")["acceleration"] == Acceleration()


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"policy_layer_sizes": (9,)}, r"was made with policy_layer_sizes = \[8, 8\], got \[9\]"),
        ({"value_layer_sizes": (9,)}, r"was made with value_layer_sizes = \[8, 8\], got \[9\]"),
        ({"shared_encoder": True}, "was made with shared_encoder = False, got True"),
        ({"ppo_like_backbone": True}, "was made with ppo_like_backbone = False, got True"),
        ({"normalize_obs": False}, "was made with normalize_obs = True, got False"),
        ({"lstm_units": 4}, "was made with lstm_units = None, got 4"),
        ({"normalize_reward": True}, "was made with normalize_reward = False, got True"),
        ({"rollout_steps": 8}, "was made with rollout_steps = 16, got 8"),
        ({"optimizer_type": "sgd"}, "was made with optimizer_type = adam, got sgd"),
    ],
)
def test_a_checkpoint_of_another_shape_is_refused(fields: dict[str, Any], message: str, tmp_path: Path) -> None:
    train(tmp_path / "run", ROLLOUT, eval_episodes=0)
    trainer = small_trainer(**fields)
    with pytest.raises(CheckpointError, match=message):
        trainer.load(tmp_path / "run")
    trainer.close()


def test_a_new_run_may_start_with_the_policy_of_another(tmp_path: Path) -> None:
    old = train(tmp_path / "run", ROLLOUT * 2, eval_episodes=0)
    trainer = small_trainer(seed=5)
    trainer.init_from(tmp_path / "run")
    trainer.close()
    assert same(dict(trainer.agent.state_dict()), dict(old.agent.state_dict()))
