from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

import minerva

SPEC: dict[str, Any] = {"algorithms": ["ppo"], "envs": ["Pendulum-v1"], "seeds": "1"}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ({"on": "slurm"}, r"^on: must be 'local' or 'ray', got 'slurm'\."),
        ({"address": "x:1"}, r"^address: is for a Ray cluster, got 'x:1' for 'local'; add on = 'ray'"),
        ({"jobs": 0}, r"^jobs: must be a whole number from 1 on, got 0\."),
        ({"retries": -1}, r"^retries: must be a whole number from 0 on, got -1\."),
    ],
)
def test_a_wrong_argument_is_named_and_nothing_is_created(
    words: dict[str, Any], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match=message):
        minerva.sweep(SPEC, **words)
    assert list(tmp_path.iterdir()) == []


def test_without_ray_it_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    monkeypatch.delitem(sys.modules, "minerva.sweeps.ray_tasks", raising=False)
    with pytest.raises(ValueError, match=r'^on: "ray" needs Ray, .*pip install "minerva-rl\[ray\]"'):
        minerva.sweep(SPEC, tmp_path / "out", on="ray")
    assert not (tmp_path / "out").exists()


def test_torchrun_does_not_start_a_sweep(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"TORCHELASTIC_RUN_ID": "x", "WORLD_SIZE": "2"}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ValueError, match=r"^sweep: is started by one process, got several \(torchrun\)"):
        minerva.sweep(SPEC, tmp_path / "out")
    assert not (tmp_path / "out").exists()
