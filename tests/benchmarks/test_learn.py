from __future__ import annotations

import csv
from pathlib import Path

import pytest

from benchmarks.learn import EVALUATION, main

WORDS = [
    "ppo", "Pendulum-v1", "--seeds", "5-6", "--jobs", "2", "--preset", "none", "--total-steps", "128",
    "--rollout-steps", "64", "--eval-episodes", "2", "--eval-interval", "64", "--eval-max-steps", "5",
]  # fmt: skip


def rows(file: Path) -> list[dict[str, str]]:
    with file.open(newline="") as handle:
        return list(csv.DictReader(handle))


def test_runs_become_rows_and_curves(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = [*WORDS, "--out", str(tmp_path / "results"), "--runs", str(tmp_path / "runs"), "--commit", "abc"]
    assert main(words) == 0
    results = tmp_path / "results" / "ppo" / "Pendulum-v1"
    found = rows(results / "runs.csv")
    assert [row["seed"] for row in found] == ["5", "6"]
    head = ["algorithm", "env", "seed", "command", "commit", "hardware", "versions", "steps", *EVALUATION, "sps"]
    assert list(found[0]) == head
    assert found[0]["command"] == (
        "minerva train ppo --env Pendulum-v1 --seed 5 --device cpu --preset none --total-steps 128 --rollout-steps 64 "
        "--eval-episodes 2 --eval-interval 64 --eval-max-steps 5"
    )
    curve = rows(results / "seed5.csv")
    assert [row["step"] for row in curve] == ["0", "64", "128"]
    assert found[0]["return_mean"] == curve[-1]["return_mean"] and found[0]["steps"] == "128"
    before = (tmp_path / "runs" / "Pendulum-v1" / "seed5" / "ppo_last.pt").stat().st_mtime_ns
    assert main(words) == 0  # there is nothing left to do
    assert (tmp_path / "runs" / "Pendulum-v1" / "seed5" / "ppo_last.pt").stat().st_mtime_ns == before
    assert "learn: 2 runs: 2 done" in capsys.readouterr().out
