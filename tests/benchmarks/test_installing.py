from __future__ import annotations

import os
from pathlib import Path

import pytest

from benchmarks.installing import NEEDS, SPECS, commands, extra_of, lacking, short, write_specs
from minerva.sweeps.spec import read_spec


@pytest.mark.parametrize(
    ("command", "extra"),
    [
        ("minerva train ppo --env HalfCheetah-v5", "mujoco"),
        ("minerva train ppo --env HalfCheetah-v5 --num-envs 64 --backend envpool", "envpool"),
        ("minerva train mpo --env dm_control/walker/walk --device cuda", "dm-control"),
        ("minerva plot runs/ppo/HalfCheetah-v5", "report"),
        ("minerva train ppo --env minerva/CartPoleNoVelocity-v1", ""),
    ],
)
def test_the_extra_that_a_command_needs(command: str, extra: str) -> None:
    assert extra_of(command) == extra


def test_each_extra_has_a_command_of_readme_or_of_a_page() -> None:
    assert {extra_of(command) for command in commands()} == {*NEEDS, ""}
    assert [extra_of(command) for command in lacking()] == [
        "atari",
        "box2d",
        "dm-control",
        "envpool",
        "mujoco",
        "ray",
        "tune",
    ]


def test_a_command_is_shortened_and_nothing_else_about_it_changes(tmp_path: Path) -> None:
    runs = tmp_path / "runs" / "ppo" / "Pendulum-v1"
    for k, name in enumerate(("newer", "older")):
        (runs / name).mkdir(parents=True)
        os.utime(runs / name, (1000 - k, 1000 - k))
    hopper = "minerva train vmpo --env Hopper-v5"
    assert short(hopper, tmp_path) == f"{hopper} --total-steps 4096 --eval-episodes 1"
    for command in ("minerva evaluate", "minerva train --resume"):
        assert short(f"{command} runs/ppo/Pendulum-v1/…", tmp_path) == f"{command} {runs / 'newer'}"
    gpu = "minerva train mpo --env dm_control/walker/walk --device cuda"
    assert short(gpu, tmp_path) == gpu.replace("cuda", "cpu") + " --total-steps 2048 --eval-episodes 1"


def test_specifications_of_the_pages_are_made_small(tmp_path: Path) -> None:
    write_specs(tmp_path)
    assert {file.name for file in tmp_path.iterdir()} == set(SPECS)
    assert read_spec(tmp_path / "spec.toml").seeds == (1,)
    assert "trials = 6\n" in (tmp_path / "tune.toml").read_text()
