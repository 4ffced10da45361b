from __future__ import annotations

import json
import re
from importlib.metadata import version
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest

from minerva import checkpointing
from minerva.trainers.run_folder import folder_name
from tests.trainers.ppo.small_run import ROLLOUT, TOTAL, same_run, small_trainer, snapshot, state_of, train

# Which folder


def test_a_folder_that_holds_a_run_is_refused_and_left_alone(whole: Path) -> None:
    before = snapshot(whole)
    with pytest.raises(ValueError, match=r"out_dir: .* holds a run already. Resume it"):
        train(whole)
    assert snapshot(whole) == before


def test_a_relative_name_of_the_runs_own_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    train(tmp_path / "run", ROLLOUT)
    monkeypatch.chdir(tmp_path)
    trainer = small_trainer()
    trainer.load(tmp_path / "run")
    trainer.train(ROLLOUT * 2, "run")
    trainer.close()
    assert state_of(tmp_path / "run")["updates"] == 2


@pytest.mark.parametrize("total_steps", [0, -3, 2.5, "many"])
def test_bad_total_steps(total_steps: Any, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="total_steps: must be a whole number from 1 on"):
        train(tmp_path / "run", total_steps)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_created(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    with pytest.raises(ValueError, match=r"out_dir: .* cannot be created"):
        train(tmp_path / "file" / "run")
    assert (tmp_path / "file").read_text() == "mine"


def test_killed_before_the_first_checkpoint_the_folder_can_be_used_again(whole: Path, tmp_path: Path) -> None:
    trainer = small_trainer()

    def die(path: Any, replay: bool = True) -> None:
        raise MemoryError

    trainer.save = die  # type: ignore[method-assign]
    with pytest.raises(MemoryError):
        trainer.train(TOTAL, tmp_path / "run")
    trainer.close()
    assert (tmp_path / "run" / "metrics.csv").exists()
    train(tmp_path / "run")
    assert same_run(whole, tmp_path / "run")


def test_default_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    trainer = small_trainer(eval_episodes=0)
    result = trainer.train(ROLLOUT)
    trainer.close()
    assert result.out_dir.parent == Path("runs/ppo/Pendulum-v1") and result.out_dir.name.endswith("-seed1")
    assert (result.out_dir / "ppo_last.pt").exists()


@pytest.mark.parametrize(
    ("env_name", "folder"),
    [
        ("HalfCheetah-v5", "HalfCheetah-v5"),
        ("dm_control/cheetah/run", "dm_control-cheetah-run"),
        ("my_tasks:Reach-v0", "my_tasks-Reach-v0"),
        ("custom:__main__.<lambda>", "custom-__main__.lambda"),
        ("custom:tests.test_x.test_y.<locals>.<lambda>", "custom-tests.test_x.test_y.locals.lambda"),
        ("custom:Pendulum-v1+RescaleAction", "custom-Pendulum-v1-RescaleAction"),
        ('a\\b|c"d*e?..', "a-b-c-d-e"),
    ],
)
def test_names_of_folders_suit_every_shell_and_file_system(env_name: str, folder: str) -> None:
    assert folder_name(env_name) == folder


def test_a_lambda_has_a_folder_without_angle_brackets() -> None:
    trainer = small_trainer(lambda: gymnasium.make("Pendulum-v1"))
    trainer.close()
    assert trainer.env_name.endswith("<lambda>")
    assert re.fullmatch(r"runs/ppo/custom-[\w.]+lambda/\d+-\d+-seed1", str(trainer.default_folder()))


# What is written into it


def test_description_of_the_run(tmp_path: Path) -> None:
    train(tmp_path / "run", ROLLOUT, gamma=0.5)
    description = json.loads((tmp_path / "run" / "config.json").read_text())
    assert (description["algorithm"], description["env_id"], description["seed"]) == ("ppo", "Pendulum-v1", 1)
    assert description["config"]["gamma"] == 0.5 and description["total_steps"] == ROLLOUT
    assert description["versions"]["torch"] == version("torch")
    assert {"git_commit", "command"} <= description.keys()
    assert sorted(path.name for path in (tmp_path / "run").iterdir()) == [
        "config.json", "metrics.csv", "notes.log", "ppo_best.pt", "ppo_last.pt",
    ]  # fmt: skip


def test_the_description_keeps_what_a_run_was_begun_with(tmp_path: Path) -> None:
    train(tmp_path / "run", ROLLOUT)
    begun = json.loads((tmp_path / "run" / "config.json").read_text())
    trainer = small_trainer()
    trainer.load(tmp_path / "run")
    trainer.train(2 * ROLLOUT)
    trainer.close()
    now = json.loads((tmp_path / "run" / "config.json").read_text())
    (session,) = now.pop("resumed")
    assert session["from_step"] == ROLLOUT and session["command"] == begun["command"]
    assert now.pop("total_steps") == 2 * begun.pop("total_steps")
    assert now == begun


def test_numbers_of_numpy_end_up_as_pythons_in_the_checkpoint(tmp_path: Path) -> None:
    trainer = small_trainer(
        policy_lr=np.float64(1e-3), update_epochs=np.int64(1), policy_layer_sizes=[np.int32(4)],
        env_kwargs={"g": np.float32(9.5)},
    )  # fmt: skip
    trainer.train(ROLLOUT, tmp_path / "run")
    trainer.close()
    config = checkpointing.read(tmp_path / "run" / "ppo_last.pt")["config"]
    assert (config["policy_lr"], config["update_epochs"]) == (1e-3, 1)
    assert (config["policy_layer_sizes"], config["env_kwargs"]) == ([4], {"g": 9.5})
    with pytest.raises(ValueError, match=r"env_kwargs\['g'\]: must be a plain value .* got <function"):
        small_trainer(env_kwargs={"g": small_trainer})
