from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from minerva import checkpointing
from minerva.checkpointing import CheckpointError
from minerva.trainers.ppo.config import PPOConfig
from minerva.trainers.ppo.trainer import PPOTrainer
from minerva.utils.schedules import PositiveSchedule
from tests.trainers.ppo.small_run import (
    ROLLOUT,
    TOTAL,
    Troublesome,
    learned,
    logged,
    metrics_of,
    resume,
    same,
    same_run,
    small_trainer,
    snapshot,
    state_of,
    stop_at,
    train,
)


def test_total_steps_may_be_raised_and_the_rate_follows_the_longer_line(tmp_path: Path) -> None:
    train(tmp_path / "run", ROLLOUT * 4, policy_lr=0.01)
    resume(tmp_path / "run", ROLLOUT * 8, policy_lr=0.01)
    rates = [rate for _, rate in logged(tmp_path / "run", "charts/learning_rate")]
    assert rates == [0.01 * (1 - u / 4) for u in range(4)] + [0.01 * (1 - u / 8) for u in range(4, 8)]
    assert state_of(tmp_path / "run")["env_steps"] == ROLLOUT * 8
    assert state_of(tmp_path / "run")["total_steps"] == ROLLOUT * 8
    assert json.loads((tmp_path / "run" / "config.json").read_text())["total_steps"] == ROLLOUT * 8


def test_a_loaded_run_keeps_its_length_unless_told_otherwise(whole: Path, tmp_path: Path) -> None:
    train(tmp_path / "run", callbacks=lambda trainer: trainer.env_steps < 21)
    trainer = small_trainer()
    trainer.load(tmp_path / "run")
    assert trainer.train().env_steps == TOTAL
    trainer.close()
    assert same(state_of(whole)["agent"], state_of(tmp_path / "run")["agent"])


def test_resuming_a_finished_run_changes_nothing(tmp_path: Path) -> None:
    train(tmp_path / "run")
    before = state_of(tmp_path / "run"), metrics_of(tmp_path / "run")
    resume(tmp_path / "run")
    assert same(state_of(tmp_path / "run"), before[0]) and metrics_of(tmp_path / "run") == before[1]


def test_rows_past_the_checkpoint_are_dropped(whole: Path, tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError):
        train(tmp_path / "run", callbacks=Troublesome("on_step", 40))
    with (tmp_path / "run" / "metrics.csv").open("a") as file:
        file.write("48,losses/value_loss,1.0\n48,losses/poli")
    resume(tmp_path / "run")
    assert same_run(whole, tmp_path / "run")


def test_training_goes_on_in_memory(whole: Path, tmp_path: Path) -> None:
    trainer = small_trainer()
    trainer.train(TOTAL, tmp_path / "run", stop_at(20))
    trainer.train(TOTAL)
    trainer.close()
    assert same(learned(tmp_path / "run"), learned(whole))


def test_a_run_may_go_on_in_another_folder(whole: Path, tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError):
        train(tmp_path / "run", callbacks=Troublesome("on_step", 21))
    before = snapshot(tmp_path / "run")
    trainer = small_trainer()
    trainer.load(tmp_path / "run")
    trainer.train(TOTAL, tmp_path / "fork")
    trainer.close()
    assert snapshot(tmp_path / "run") == before
    expected, state = state_of(whole), state_of(tmp_path / "fork")
    # The best of a folder is the best of what is in it.
    assert state.pop("best_return") == max(value for _, value in logged(tmp_path / "fork", "eval/return_mean"))
    del expected["best_return"]
    assert same(expected, state)
    assert (tmp_path / "fork" / "ppo_best.pt").exists()
    assert metrics_of(tmp_path / "fork") == [row for row in metrics_of(whole) if row[0] > 21]


def test_init_from_takes_the_policy_and_starts_anew(whole: Path, tmp_path: Path) -> None:
    trainer = small_trainer(seed=5, num_envs=2)  # of another shape where the policy is not concerned
    trainer.init_from(whole)
    source = state_of(whole)
    assert same(dict(trainer.agent.state_dict()), source["agent"])
    assert (trainer.env_steps, trainer.updates) == (0, 0)
    moments = trainer.optimizer_state()  # of a run that begins
    assert moments.pop("skipped") == 0 and moments and not any(value.any() for value in moments.values())
    result = trainer.train(ROLLOUT * 4, tmp_path / "run")
    trainer.close()
    assert (result.env_steps, result.updates) == (ROLLOUT * 4, 2)
    assert result.first_evaluation is not None
    other = small_trainer(critic_layer_sizes=(9,))
    with pytest.raises(CheckpointError, match=r"was made with critic_layer_sizes = \[8\], got \[9\]"):
        other.init_from(whole / "ppo_best.pt")
    other.close()


