from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from minerva import checkpointing
from minerva.trainers.off_policy import UpdateSchedule
from tests.trainers.mpo.small_run import small_trainer, train

# When updates are due, as numbers alone


def test_no_update_is_owed_before_the_start() -> None:
    schedule = UpdateSchedule(20)
    assert [schedule.owed_at(transitions, 1.0) for transitions in (0, 19, 20, 21, 23)] == [0, 0, 0, 1, 3]
    assert schedule == UpdateSchedule(20)  # asking changes nothing


def test_a_round_accounts_for_the_transitions_so_far_and_keeps_the_fraction() -> None:
    schedule = UpdateSchedule(10)
    owed = schedule.owed_at(15, 0.5)
    assert owed == 2.5
    schedule.start_round(15, 18, owed - int(owed))
    assert (schedule.counted, schedule.round_at, schedule.round_step, schedule.owed) == (15, 15, 18, 0.5)
    assert [schedule.owed_at(transitions, 0.5) for transitions in (15, 16, 18)] == [0.5, 1.0, 2.0]


@pytest.mark.parametrize("ratio", [0.25, 0.3, 1.0, 1.7])
@pytest.mark.parametrize("collected", [1, 3, 8])  # between two questions
def test_in_the_long_run_the_ratio_is_kept(ratio: float, collected: int) -> None:
    schedule, made = UpdateSchedule(7), 0
    for transitions in range(collected, 400, collected):
        owed = schedule.owed_at(transitions, ratio)
        if owed >= 1:
            made += int(owed)
            schedule.start_round(transitions, transitions, owed - int(owed))
        exact = ratio * max(0, transitions - 7)
        assert exact - 1 - 1e-9 < made <= exact + 1e-9


def test_a_start_that_is_moved_beyond_what_was_counted_counts_from_there() -> None:
    # As it is after a run has lost its replay buffer.
    schedule = UpdateSchedule(10)
    schedule.start_round(30, 30, 0.0)
    schedule.start = 50
    assert [schedule.owed_at(transitions, 1.0) for transitions in (31, 50, 53)] == [0, 0, 3]


# In a trainer


def test_the_schedule_is_saved_and_restored(tmp_path: Path) -> None:
    trainer = train(tmp_path / "run", num_envs=3, updates_per_step=0.3, update_interval=4)
    schedule = trainer.schedule
    assert schedule.counted > 20 and 0 < schedule.owed < 1 and schedule.next_log > 0
    saved = checkpointing.read(tmp_path / "run" / "mpo_last.pt")["state"]["schedule"]
    assert saved == dataclasses.asdict(schedule)
    again = small_trainer(num_envs=3, updates_per_step=0.3, update_interval=4)
    assert again.schedule == UpdateSchedule(20)
    again.load(tmp_path / "run")
    again.close()
    assert again.schedule == schedule and again.updates_due() == trainer.updates_due()


def test_with_an_empty_replay_updates_wait_again(tmp_path: Path) -> None:
    trainer = train(tmp_path / "run")
    at = trainer.collector.transitions
    trainer.save(tmp_path / "small.pt", replay=False)
    again = small_trainer()
    again.load(tmp_path / "small.pt")
    again.close()
    assert (again.schedule.start, again.schedule.owed) == (at + 20, 0.0)
    assert again.updates_due() == 0 and len(again.replay) == 0


def test_with_an_empty_replay_a_fraction_of_an_update_is_forgotten(tmp_path: Path) -> None:
    trainer = train(tmp_path / "run", updates_per_step=0.3)
    assert 0 < trainer.schedule.owed < 1
    trainer.save(tmp_path / "small.pt", replay=False)
    again = small_trainer(updates_per_step=0.3)
    again.load(tmp_path / "small.pt")
    again.close()
    assert again.schedule.owed == 0


def test_a_run_starts_with_the_weights_that_the_agent_has_then(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Where the actor has a copy of the policy, on a GPU: weights may have been loaded since it was made.
    trainer = small_trainer(eval_episodes=0)
    noted: list[int] = []
    monkeypatch.setattr(trainer.actor, "invalidate", lambda: noted.append(trainer.env_steps))
    trainer.train(23, out_dir=tmp_path / "run")
    trainer.close()
    assert noted == [0, 21, 22, 23]  # before the first step, and after each update


def test_a_round_waits_for_the_interval(tmp_path: Path) -> None:
    trainer = train(tmp_path / "run", 60, update_interval=7, eval_episodes=0)
    trainer.schedule.round_at = trainer.collector.transitions - 6
    trainer.schedule.counted, trainer.schedule.owed = trainer.collector.transitions, 6.0
    assert trainer.updates_due() == 0
    trainer.schedule.round_at -= 1
    assert trainer.updates_due() == 6


# Spaces


class Seeing(gymnasium.Env[Any, Any]):
    """An image and a number."""

    observation_space = spaces.Dict(picture=spaces.Box(0, 255, (40, 40), np.uint8), speed=spaces.Box(-1, 1, (1,)))
    action_space = spaces.Box(-1, 1, (1,))


@pytest.mark.parametrize("env_id", ["CarRacing-v3", Seeing])
def test_images_are_refused_because_there_is_no_encoder_and_not_because_of_memory(env_id: Any) -> None:
    if env_id == "CarRacing-v3":
        pytest.importorskip("Box2D", reason="CarRacing needs Box2D")
    with pytest.raises(ValueError, match=r"^env: .* has images as observations \(.*\), and mpo has no image encoder\."):
        small_trainer(env_id, replay_size=1_000_000)
