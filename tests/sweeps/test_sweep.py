from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

import pytest

from benchmarks import sleeping_trainer
from minerva.sweeps import sweep as sweeping
from minerva.sweeps.display import Display
from minerva.sweeps.executor import Ended, Executor, RunFolder
from minerva.sweeps.expansion import PlannedRun
from minerva.sweeps.local import LocalExecutor
from minerva.sweeps.spec import Resources
from minerva.sweeps.status import Progress, SweepStatus, read_progress
from minerva.sweeps.sweep import Sweep, SweepResult
from minerva.utils.folder_lock import FolderLock, LockedError

PROGRAM = (sys.executable, sleeping_trainer.__file__)


def planned(name: str, *wrong: str, steps: int = 10, seconds: float = 0.1, **settings: Any) -> PlannedRun:
    words = (str(steps), str(seconds), *wrong)
    return PlannedRun(f"ppo/{name}/default/seed1", "ppo", name, "default", 1, steps, steps, settings, words)


def sweep(out: Path, *runs: PlannedRun, jobs: int = 2, display: Display | None = None, **options: Any) -> SweepResult:
    executor = LocalExecutor(jobs, Resources(), PROGRAM)
    return Sweep("mine", runs, out, executor, Resources(), display=display, **options).run()


def states(result: SweepResult) -> dict[str, str]:
    return {run.env: run.state for run in result.runs}


def checkpoint(out: Path, name: str) -> Any:
    return json.loads((out / "ppo" / name / "default/seed1" / sleeping_trainer.CHECKPOINT).read_text())


def steps_of(path: Path) -> int:
    try:
        return int(json.loads(path.read_text())["steps"])
    except (FileNotFoundError, ValueError):  # it is being written
        return 0


def when(there: Callable[[], bool], then: Callable[[], None]) -> threading.Thread:
    """Do something as soon as it is possible."""

    def watch() -> None:
        while not there():
            time.sleep(0.01)
        then()

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    return thread


def test_a_failing_run_does_not_stop_the_others(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runs = [planned("good"), planned("bad", "fails"), planned("wrong", "refuses"), planned("odd", "crashes-once")]
    result = sweep(tmp_path / "out", *runs, planned("lost", "crashes"), jobs=5, retries=1, display=Display())
    assert states(result) == {"good": "done", "bad": "failed", "wrong": "failed", "odd": "done", "lost": "failed"}
    by_name = {run.env: run for run in result.runs}
    assert by_name["bad"].error == by_name["wrong"].error == "env: it fell over."
    assert by_name["lost"].error == "its process was killed by SIGKILL"
    # Exit code 2 is for what no second attempt mends.
    attempts = {name: run.attempts for name, run in by_name.items()}
    assert attempts == {"good": 1, "wrong": 1, "odd": 2, "bad": 2, "lost": 2}
    assert by_name["good"].evaluation == -10 and by_name["good"].steps == 10
    assert repr(result) == f"SweepResult(2 of 5 runs done, 3 failed, in {tmp_path / 'out'})"
    said = capsys.readouterr().out
    assert "failed  ppo/wrong/default/seed1  5 of 10 steps" in said and "env: it fell over.  (" in said
    assert "retry   ppo/odd/default/seed1: its process was killed by SIGKILL" in said


def test_the_status_file_says_what_the_result_says(tmp_path: Path) -> None:
    result = sweep(tmp_path, planned("good"), planned("bad", "refuses"))
    status = SweepStatus.read(tmp_path)
    assert tuple(status.runs) == result.runs and status.ended and not status.is_alive()
    assert status.counts() == {"done": 1, "running": 0, "failed": 1, "pruned": 0, "stopped": 0, "waiting": 0}
    assert status.pid == os.getpid() and status.name == "mine"


def test_started_twice_it_runs_only_what_is_missing(tmp_path: Path) -> None:
    sweep(tmp_path, planned("one"), planned("bad", "fails"), retries=0)
    result = sweep(tmp_path, planned("one"), planned("bad"), planned("two"))
    assert states(result) == {"one": "done", "bad": "done", "two": "done"}
    assert [len(checkpoint(tmp_path, name)["starts"]) for name in ("one", "two")] == [1, 1]
    assert checkpoint(tmp_path, "bad")["steps"] == 10  # it was resumed
    (tmp_path / "ppo/two/default/seed1" / sleeping_trainer.CHECKPOINT).unlink()
    sweep(tmp_path, planned("one"), planned("two"))  # which has lost its checkpoint
    assert checkpoint(tmp_path, "two")["steps"] == 10
    sweep(tmp_path, planned("one", steps=12))  # now it is to be longer
    assert checkpoint(tmp_path, "one")["steps"] == 12


def test_other_settings_need_another_folder(tmp_path: Path) -> None:
    sweep(tmp_path, planned("one", gamma=0.9))
    with pytest.raises(
        ValueError, match=r"^gamma: must stay 0\.9, with which .*one/default/seed1 was started, got 0\.5"
    ):
        sweep(tmp_path, planned("one", gamma=0.5), planned("two"))
    with pytest.raises(ValueError, match=r"^gamma: must stay 0\.9, .* got the default; give the same, or choose"):
        sweep(tmp_path, planned("one"))
    with pytest.raises(ValueError, match="^total_steps: must be at least 10, because"):  # noqa: RUF043
        sweep(tmp_path, planned("one", steps=9, gamma=0.9))
    assert not (tmp_path / "ppo/two").exists()
    assert len(checkpoint(tmp_path, "one")["starts"]) == 1


def test_a_finished_run_drops_its_replay_buffer_unless_it_is_kept(tmp_path: Path) -> None:
    replay = "ppo/one/default/seed1/ppo_last.replay"
    sweep(tmp_path / "a", planned("one"))
    sweep(tmp_path / "b", planned("one"), keep_replay=True)
    assert not (tmp_path / "a" / replay).exists() and (tmp_path / "b" / replay).exists()


def test_a_second_sweep_in_the_folder_is_refused(tmp_path: Path) -> None:
    lock = FolderLock(tmp_path, tmp_path)
    lock.acquire()
    try:
        with pytest.raises(LockedError, match="^out: one process at a time may run a sweep in a folder, and .* in use"):  # noqa: RUF043
            sweep(tmp_path, planned("one"))
    finally:
        lock.release()
    assert list(tmp_path.iterdir()) == []
    assert states(sweep(tmp_path, planned("one"))) == {"one": "done"}


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_saves_and_stops_all_and_starting_again_goes_on(tmp_path: Path, number: signal.Signals) -> None:
    runs = [planned(name, steps=200, seconds=40) for name in ("one", "two", "three")]
    folders = [tmp_path / run.folder / sleeping_trainer.CHECKPOINT for run in runs[:2]]
    when(lambda: all(steps_of(path) for path in folders), lambda: os.kill(os.getpid(), number))
    before = signal.getsignal(number)
    result = sweep(tmp_path, *runs)
    assert signal.getsignal(number) is before
    assert result.stopped_by == number
    assert states(result) == {"one": "stopped", "two": "stopped", "three": "waiting"}
    steps = [checkpoint(tmp_path, name)["steps"] for name in ("one", "two")]
    assert all(0 < count < 200 for count in steps)
    # It goes on from there: as many steps as are left, and no more.
    rest = [planned(name, steps=200, seconds=0.01) for name in ("one", "two", "three")]
    assert set(states(sweep(tmp_path, *rest)).values()) == {"done"}
    rows = (tmp_path / "ppo/one/default/seed1/metrics.csv").read_text().splitlines()
    assert [row.split(",")[0] for row in rows[1:]] == [str(k) for k in range(1, 201)]


def test_a_second_signal_does_not_wait(tmp_path: Path) -> None:
    run = planned("one", "deaf", steps=200, seconds=40)
    path = tmp_path / run.folder / sleeping_trainer.CHECKPOINT

    def twice() -> None:
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0.5)
        os.kill(os.getpid(), signal.SIGINT)

    when(path.exists, twice)
    assert states(sweep(tmp_path, run)) == {"one": "stopped"}