@pytest.mark.parametrize("normalized", [True, False])
def test_init_from_takes_the_scale_of_the_rewards_that_the_critic_was_fitted_to(normalized: bool, whole: Path) -> None:
    source = state_of(whole)["collector"]["reward_normalizer"]
    assert source["statistics.count"] > TOTAL * 0.9 and source["discounted_return"].all()
    trainer = small_trainer(seed=5, num_envs=2, normalize_reward=normalized)
    fresh = trainer.state_dict()
    trainer.init_from(whole)
    state = trainer.state_dict()
    found = state["collector"].pop("reward_normalizer")
    if normalized:
        assert not found.pop("discounted_return").any()  # of episodes that are not continued
        assert same(dict(found), {name: part for name, part in source.items() if name.startswith("statistics.")})
        assert len(found) == 3
    else:
        assert found is None
    del fresh["collector"]["reward_normalizer"], fresh["agent"], state["agent"]
    trainer.close()
    assert same(state, fresh)  # and nothing else


def test_a_trainer_saved_before_its_first_step_starts_from_there(whole: Path, tmp_path: Path) -> None:
    trainer = small_trainer()
    trainer.save(tmp_path / "fresh.pt")
    trainer.close()
    again = small_trainer()
    again.load(tmp_path / "fresh.pt")
    again.train(TOTAL, tmp_path / "run")
    again.close()
    assert same(state_of(whole), state_of(tmp_path / "run"))


def test_saving_from_a_callback_knows_where_the_log_stands(whole: Path, tmp_path: Path) -> None:
    def save(trainer: PPOTrainer) -> None:
        if trainer.env_steps == 50:
            trainer.save(tmp_path / "run" / "at50.pt")

    train(tmp_path / "run", callbacks=save)
    again = small_trainer()
    again.load(tmp_path / "run" / "at50.pt")
    again.train(TOTAL)
    again.close()
    assert metrics_of(tmp_path / "run") == metrics_of(whole)


def test_going_on_with_another_kind_of_device_is_told(tmp_path: Path) -> None:
    train(tmp_path / "run", ROLLOUT)
    checkpoint = checkpointing.read(tmp_path / "run" / "ppo_last.pt")
    state = checkpoint["state"]
    assert (state["device"], state["acting_device"], state["acceleration"]) == ("cpu", "cpu", (False, False))
    state["device"] = state["acting_device"] = "cuda"
    state["action_noise"], state["acceleration"] = torch.zeros(16, dtype=torch.uint8), (True, True)
    checkpointing.write(tmp_path / "run" / "ppo_last.pt", checkpoint)
    trainer = small_trainer()
    trainer.load(tmp_path / "run")
    assert any("was on cuda and resumes on cpu" in note for note in trainer.notes)
    assert trainer.acceleration is None  # chosen again for the other device
    with pytest.warns(RuntimeWarning, match="was on cuda and resumes on cpu"):
        assert trainer.train(2 * ROLLOUT).updates == 2
    trainer.close()


# Schedules


@dataclass(frozen=True, kw_only=True)
class Scheduled(PPOConfig):
    bonus: PositiveSchedule = 0.1
    """A setting of every kind of schedule."""


class ScheduledTrainer(PPOTrainer):
    resumed_fields = (*PPOTrainer.resumed_fields, "bonus")


@pytest.mark.parametrize(
    ("first", "then", "plain", "differs"),
    [
        (0.5, 0.5, 0.5, None),
        ("lin_2.5e-4", "lin_2.5e-4", "lin_2.5e-4", None),
        (lambda share: share, lambda share: 2 * share, "function", None),  # who gives a function answers for it
        (lambda share: share, "function", "function", None),
        (0.5, "lin_0.5", 0.5, "bonus = 0.5, got lin_0.5"),
        (lambda share: share, 0.5, "function", "bonus = function, got 0.5"),
    ],
)
def test_a_schedule_goes_through_a_checkpoint(
    first: Any, then: Any, plain: Any, differs: str | None, tmp_path: Path
) -> None:
    def make(bonus: Any) -> ScheduledTrainer:
        config = Scheduled(bonus=bonus, rollout_steps=ROLLOUT, minibatch_size=8, console=False, eval_episodes=0)
        return ScheduledTrainer("Pendulum-v1", 1, "cpu", config)

    trainer = make(first)
    trainer.train(ROLLOUT, tmp_path / "run")
    trainer.close()
    config = checkpointing.read(tmp_path / "run" / "ppo_last.pt")["config"]
    assert config["bonus"] == plain
    assert json.loads((tmp_path / "run" / "config.json").read_text())["config"]["bonus"] == plain
    assert Scheduled.from_fields(None, config).to_plain() == config
    again = make(then)
    if differs is None:
        again.load(tmp_path / "run")
        assert again.updates == 1
    else:
        with pytest.raises(CheckpointError, match=differs):
            again.load(tmp_path / "run")
    again.close()
