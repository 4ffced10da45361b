from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from benchmarks.learned_alike import read, store, summarize, t_interval, train


def row(label: str, seed: int, value: float) -> dict[str, Any]:
    return {
        "label": label, "algorithm": "ppo", "env": "Pendulum-v1", "seed": seed, "return_mean": value,
        "curve": f"0:-1200 1000:{value}",
    }  # fmt: skip


def test_an_interval_is_students() -> None:
    # Of 1 to 5: mean 3, standard error sqrt(2.5 / 5), and 2.776 is the 97.5 % point of t with 4 degrees of freedom.
    low, high = t_interval([1.0, 2.0, 3.0, 4.0, 5.0])
    assert (low, high) == pytest.approx((3 - 2.776 * math.sqrt(0.5), 3 + 2.776 * math.sqrt(0.5)), abs=1e-3)
    assert all(math.isnan(end) for end in t_interval([1.0]))


def test_a_run_made_again_replaces_its_row(tmp_path: Path) -> None:
    file = tmp_path / "runs.csv"
    for label, seed, value in (("before", 302, 1.0), ("before", 301, 2.0), ("after", 301, 3.0), ("before", 301, 4.0)):
        store(file, row(label, seed, value))
    found = [(old["label"], old["seed"], old["return_mean"]) for old in read(file)]
    assert found == [("after", "301", "3.0"), ("before", "301", "4.0"), ("before", "302", "1.0")]


def test_labels_are_compared_with_before() -> None:
    rows = [row("after", 1, -100.0), row("after", 2, -200.0), row("before", 1, -100.0), row("before", 2, -220.0)]
    before, after, difference = summarize(rows)
    assert before.startswith("ppo Pendulum-v1, before: mean -160.0 [")
    assert after.startswith("ppo Pendulum-v1, after: mean -150.0 [")
    assert difference.startswith("  after - before: +10.0 [") and difference.endswith(
        "1 of 2 seeds have the same curve"
    )


def test_one_seed_of_each_label_can_be_compared() -> None:
    assert summarize([row("before", 1, 5.0), row("after", 1, 5.0)])[-1].endswith("1 of 1 seeds have the same curve")


def test_a_run_becomes_a_row(monkeypatch: pytest.MonkeyPatch) -> None:
    small = ("Pendulum-v1", "--total-steps", "300", "--num-envs", "1", "--rollout-steps", "128")
    monkeypatch.setattr("benchmarks.learned_alike.TASKS", {"ppo": small})
    monkeypatch.setattr("benchmarks.learned_alike.COMMON", ("--eval-episodes", "1", "--no-console"))
    found = train(Path(__file__).parents[2], "ppo", 5)
    assert (found["algorithm"], found["env"], found["seed"], found["steps"]) == ("ppo", "Pendulum-v1", 5, 256)
    assert found["curve"].endswith(f"256:{found['return_mean']:.6f}")
    assert -2000 < found["return_mean"] < 0
