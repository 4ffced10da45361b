from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from minerva.sweeps.status import (
    EvaluationLog,
    RunStatus,
    SweepStatus,
    last_words,
    lines_of,
    read_progress,
    summary_of,
)


def status_of(*runs: RunStatus) -> SweepStatus:
    return SweepStatus("mine", "local", list(runs))


def run(**fields: object) -> RunStatus:
    made = RunStatus("ppo/Pendulum-v1/default/seed1", "ppo", "Pendulum-v1", "default", 1, 1000)
    for name, value in fields.items():
        setattr(made, name, value)
    return made


def test_what_is_written_is_read(tmp_path: Path) -> None:
    status = status_of(run(state="failed", error="env: it fell over."), run(state="done", evaluation=-2.5))
    status.write(tmp_path)
    again = SweepStatus.read(tmp_path)
    assert again == status and again.counts()["failed"] == 1
    assert json.loads((tmp_path / "status.json").read_text())["counts"] == status.counts()
    assert list(tmp_path.iterdir()) == [tmp_path / "status.json"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "there is no status.json in it; give a folder that `minerva sweep` wrote."),
        ("{", "is damaged"),
        ("[]", "is damaged"),
        ('{"format": 99}', "it has format 99, and this Minerva reads 1"),
        ('{"format": 1, "runs": [{"folder": "x"}]}', "is damaged"),
    ],
)
def test_a_folder_without_a_status(tmp_path: Path, text: str | None, message: str) -> None:
    if text is not None:
        (tmp_path / "status.json").write_text(text)
    with pytest.raises(ValueError, match=r"^status: ") as refused:
        SweepStatus.read(tmp_path)
    assert message in str(refused.value)
    with pytest.raises(ValueError, match="there is no such folder"):
        SweepStatus.read(tmp_path / "nowhere")


def test_nothing_runs_where_the_sweep_has_died() -> None:
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    for dead in (
        {"pid": child.pid},
        {"host": "elsewhere", "updated": time.time() - 100},
        {"ended": True},
    ):
        status = status_of(run(state="running", steps_per_second=7.0))
        for name, value in dead.items():
            setattr(status, name, value)
        assert not status.is_alive()
        assert status.settled().runs[0].state == "stopped"
    for alive in ({"pid": os.getpid()}, {"host": "elsewhere", "updated": time.time()}):
        status = status_of(run(state="running"))
        for name, value in alive.items():
            setattr(status, name, value)
        assert status.settled().runs[0].state == "running"


def test_lines_for_people() -> None:
    status = status_of(
        run(state="done", steps=1000, evaluation=-12.34, seconds=61.0, steps_per_second=16.4),
        run(folder="x", state="failed", steps=500, error="env: it fell over."),
        run(folder="y"),
    )
    status.seconds_left = 3700.0
    width = len("ppo/Pendulum-v1/default/seed1")
    assert list(lines_of(status)) == [
        "done    ppo/Pendulum-v1/default/seed1  1,000 steps  16 steps/s  0:01:01  return -12.3",
        f"failed  {'x':<{width}}  500 of 1,000 steps  env: it fell over.",
        "waiting y",
        "mine: 3 runs: 1 done, 1 failed, 1 waiting  1:01:40 left",
    ]
    first, last = lines_of(status, ["failed"])
    assert first.startswith("failed  x  500") and last.startswith("mine: 3 runs")
    assert summary_of(status_of(run())) == "mine: 1 run: 0 done, 1 waiting"


def test_progress_comes_from_the_end_of_the_log(tmp_path: Path) -> None:
    assert read_progress(tmp_path) is None
    log = tmp_path / "metrics.csv"
    log.write_text("step,name,value\n")
    assert read_progress(tmp_path) is None
    log.write_text(
        "step,name,value\n64,losses/policy_loss,0.5\n64,eval/return_mean,-7.5\n128,losses/policy_loss,1\n192,lo"
    )
    assert read_progress(tmp_path) == (128, -7.5)
    log.write_text("step,name,value\n1,eval/return_mean,nan\n")
    assert read_progress(tmp_path) == (1, None)
    rows = "".join(f"{k},train/episode_return,{k}\n" for k in range(200_000))
    log.write_text(f"step,name,value\n1,eval/return_mean,3.0\n{rows}")
    begin = time.process_time()
    assert read_progress(tmp_path) == (199_999, None)
    assert time.process_time() - begin < 0.1


def test_last_words(tmp_path: Path) -> None:
    assert last_words(tmp_path) is None
    for said, expected in (
        ("ppo 5%\n", None),
        ("minerva: warning: odd\nppo 5%\n", None),
        ("ppo 5%\nminerva: env: it fell over.\nResume with: x\n", "env: it fell over."),
        ("Traceback (most recent call last):\n  File\nZeroDivisionError: no\n\n", "ZeroDivisionError: no"),
    ):
        (tmp_path / "output.log").write_text(said)
        assert last_words(tmp_path) == expected


def test_ten_thousand_runs_are_listed_in_a_second(tmp_path: Path) -> None:
    names = [f"gamma={k}" for k in range(10_000)]
    runs = [RunStatus(f"ppo/X/{name}/seed1", "ppo", "X", name, 1, 10**6, "done", 10**6, 1234.5) for name in names]
    SweepStatus("large", "local", runs, ended=True).write(tmp_path)
    begin = time.process_time()
    lines = list(lines_of(SweepStatus.read(tmp_path).settled()))
    assert time.process_time() - begin < 2.0
    assert len(lines) == 10_001


def test_evaluations_are_read_as_they_are_written(tmp_path: Path) -> None:
    log, found = tmp_path / "metrics.csv", EvaluationLog(tmp_path)
    assert found.read() == []
    log.write_text("step,name,value\n0,eval/return_mean,-3.5\n16,train/loss,1\n16,eval/retu")
    assert found.read() == [-3.5]
    with log.open("a") as file:
        file.write("rn_mean,2\n32,eval/return_mean,4\n")
    assert found.read() == [-3.5, 2.0, 4.0] == EvaluationLog(tmp_path).read()
    log.write_text("step,name,value\n0,eval/return_mean,-3.5\n")  # resumed from a checkpoint before
    assert found.read() == [-3.5]