def test_a_sweep_that_was_killed_goes_on(tmp_path: Path) -> None:
    """As after SIGKILL: the status says that a run is running, and a finished one is not known to be."""
    sweep(tmp_path, planned("one"), planned("two"))
    status = SweepStatus.read(tmp_path)
    status.runs[0].state, status.ended = "running", False
    status.write(tmp_path)
    assert states(sweep(tmp_path, planned("one"), planned("two"))) == {"one": "done", "two": "done"}
    assert [len(checkpoint(tmp_path, name)["starts"]) for name in ("one", "two")] == [2, 1]


def test_a_run_whose_process_cannot_be_started_does_not_stop_the_others(tmp_path: Path) -> None:
    (tmp_path / "ppo").mkdir()
    (tmp_path / "ppo" / "blocked").write_text("a file in its place")
    result = sweep(tmp_path, planned("blocked"), planned("good"))
    assert states(result) == {"blocked": "failed", "good": "done"}
    assert result.failed[0].error == "its process could not be started (Not a directory)"
    assert result.failed[0].attempts == 3  # as often as any other failure


def test_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match=r"^out: .* cannot be created"):
        sweep(tmp_path / "file" / "out", planned("one"))


class InstantExecutor(Executor):
    """Ends each run when it is asked for, one at a time."""

    name = "instant"

    def __init__(self, slots: int) -> None:
        self._slots = slots
        self._running: deque[Path] = deque()

    def open(self, folder: Path) -> None:
        pass

    def has_room(self, resources: Resources) -> bool:
        return len(self._running) < self._slots

    def submit(self, run: RunFolder, resources: Resources) -> None:
        run.path.mkdir(parents=True)
        (run.path / "metrics.csv").write_text("step,name,value\n10,eval/return_mean,1\n")
        self._running.append(run.path)

    def wait(self, seconds: float) -> list[Ended]:
        return [Ended(self._running.popleft(), 0)]

    def stop(self, paths: Collection[Path] | None = None, kill: bool = False) -> None:
        self._running.clear()

    def close(self) -> None:
        pass


def test_what_a_finished_run_costs_does_not_grow_with_the_number_of_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A thousand runs in five hundred slots: at each end, the logs of the other runs stay closed."""
    read: list[Path] = []

    def counted(folder: Path) -> Progress | None:
        read.append(folder)
        return read_progress(folder)

    monkeypatch.setattr(sweeping, "read_progress", counted)
    runs = [planned(f"v{k}") for k in range(1000)]
    begin = time.monotonic()
    result = Sweep("mine", runs, tmp_path, InstantExecutor(500), Resources(), display=Display()).run()
    took = time.monotonic() - begin
    assert {run.state for run in result.runs} == {"done"} and {run.steps for run in result.runs} == {10}
    assert len(read) <= 1000 + 200 * (took + 1)  # each when it ends, and 200 per second
    assert capsys.readouterr().out.splitlines()[-1].endswith("(1,000 of 1,000)")
