from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.kill_and_resume import Case, Kill, compare, run_disturbed
from minerva import checkpointing
from minerva.acceleration import applied
from minerva.acceleration.applied import Acceleration
from minerva.acceleration.tree import leaves
from minerva.callbacks import Callback
from minerva.checkpointing import replay_folder
from tests.trainers.mpo.small_run import TOTAL, VARIANTS, fields, small_trainer, train
from tests.trainers.ppo.small_run import metrics_of, same, state_of


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("step", [1, 19, 77])
def test_a_run_that_is_stopped_and_resumed_is_bit_for_bit_the_same(variant: str, step: int, tmp_path: Path) -> None:
    more = VARIANTS[variant]
    train(tmp_path / "whole", **more)
    train(tmp_path / "run", callbacks=lambda trainer: trainer.env_steps < step, **more)
    assert step <= state_of(tmp_path / "run")["env_steps"] < step + 3
    resumed = small_trainer(**more)
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
    trainer.replay.rewards[3] += 1
    trainer.replay._saved.clear()  # so that all of it is written again
    trainer.save(tmp_path / "two" / "mpo_last.pt")
    assert not compare(tmp_path / "one", tmp_path / "two")["replay"]


def test_the_best_checkpoint_holds_no_replay_and_a_run_can_go_on_from_it(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    train(tmp_path / "run", eval_interval=40)
    best = tmp_path / "run" / "mpo_best.pt"
    assert checkpointing.read(best)["replay"] is None and not replay_folder(best).exists()
    assert replay_folder(tmp_path / "run" / "mpo_last.pt").is_dir()
    resumed = small_trainer()
    resumed.load(best)
    at, updates = resumed.collector.transitions, resumed.updates
    assert len(resumed.replay) == 0
    assert any("holds no replay" in note for note in resumed.notes)
    made: list[int] = []
    with pytest.warns(RuntimeWarning, match="Note: this checkpoint holds no replay buffer"):
        resumed.train(
            at + 60, out_dir=tmp_path / "other", callbacks=lambda trainer: made.append(trainer.updates - updates)
        )
    resumed.close()
    # Nothing is learned from a replay of a few transitions.
    assert made[18] == 0 and made[-1] > 30


def test_a_checkpoint_may_be_saved_without_the_replay_on_request(tmp_path: Path) -> None:
    trainer = train(tmp_path / "run")
    trainer.save(tmp_path / "small.pt", replay=False)
    trainer.save(tmp_path / "whole.pt")
    assert not replay_folder(tmp_path / "small.pt").exists() and replay_folder(tmp_path / "whole.pt").is_dir()
    again = small_trainer()
    again.load(tmp_path / "whole.pt")
    np.testing.assert_array_equal(again.replay.obs, trainer.replay.obs)
    again.close()


def test_a_checkpoint_may_be_saved_into_a_folder_that_does_not_exist_yet(tmp_path: Path) -> None:
    trainer, path = train(tmp_path / "run"), tmp_path / "a" / "new" / "folder.pt"
    trainer.save(path)
    again = small_trainer()
    again.load(path)
    again.close()
    np.testing.assert_array_equal(again.replay.obs, trainer.replay.obs)


def test_a_damaged_replay_is_told_and_costs_nothing_but_the_replay(tmp_path: Path) -> None:
    whole = train(tmp_path / "run")
    segment = next(replay_folder(tmp_path / "run" / "mpo_last.pt").iterdir())
    segment.write_bytes(segment.read_bytes()[:-7])
    trainer = small_trainer()
    trainer.load(tmp_path / "run")
    trainer.close()
    assert any("segment" in note and "20 transitions are collected" in note for note in trainer.notes), trainer.notes
    assert len(trainer.replay) == 0
    assert same(leaves(trainer.agent.state), leaves(whole.agent.state))


def test_a_checkpoint_without_a_replay_empties_that_of_the_trainer_it_is_loaded_into(tmp_path: Path) -> None:
    trainer = train(tmp_path / "run")
    trainer.save(tmp_path / "small.pt", replay=False)
    other = small_trainer(seed=2)
    other.train(TOTAL, out_dir=tmp_path / "other")
    assert len(other.replay) > 50
    other.load(tmp_path / "small.pt")
    other.close()
    assert len(other.replay) == 0 and np.array_equal(other.replay.current_obs, trainer.replay.current_obs)


def test_checkpoints_with_dots_in_their_names_do_not_share_a_replay(tmp_path: Path) -> None:
    trainer = small_trainer()
    trainer.train(60, out_dir=tmp_path / "run")
    trainer.save(tmp_path / "x.step60")
    kept = trainer.replay.obs.copy()
    trainer.collector.step()
    trainer.save(tmp_path / "x.step61")
    again = small_trainer()
    again.load(tmp_path / "x.step60")
    again.close()
    trainer.close()
    np.testing.assert_array_equal(again.replay.obs[: again.replay._head], kept[: again.replay._head])


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
    resumed = small_trainer(overlap=overlap)
    resumed.load(tmp_path / "run")
    resumed.train()
    resumed.close()
    assert all(compare(tmp_path / "whole", tmp_path / "run").values())


def test_update_after_may_be_changed_until_the_first_update(tmp_path: Path) -> None:
    train(tmp_path / "run", 50 + 400, update_after=400, callbacks=lambda trainer: trainer.env_steps < 50)
    resumed = small_trainer(update_after=400)
    resumed.load(tmp_path / "run")
    resumed.train(100, update_after=60)
    resumed.close()
    assert resumed.updates == 40


def test_a_compiled_run_goes_on_without_a_compiler(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    train(tmp_path / "run", callbacks=lambda trainer: trainer.env_steps < 50)
    resumed = small_trainer(compile="auto", console=True)
    resumed.load(tmp_path / "run")
    resumed.acceleration = Acceleration(compiled=True)
    monkeypatch.setattr(applied, "compiler_available", lambda: False)
    resumed.train(80)
    resumed.close()
    assert str(resumed.acceleration) == "plain" and "No C++ compiler" in capsys.readouterr().out


def test_how_updates_run_is_restored(tmp_path: Path) -> None:
    # Chosen by the length of the whole run: a shorter rest must not choose again.
    trainer = small_trainer()
    trainer.save(tmp_path / "before.pt")
    trainer.acceleration = Acceleration(compiled=True)
    trainer.save(tmp_path / "compiled.pt")
    trainer.close()
    restored: list[Any] = []
    again = small_trainer(compile="auto")
    for name in ("compiled.pt", "before.pt"):
        again.load(tmp_path / name)
        restored.append(again.acceleration)
    again.close()
    assert restored == [(True, False), None] and isinstance(restored[0], Acceleration)


def test_a_run_on_another_device_chooses_again_how_updates_run(tmp_path: Path) -> None:
    trainer = train(tmp_path / "run", 30)
    trainer.acceleration = Acceleration(compiled=True, captured=True)
    trainer.save(tmp_path / "moved.pt")
    checkpoint = checkpointing.read(tmp_path / "moved.pt")
    checkpoint["state"]["device"] = "cuda"
    checkpointing.write(tmp_path / "moved.pt", checkpoint)
    again = small_trainer()
    again.load(tmp_path / "moved.pt")
    assert again.acceleration is None and any("was on cuda and resumes on cpu" in note for note in again.notes)
    again.close()
