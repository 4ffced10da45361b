from __future__ import annotations

import sys
from pathlib import Path

import pytest

from minerva import checkpointing
from minerva.cli import main

MODULE = """
import torch

def make_encoder():
    return torch.nn.Sequential(torch.nn.Linear(3, 5), torch.nn.Tanh())

number = 3
"""
SHORT = ["--preset", "none", "--rollout-steps", "32", "--minibatch-size", "16", "--eval-episodes", "1", "--no-console"]
ENCODER = ["--make-encoder", "my_networks_of_a_test:make_encoder"]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("encoders")
    (folder / "my_networks_of_a_test.py").write_text(MODULE)
    return folder


@pytest.fixture(autouse=True)
def here(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(place)
    monkeypatch.setattr(sys, "path", sys.path[:])  # the current folder is added to it


def train(total_steps: int, out: str, *more: str) -> None:
    words = ["--env", "Pendulum-v1", "--total-steps", str(total_steps), "--out-dir", out, *SHORT, *ENCODER, *more]
    assert main(["train", "ppo", *words]) == 0


@pytest.fixture
def run(place: Path) -> Path:
    if not (place / "run").exists():
        train(32, "run")
    return place / "run"


def test_a_policy_with_an_encoder_of_ones_own_is_trained_evaluated_and_resumed(
    run: Path, place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert any("policy_encoder.0.weight" in name for name in checkpointing.read(run / "ppo_last.pt")["state"]["agent"])
    assert main(["evaluate", "run", "--episodes", "2", *ENCODER]) == 0
    assert "mean" in capsys.readouterr().out
    train(96, "whole")
    train(96, "whole", "--resume-or-start")  # nothing is left to do
    assert main(["train", "--resume", "run", "--total-steps", "96", *ENCODER]) == 0
    assert checkpointing.read(run / "ppo_last.pt")["run"]["env_steps"] == 96


def test_without_it_the_error_says_what_to_add(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for command in (["evaluate", "run"], ["train", "--resume", "run", "--total-steps", "128"]):
        assert main(command) == 2
        said = capsys.readouterr().err
        assert said.count("\n") == 1 and "--make-encoder module:function" in said


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (
            "make_encoder",
            "--make-encoder: must be module:function, such as my_networks:make_encoder; got 'make_encoder'",
        ),
        ("no_such_module:make", "the module no_such_module cannot be imported (ModuleNotFoundError: No module named"),
        ("my_networks_of_a_test:make", "my_networks_of_a_test has nothing of that name, make."),
        ("my_networks_of_a_test:number", "my_networks_of_a_test has a int of that name, number."),
    ],
)
def test_what_is_no_function_is_named(run: Path, name: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    for command in (["evaluate", "run"], ["train", "--resume", "run"], ["train", "ppo", "--env", "Pendulum-v1"]):
        assert main([*command, "--make-encoder", name]) == 2
        said = capsys.readouterr().err
        assert said.count("\n") == 1 and message in said


def test_it_has_no_place_in_other_policies(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--env", "Pendulum-v1", "--total-steps", "32", "--out-dir", str(tmp_path / "plain")]
    assert main(["train", "ppo", *words, *SHORT]) == 0
    for command in (["evaluate", str(tmp_path / "plain")], ["train", "--resume", str(tmp_path / "plain")]):
        assert main([*command, *ENCODER]) == 2
        assert "the policy was trained with encoder 'auto', not your own; leave it out." in capsys.readouterr().err
    assert main(["train", "ppo", "--env", "Pendulum-v1", "--seeds", "1-2", *ENCODER]) == 2
    assert "--make-encoder: cannot be combined with --seeds, got both" in capsys.readouterr().err
    assert main(["train", "mpo", "--env", "Pendulum-v1", *ENCODER]) == 2
    assert "--make-encoder: is for ppo and vmpo; mpo has no encoder." in capsys.readouterr().err


def test_a_file_in_the_current_folder_stands_in_for_no_package(run: Path, place: Path) -> None:
    before = sys.path[:]
    assert main(["evaluate", "run", "--episodes", "1", *ENCODER]) == 0
    assert sys.path == [*before, str(place)]
