from __future__ import annotations

import json
import sys
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path

import jax
import numpy as np
import pytest
import torch

from benchmarks.peers.__main__ import add, main
from benchmarks.peers.comparisons import COMPARISONS, chosen
from benchmarks.peers.contest import Comparison, Contender, MeasurementError, measure, ratios, run, version_in
from benchmarks.peers.mpo_jax import State, make_update
from minerva.trainers.mpo.agent import MPOAgent
from minerva.trainers.mpo.config import MPOConfig
from minerva.trainers.mpo.update import Batch

RUNNERS = """
import os
import time
from pathlib import Path


def rate(amount, name, rates, log):
    path = Path(log)
    before = path.read_text().split() if path.exists() else []
    path.write_text(" ".join([*before, name]))
    return amount * rates[before.count(name)]


def threads(amount):
    return int(os.environ.get("OMP_NUM_THREADS", 0))


def failing(amount):
    raise ValueError("no wind today")


def sleeping(amount):
    time.sleep(60)
"""


@pytest.fixture
def runners(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "runners_of_a_test.py").write_text(RUNNERS)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    return tmp_path


def runner(folder: Path, name: str, *rates: float, ours: bool = False) -> Contender:
    fields = {"name": name, "rates": rates, "log": str(folder / "log")}
    return Contender(name, "runners_of_a_test:rate", f"{name}'s settings", fields, ours=ours)


def test_contenders_take_turns_and_minerva_is_set_in_relation_to_its_peers(runners: Path) -> None:
    missing = Contender("absent", "runners_of_a_test:rate", "", packages=("a_package_that_nobody_has",))
    failing = Contender("failing", "runners_of_a_test:failing", "")
    both = (runner(runners, "hare", 3, 100, 4, ours=True), runner(runners, "tortoise", 2, 1, 1))
    said: list[str] = []
    result = run(Comparison("race", "a mile", (missing, *both, failing), 10), repeats=3, say=said.append)
    assert (runners / "log").read_text() == "hare tortoise hare tortoise hare tortoise"
    assert result["contenders"] == {
        "hare": {"settings": "hare's settings", "samples": [30, 1000, 40], "median": 40},
        "tortoise": {"settings": "tortoise's settings", "samples": [20, 10, 10], "median": 10},
    }
    assert result["ratios"] == {"hare": {"tortoise": 4}}
    assert result["left_out"] == {
        "absent": "a_package_that_nobody_has cannot be imported",
        "failing": "it failed: ValueError: no wind today",
    }
    assert (result["settings"], result["unit"], result["amount"]) == ("a mile", "steps/s", 10)
    assert said[0] == "race: absent is left out: a_package_that_nobody_has cannot be imported."
    assert sum("failing" in line for line in said) == 1  # it is not tried again


def test_a_failure_says_what_it_died_of(runners: Path) -> None:
    with pytest.raises(MeasurementError, match="ValueError: no wind today"):
        measure(Contender("failing", "runners_of_a_test:failing", ""), 1)
    with pytest.raises(MeasurementError, match=r"it took longer than 0\.1 s"):
        measure(Contender("sleeping", "runners_of_a_test:sleeping", ""), 1, limit=0.1)


