"""What a checkpoint says of its run is checked before anything is built from it."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import minerva
from minerva import checkpointing
from minerva.checkpointing import CheckpointError
from minerva.cli import main

Change = Callable[[dict[str, Any]], Any]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("saved") / "run"
    minerva.train(
        "ppo", "Pendulum-v1", total_steps=16, preset="none", rollout_steps=16, minibatch_size=16, eval_episodes=0,
        console=False, policy_layer_sizes=(4,), critic_layer_sizes=(4,), env_kwargs={"g": 9.5}, out_dir=folder,
    )  # fmt: skip
    return folder


@pytest.fixture
def run(made: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made, tmp_path / "run"))


def rewrite(run: Path, change: Change) -> Path:
    checkpoint = checkpointing.read(run / "ppo_last.pt")
    change(checkpoint)
    checkpointing.write(run / "ppo_last.pt", checkpoint)
    return run


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda c: c.pop("run"), "the checkpoint: must have the entry run, got none"),
        (lambda c: c.update(seed="1"), "the checkpoint.seed: must be a whole number, got '1'"),
        (lambda c: c["run"].update(env_steps=-5), r"checkpoint.run.env_steps: must lie between 0 and \d+, got -5"),
        (lambda c: c["run"].update(seconds=-1.0), "checkpoint.run.seconds: must be a number of seconds, .* got -1.0"),
        (lambda c: c["run"].update(evaluation_seconds=float("nan")), "must be a number of seconds, .* got nan"),
        (lambda c: c["config"].update(wings=2), "config: must hold the settings of a run, .*wings: not a setting"),
        (lambda c: c["action_space"].pop("low"), "action_space: must describe a space, got a dict of 4 that does not"),
        (lambda c: c["state"].update(agent=[]), "state.agent: must be a dict, got a list of 0"),
        (lambda c: c["state"]["agent"].popitem(), "state.agent: must have the entry .*, got none"),
        (
            lambda c: c["state"]["agent"].update({"policy.mean.bias": c["run"]}),
            r"state.agent.policy.mean.bias: must be a tensor, got a dict",
        ),
        (lambda c: c["state"]["agent"]["obs_normalizer.var"].neg_(), "obs_normalizer.var: must hold statistics"),
        (lambda c: next(iter(c["state"]["agent"].values())).fill_(float("nan")), "must hold numbers, got nan"),
        (lambda c: c["config"].update(policy_layer_sizes=[16_000, 16_000]), "networks of its weights, got larger"),
        (lambda c: c.update(mask_dim=7), "mask_dim: must be one number per action, or 0, got 7"),
    ],
)  # fmt: skip
def test_a_wrong_part_is_named(run: Path, change: Change, message: str) -> None:
    with pytest.raises(CheckpointError, match=message) as caught:
        minerva.load(rewrite(run, change))
    assert str(caught.value).startswith(f"checkpoint: {run / 'ppo_last.pt'} cannot be used")


def test_the_command_line_prints_one_line(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rewrite(run, lambda c: c["state"]["collector"].pop("env"))
    assert main(["train", "--resume", str(run), "--total-steps", "32"]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and "state.collector: must have the entry env, got none; use another one." in said


def test_code_that_a_checkpoint_names_runs_with_consent_alone(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "strange_package.py").write_text(f"open({str(tmp_path / 'trace')!r}, 'w').close()\n")
    rewrite(run, lambda c: c.update(env_id="strange_package:Pendulum-v1"))
    commands = (["evaluate", str(run), "--episodes", "1"], ["train", "--resume", str(run), "--total-steps", "32"])
    for command in commands:
        assert main(command) == 2
        said = capsys.readouterr().err
        assert said.count("\n") == 1 and "which imports the module strange_package; add --trust-env" in said
    assert minerva.load(run).env_id == "strange_package:Pendulum-v1"  # acting needs no environment
    assert not (tmp_path / "trace").exists()
    for command in commands:
        assert main([*command, "--trust-env"]) == 0
    assert (tmp_path / "trace").exists()


def test_paths_for_an_environment_need_consent_too(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["evaluate", str(run), "--episodes", "1"]) == 0  # numbers do not
    rewrite(run, lambda c: c["config"]["env_kwargs"].update(render_mode="rgb_array"))
    assert main(["evaluate", str(run), "--episodes", "1"]) == 0  # nor does a word
    rewrite(run, lambda c: c["config"]["env_kwargs"].update(render_mode=["/etc/passwd"]))
    assert main(["evaluate", str(run), "--episodes", "1"]) == 2
    assert "where text may name a file or a module; add --trust-env" in capsys.readouterr().err
    rewrite(run, lambda c: c.update(env_id="gymnasium.envs.classic_control:Pendulum-v1"))
    rewrite(run, lambda c: c["config"]["env_kwargs"].pop("render_mode"))
    assert main(["evaluate", str(run), "--episodes", "1"]) == 0  # Gymnasium's own module
