"""A sample of the generated bad inputs; `python -m benchmarks.bad_input` runs all of them."""

from __future__ import annotations

import itertools
import random
from pathlib import Path

import pytest

from benchmarks.bad_input import Result, command_line, config


def not_refused(results: list[Result]) -> list[Result]:
    return [result for result in results if result.verdict != "refused"]


def test_configs() -> None:
    found = list(config.results(300, seed=7))
    assert not_refused(found) == []


def test_combinations_of_bad_values() -> None:
    ppo, *_ = single = config.cases()[:200]
    pairs = [{name: value, other: worse} for (_, name, value), (_, other, worse) in itertools.pairwise(single)]
    assert not_refused([config.attempt(ppo[0], pair) for pair in pairs]) == []


def test_a_config_that_is_fine_and_one_that_is_not_are_told_apart() -> None:
    ppo = config.cases()[0][0]
    assert config.attempt(ppo, {"gamma": 0.5}).verdict == "accepted"
    assert config.attempt(ppo, {"gamma": 1.5}).verdict == "refused"
    assert config.attempt(ppo, {"gamma": 0.5, "rollout_steps": None}).verdict == "refused"


def test_commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    words = command_line.commands(random.Random(5))[:15]
    assert not_refused([command_line.in_this_process(list(one)) for one in words]) == []
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("words", [["--torch-threads", "100000"], ["--env-kwargs", f"g={30_000 * '['}"]])
def test_a_command_that_could_bring_its_process_down(words: list[str]) -> None:
    result = command_line.in_a_process(["train", "ppo", "--env", "Pendulum-v1", "--preset", "none", *words])
    assert result.verdict == "refused", result


def test_a_command_that_is_fine_is_told_apart() -> None:
    assert command_line.in_this_process(["--version"]).verdict == "accepted"
    assert command_line.in_this_process(["presets", "ppo"]).verdict == "accepted"
