from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from benchmarks import sleeping_trainer
from minerva.sweeps import local
from minerva.sweeps.executor import Ended, RunFolder
from minerva.sweeps.local import LocalExecutor
from minerva.sweeps.spec import Resources

PROGRAM = (sys.executable, sleeping_trainer.__file__)


def executor(jobs: int = 2, **resources: Any) -> LocalExecutor:
    return LocalExecutor(jobs, Resources(**resources), PROGRAM)


def starts_of(folder: Path) -> Any:
    return json.loads((folder / sleeping_trainer.CHECKPOINT).read_text())["starts"]


def wait_for(path: Path) -> None:
    deadline = time.monotonic() + 30
    while not path.exists():
        assert time.monotonic() < deadline, path
        time.sleep(0.01)


def test_processes_run_side_by_side_in_their_folders(tmp_path: Path) -> None:
    started = executor(jobs=2)
    for name, words in (("a", ("2", "0.1")), ("b", ("2", "0.1", "refuses"))):
        assert started.has_room(Resources())
        started.submit(RunFolder(tmp_path / name, words, {"WANDB_RUN_GROUP": "mine"}, tmp_path), Resources())
    assert not started.has_room(Resources())
    ended: list[Ended] = []
    while len(ended) < 2:
        ended += started.wait(30)
    assert sorted(ended) == [Ended(tmp_path / "a", 0), Ended(tmp_path / "b", 2)]
    assert started.wait(0) == [] and started.has_room(Resources())
    assert (tmp_path / "b" / "output.log").read_text() == "minerva: env: it fell over.\n"
    (start,) = starts_of(tmp_path / "a")
    assert start == {
        "MINERVA_CORES": "1", "OMP_NUM_THREADS": "1", "WANDB_RUN_GROUP": "mine",
        "CUDA_VISIBLE_DEVICES": os.environ.get("CUDA_VISIBLE_DEVICES"),
    }  # fmt: skip


def test_stop_lets_a_run_save_and_kill_does_not_ask(tmp_path: Path) -> None:
    started = executor()
    started.submit(RunFolder(tmp_path / "kind", ("200", "40"), {}, tmp_path), Resources())
    started.submit(RunFolder(tmp_path / "deaf", ("200", "40", "deaf"), {}, tmp_path), Resources())
    for name in ("kind", "deaf"):
        wait_for(tmp_path / name / sleeping_trainer.CHECKPOINT)
    started.stop()
    assert started.wait(30) == [Ended(tmp_path / "kind", 143)]
    started.stop(kill=True)
    assert started.wait(30) == [Ended(tmp_path / "deaf", -signal.SIGKILL)]


def test_shares_of_gpus_are_given_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,5")
    started = executor(jobs=9, gpu=0.5)
    half, two = Resources(gpu=0.5), Resources(gpu=2.0)
    assert started.has_room(two)
    for name in "abcd":
        assert started.has_room(half)
        started.submit(RunFolder(tmp_path / name, ("2", "0.2"), {}, tmp_path), half)
    assert not started.has_room(half) and not started.has_room(two)
    ended = 0
    while ended < 4:
        ended += len(started.wait(30))
    assert [starts_of(tmp_path / name)[0]["CUDA_VISIBLE_DEVICES"] for name in "abcd"] == ["3", "3", "5", "5"]
    assert started.has_room(two)


def test_more_than_this_machine_has_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local, "machine_cores", lambda: 4)
    assert LocalExecutor(None, Resources(cores=2))._jobs == 2
    with pytest.raises(ValueError, match=r"^cores: must be at most 4, those of this machine, got 5\."):
        LocalExecutor(None, Resources(cores=5))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    with pytest.raises(ValueError, match=r"^gpu: must be at most 0, the number of GPUs of this machine, got 0\.25"):
        LocalExecutor(None, Resources(gpu=0.25))


SWEEP = """
import sys, time
from pathlib import Path
from minerva.sweeps.executor import RunFolder
from minerva.sweeps.local import LocalExecutor
from minerva.sweeps.spec import Resources
started = LocalExecutor(1, Resources(), (sys.executable, sys.argv[1]))
started.submit(RunFolder(Path(sys.argv[2]), ("200", "40", "deaf"), {}, Path.cwd()), Resources())
time.sleep(100)
"""


def test_a_run_does_not_survive_its_sweep(tmp_path: Path) -> None:
    sweep = subprocess.Popen([sys.executable, "-c", SWEEP, PROGRAM[1], str(tmp_path / "run")])
    wait_for(tmp_path / "run" / sleeping_trainer.CHECKPOINT)
    pid = json.loads((tmp_path / "run" / "run.lock").read_text())["pid"]
    sweep.kill()
    sweep.wait()
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return
        time.sleep(0.05)
    os.kill(pid, signal.SIGKILL)
    pytest.fail("the run outlived its sweep")
