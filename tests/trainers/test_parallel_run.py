"""Runs that several processes train together."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import minerva
from minerva.checkpointing import CheckpointError
from tests.trainers import shared_runs
from tests.trainers.pairs import COUNT, TIMEOUT, run_pair
from tests.trainers.ppo.small_run import learned, logged, metrics_of, same, same_run, state_of
from tests.trainers.shared_runs import ENVS, SETTINGS, STEPS, TOTAL, pendulum


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of torchrun's of which one process was killed, and those of `shared_runs`."""
    folder = tmp_path_factory.mktemp("runs")
    train_and_kill_one(folder / "killed")
    run_pair(shared_runs, folder)
    return folder


def train_and_kill_one(folder: Path) -> None:
    """Train from the command line, and kill rank 1 after some checkpoints: torchrun starts the processes again."""
    options = [f"--{name.replace('_', '-')}={value}" for name, value in SETTINGS.items() if name != "console"]
    words = ["train", "ppo", "--env=Pendulum-v1", "--preset=none", "--seed=4", "--device=cpu", f"--out-dir={folder}"]
    launcher = ["torch.distributed.run", "--standalone", f"--nproc-per-node={COUNT}", "--max-restarts=1"]
    program = ["minerva", *words, "--resume-or-start", f"--total-steps={TOTAL}", *options]
    process = subprocess.Popen(
        [sys.executable, "-m", *launcher, "-m", *program],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        written: set[int] = set()
        deadline = time.monotonic() + TIMEOUT
        while len(written) < 3 and time.monotonic() < deadline and process.poll() is None:
            written |= {path.stat().st_mtime_ns for path in folder.glob("*_last.pt")}
            time.sleep(0.002)
        for number in ranks_of(process.pid, "1"):
            os.kill(number, signal.SIGKILL)
        said, _ = process.communicate(timeout=TIMEOUT)
    finally:
        process.kill()
    assert process.returncode == 0, said
    assert said.count("One of 2 processes (gloo) with 4 environments.") == 2, said  # rank 0 alone speaks
    assert said.count("neither compiled nor captured") == 2 and said.count("Resuming from") == 1, said


def ranks_of(parent: int, rank: str) -> Iterator[int]:
    for child in Path(f"/proc/{parent}/task/{parent}/children").read_text().split():
        if f"\0RANK={rank}\0" in Path(f"/proc/{child}/environ").read_text():
            yield int(child)


def json_of(path: Path) -> Any:
    return json.loads(path.read_text())


def said(runs: Path, rank: int = 0) -> dict[str, str]:
    found: dict[str, str] = json_of(runs / f"said-{rank}.json")
    return found


def test_a_run_of_which_a_process_was_killed_resumes_bit_for_bit(runs: Path) -> None:
    description = json_of(runs / "killed" / "config.json")
    assert description["ranks"] == COUNT and 0 < description["resumed"][0]["from_step"] < TOTAL
    assert same_run(runs / "whole", runs / "killed")


def test_a_run_is_the_same_with_callbacks_that_watch_every_step_save_and_stop(runs: Path) -> None:
    assert said(runs)["stopped"] == "callback at 700, True"
    assert same_run(runs / "whole", runs / "aside")  # resumed from a checkpoint that the callback has written
    assert same(learned(runs / "whole"), learned(runs / "watched"))
    rows = [row for row in metrics_of(runs / "watched") if row[0] != 700]  # a run that a callback stops is evaluated
    assert repr(rows) == repr(metrics_of(runs / "whole"))


def test_a_signal_to_one_process_saves_and_ends_all_of_them(runs: Path) -> None:
    assert said(runs, 0)["signal"] == said(runs, 1)["signal"] == "SystemExit: 143"
    notes = (runs / "terminated" / "notes.log").read_text()
    assert "SIGTERM: saved at step" in notes and same_run(runs / "whole", runs / "terminated")


def test_an_environment_that_fails_in_one_process_ends_all_of_them(runs: Path) -> None:
    reason = "environment 1 raised RuntimeError in step: the motor is broken"
    assert said(runs, 0)["failure of rank 1"] == f"EnvironmentFailureError: rank 1: {reason}"
    assert said(runs, 1)["failure of rank 1"] == f"EnvironmentFailureError: {reason}"
    assert said(runs, 0)["failure of rank 0"] == f"EnvironmentFailureError: {reason}"
    assert said(runs, 1)["failure of rank 0"] == f"RankLostError: rank 0: {reason}"
    assert same_run(runs / "whole", runs / "failed")  # resumed twice from the checkpoints before


def test_a_callback_that_fails_saves_the_run_of_all(runs: Path) -> None:
    failure = "ZeroDivisionError: the callback is broken"
    assert said(runs, 0)["failure of a callback"] == failure
    assert said(runs, 1)["failure of a callback"] == f"RankLostError: rank 0: {failure}"
    assert json_of(runs / "recurrent parts" / "config.json")["resumed"][0]["from_step"] == 304
    assert same_run(runs / "recurrent", runs / "recurrent parts")


def test_all_processes_end_with_the_same_weights_and_results(runs: Path) -> None:
    first, second = (torch.load(runs / f"weights-{rank}.pt", weights_only=True) for rank in range(COUNT))
    assert first.keys() == second.keys() and all(same(first[name], second[name]) for name in first)
    names = ("whole", "watched", "terminated", "failed", "recurrent")
    assert all(said(runs, 0)[name] == said(runs, 1)[name] for name in names)


def test_the_log_counts_steps_and_episodes_of_all_environments(runs: Path) -> None:
    ends = Counter(step for step, _ in logged(runs / "whole", "train/episode_length"))
    every = 200 * ENVS  # an episode of Pendulum has 200 steps, and one more to restart
    assert ends == {every: ENVS}
    steps = [step for step, name, _ in metrics_of(runs / "whole") if name == "losses/policy_loss"]
    assert steps == [STEPS * ENVS * k for k in range(1, TOTAL // (STEPS * ENVS) + 1)]
    assert [step for step, _ in logged(runs / "whole", "eval/return_mean")] == [0, 512, 1024]


def test_normalizers_have_seen_what_all_processes_saw(runs: Path) -> None:
    state = state_of(runs / "whole")
    (other,) = state["ranks"]
    assert state["agent"]["obs_normalizer.count"].item() == pytest.approx(TOTAL + ENVS + 1e-4, abs=1e-9)
    restarts = ENVS * (TOTAL // ENVS // 201)
    for collector in (state["collector"], other["collector"]):
        assert collector["reward_normalizer"]["statistics.count"].item() == pytest.approx(TOTAL - restarts + 1e-4)
        assert not collector["unmerged"].any()
    assert not torch.equal(state["action_noise"], other["action_noise"])
    assert not torch.equal(state["minibatch_order"], other["minibatch_order"])


def test_mistakes_are_one_sentence_in_every_process(runs: Path) -> None:
    rules = {
        "taken": "holds a run already",
        "num_envs": "num_envs: must be divisible by the number of processes that share them, 2, got 5; try 6.",
        "minibatch_size": "by the number of processes that contribute to each minibatch, 2, got 63; try 64.",
        "minibatches": "minibatches: must divide the 9 rows of a rollout that each of 2 processes has, got 2.",
        "mpo": "is trained by one process, got 2 of them",
        "BatchNorm": "use LayerNorm, or one process",
    }
    for rank in range(COUNT):
        assert all(rule in said(runs, rank)[name] for name, rule in rules.items())


def test_a_run_resumes_with_as_many_processes_as_it_had(runs: Path) -> None:
    trainer = pendulum()
    with pytest.raises(
        CheckpointError, match=r"by a run of 2 processes and resumes with as many, got 1; start it with"
    ):
        trainer.load(runs / "whole")
    trainer.init_from(runs / "whole")  # a new run with its policy may have another number
    assert same(dict(trainer.agent.state_dict()), state_of(runs / "whole")["agent"])
    trainer.close()


def test_its_policy_acts_without_the_other_processes(runs: Path) -> None:
    action = minerva.load(runs / "whole").act(np.zeros(3, np.float32))
    assert action.shape == (1,)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_two_processes_on_gpus_train_and_resume(tmp_path: Path) -> None:
    run_pair(shared_runs, tmp_path, "cuda")
    each = torch.cuda.device_count() >= COUNT  # NCCL refuses two ranks on one GPU
    for rank in range(COUNT):
        where = f"cuda:{rank if each else 0}"
        assert said(tmp_path, rank)["ranks"] == f"2 processes ({'nccl' if each else 'gloo'}) on {where}"
        assert said(tmp_path, rank)["parts"] == said(tmp_path, rank)["whole"]
    assert same(learned(tmp_path / "whole"), learned(tmp_path / "parts"))
    first, second = (torch.load(tmp_path / f"weights-{rank}.pt", "cpu", weights_only=True) for rank in range(COUNT))
    assert all(same(first[name], second[name]) for name in first)