def test_threads_are_the_contenders_own(runners: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    counted = [measure(Contender("", "runners_of_a_test:threads", "", threads=threads), 1) for threads in (None, 1)]
    assert counted == [0, 1]


def test_another_interpreter_is_asked_for_what_is_missing_here(tmp_path: Path) -> None:
    (tmp_path / "rare").mkdir()
    (tmp_path / "rare" / "__init__.py").write_text("def rate(amount):\n    return 2 * amount\n")
    (tmp_path / "rare-1.5.dist-info").mkdir()
    (tmp_path / "rare-1.5.dist-info" / "METADATA").write_text("Name: rare\nVersion: 1.5\n")
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nPYTHONPATH={tmp_path}:$PYTHONPATH exec {sys.executable} "$@"\n')
    python.chmod(0o755)
    comparison = Comparison("one", "", (Contender("rare", "rare:rate", "", packages=("rare",)),), 4)
    result = run(comparison, repeats=1, peers_python=str(python), say=lambda line: None)
    assert result["contenders"]["rare"]["samples"] == [8]
    assert result["versions"] == {"rare": f"1.5 with torch {version('torch')}"}
    assert run(comparison, repeats=1, say=lambda line: None)["left_out"] == {"rare": "rare cannot be imported"}


def test_versions_are_those_of_the_interpreter() -> None:
    assert version_in(sys.executable, "numpy") == np.__version__
    assert version_in(sys.executable, "a_package_that_nobody_has") is None


def test_each_row_of_minerva_has_its_ratios() -> None:
    rows = [Contender(name, "", "", ours=name.isupper()) for name in ("A", "B", "c")]
    assert ratios(rows, {"A": 6.0, "B": 3.0, "c": 2.0}) == {"A": {"c": 3.0}, "B": {"c": 1.5}}


def test_results_are_kept_by_comparison(tmp_path: Path) -> None:
    path = tmp_path / "speed" / "peers.json"
    add(path, "first", {"settings": "old", "versions": {}})
    add(path, "second", {"settings": "other", "versions": {"rare": "1"}})
    add(path, "first", {"settings": "new", "versions": {}})
    found = json.loads(path.read_text())
    assert {name: row["settings"] for name, row in found.items()} == {"first": "new", "second": "other"}
    assert found["second"]["versions"]["rare"] == "1" and found["second"]["versions"]["torch"] == version("torch")
    assert found["first"]["commit"] and "cores" in found["first"]["hardware"]


def test_names_of_comparisons() -> None:
    assert chosen(None) == list(COMPARISONS)
    assert [comparison.name for comparison in chosen(["mpo-update", "ppo-1", "mpo-update-small"])] == [
        "mpo-update-small", "mpo-update-large", "ppo-1"
    ]  # fmt: skip
    with pytest.raises(ValueError, match=r"--only: must be among ppo-1, ppo-8, .*; got ppo-9\."):
        chosen(["ppo-9"])
    for comparison in COMPARISONS:
        names = [contender.name for contender in comparison.contenders]
        assert len(set(names)) == len(names) and any(contender.ours for contender in comparison.contenders)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--only", "ppo-9"], "got ppo-9."),
        (["--repeats", "0"], "--repeats: must be at least 1, got 0."),
        (["--peers-python", "no/python"], "--peers-python: must be an interpreter, got no/python."),
    ],
)
def test_a_mistake_is_answered_with_a_sentence(
    arguments: list[str], message: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["peers", *arguments])
    with pytest.raises(SystemExit) as stopped:
        main()
    assert stopped.value.code == 2 and capsys.readouterr().err.strip().endswith(message)


def test_minerva_and_stable_baselines3_are_measured() -> None:
    (cartpole,) = chosen(["cartpole-8"])
    rows = {contender.name: replace(contender, packages=()) for contender in cartpole.contenders}
    minerva, baselines = rows["Minerva on Gymnasium"], rows["stable-baselines3, one thread"]
    minerva = replace(minerva, fields={**minerva.fields, "compiled": False})  # compiling takes longer than all the rest
    result = run(Comparison("short", "", (minerva, baselines), 1024), repeats=1, say=lambda line: None)
    assert result["left_out"] == {}
    assert [row["median"] > 100 for row in result["contenders"].values()] == [True, True]
    (ratio,) = result["ratios"]["Minerva on Gymnasium"].values()
    assert 0.1 < ratio < 10


def vectors(agent: MPOAgent) -> State:
    """What was learned, as the update of JAX has it."""
    policy, q, duals, policy_target, q_target = agent.state
    moments = (torch.stack([part.average, part.square]) for part in (policy, q, duals))
    parts = (policy.parameters, policy_target, q.parameters, q_target, duals.parameters, *moments, q.steps)
    return State._make([part.numpy() for part in parts])


@pytest.mark.parametrize("shared", [False, True])
def test_jax_computes_what_minerva_computes(shared: bool) -> None:
    torch.manual_seed(0)
    config = MPOConfig(
        policy_layer_sizes=(8,), critic_layer_sizes=(8, 4), action_samples=5, target_networks_update_period=2,
        shared_critic_pass=shared,
    )  # fmt: skip
    agent = MPOAgent(3, 2, -1, 1, config=config)
    batch = Batch(torch.randn(8, 3), torch.randn(8, 2), torch.randn(8), torch.full((8,), 0.99), torch.randn(8, 3))
    update = jax.jit(make_update((8,), (8, 4), 2, config), compiler_options={"xla_backend_optimization_level": 0})
    state = State._make([part.copy() for part in vectors(agent)])
    for _ in range(3):
        noise = agent.draw_noise(batch)
        agent.step(batch, noise)
        state = update(state, tuple(part.numpy() for part in batch), torch.cat(noise).numpy())
    for ours, theirs in zip(vectors(agent), state, strict=True):
        np.testing.assert_allclose(theirs, ours, rtol=1e-4, atol=3e-6)
