"""Run a sweep: start or resume each of its runs, until all have ended."""

from __future__ import annotations

import json
import shutil
import signal
import threading
import time
import uuid
from collections import deque
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from types import FrameType
from typing import Any

from minerva.sweeps.display import Display
from minerva.sweeps.executor import Ended, Executor, RunFolder
from minerva.sweeps.expansion import PlannedRun
from minerva.sweeps.spec import Resources
from minerva.sweeps.status import RunStatus, SweepStatus, last_words, read_progress
from minerva.utils.folder_lock import TOKEN_VARIABLE, FolderLock
from minerva.utils.ranges import shown

PLAN = "sweep.json"
_WAIT_SECONDS = 0.2
_LOOK_SECONDS = 1.0  # between two looks at the logs of running runs
_LOOKS = 200  # logs that are looked at each time: a file system that a thousand nodes share has other work to do
_LOOK_SHARE = 0.1  # of the time, for looking, where that file system is slow
_WRITE_SHARE = 0.02  # of the time, for writing the status
_BEAT_SECONDS = 10.0  # the status is written at least so often
_LOSSES = 10  # how often in a row the machine of a run may die
_STOP_SIGNALS = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name))


@dataclass(frozen=True)
class SweepResult:
    """How a sweep has ended."""

    out_dir: Path
    """Its folder."""
    runs: tuple[RunStatus, ...]
    """Its runs, in the order of the specification."""
    stopped_by: int | None = None
    """The signal that stopped it."""

    @property
    def failed(self) -> list[RunStatus]:
        """The runs that failed; `error` of each says why."""
        return [run for run in self.runs if run.state == "failed"]

    def __repr__(self) -> str:
        done = sum(run.state == "done" for run in self.runs)
        return f"SweepResult({done} of {len(self.runs)} runs done, {len(self.failed)} failed, in {self.out_dir})"


class Sweep:
    """A sweep in its folder. One process at a time may run it.

    A subclass may plan further runs while the others run (`_plan_more`, `_is_complete`), look at them (`_looked`) and
    end those that it does not need (`_prune`).

    Args:
        name: Its name.
        runs: What is to be run.
        out_dir: Its folder.
        executor: Starts the runs.
        resources: What each of them may use.
        retries: How often a run is resumed that has failed without getting further.
        keep_replay: Keep the replay buffers of finished runs.
        display: Shows how far it has come.
    """

    _rule = "out: one process at a time may run a sweep in a folder"

    def __init__(
        self,
        name: str,
        runs: Sequence[PlannedRun],
        out_dir: Path,
        executor: Executor,
        resources: Resources,
        retries: int = 2,
        keep_replay: bool = False,
        display: Display | None = None,
    ) -> None:
        self.out_dir = out_dir
        self._start = Path.cwd()
        self._folder = self._start / out_dir
        self._plan: dict[str, PlannedRun] = {}
        self._executor = executor
        self._resources = resources
        self._retries = retries
        self._keep_replay = keep_replay
        self._display = display or Display(quiet=True)
        self._runs: dict[str, RunStatus] = {}
        self.status = SweepStatus(name, executor.name, [])
        self._waiting: deque[str] = deque()
        self._running: dict[str, _Attempt] = {}
        self._futile: dict[str, int] = {}  # failures in a row without getting further
        self._pruned: set[str] = set()  # runs that are not to be finished
        self._turn: dict[str, None] = {}  # the running runs, in the order in which their logs are looked at
        self._token = uuid.uuid4().hex
        self._signal: int | None = None
        self._signals = 0
        self._told = 0
        self._next_look = self._next_write = 0.0
        self._before = 0  # steps that had been taken when the sweep was started
        for run in runs:
            self._add(run)

    def run(self) -> SweepResult:
        """Run until every run has ended or a signal stops the sweep; starting again goes on.

        Raises:
            LockedError: Another process runs a sweep in the folder.
            ValueError: The folder holds a run that was started with other settings, or cannot be written to.
            ClusterLostError: The cluster is gone.
        """
        new = not self._folder.exists()
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ValueError(
                f"out: {self.out_dir} cannot be created ({error.strerror}); choose another folder."
            ) from error
        lock = FolderLock(self._folder, self.out_dir, rule=self._rule)
        with ExitStack() as closing:
            if new:
                closing.callback(_remove_empty, self._folder)  # where the executor refuses
            closing.callback(lock.release)
            lock.acquire()
            closing.callback(self._executor.close)
            self._executor.open(self._folder)
            self._read_earlier()  # which may begin a study; not where nothing can be started
            self._write_plan()
            self._catch_signals(closing)
            self._display.open(self.status)
            closing.callback(self._display.close)
            self._before = sum(run.steps for run in self._runs.values())
            try:
                self._loop(lock)
            except BaseException:
                self._end_all()
                raise
            finally:
                if lock.lost is None:
                    self._finish()
        return SweepResult(self.out_dir, tuple(self._runs.values()), self._signal)

    # What was there before

    def _read_earlier(self) -> None:
        """Go on from what the folder knows of an earlier start.

        Raises:
            ValueError: A run was started with other settings.
        """
        try:
            plan = json.loads((self._folder / PLAN).read_text(encoding="utf-8"))
            planned = {run["folder"]: run for run in plan["runs"]}
            self._token = str(plan["token"])
            earlier = {run.folder: run for run in SweepStatus.read(self._folder).runs}
        except FileNotFoundError:
            planned, earlier = {}, {}
        except (OSError, ValueError, KeyError, TypeError):
            planned, earlier = {}, {}  # each run's folder still knows what it holds
        for folder, run in self._runs.items():
            before = earlier.get(folder)
            if before is not None and before.attempts and folder in planned:
                self._check_same(self._plan[folder], planned[folder])
                run.steps, run.seconds, run.attempts = before.steps, before.seconds, before.attempts
                run.evaluation = before.evaluation
                longer = self._plan[folder].total_steps > planned[folder]["total_steps"]
                last = self._folder / folder / f"{run.algorithm}_last.pt"
                if before.state == "done" and not longer and last.exists():
                    run.state = "done"
                    continue
            self._waiting.append(folder)

    def _check_same(self, run: PlannedRun, before: dict[str, Any]) -> None:
        now = json.loads(json.dumps(run.to_plain()))
        if now["total_steps"] < before["total_steps"]:
            raise ValueError(
                f"total_steps: must be at least {before['total_steps']}, because {self.out_dir / run.folder} was "
                f"started with so many, got {now['total_steps']}; give as many or more, or choose another --out."
            )
        for name in sorted({*now["settings"], *before["settings"]}):
            known = (now["settings"], before["settings"])
            ours, its = (shown(settings[name]) if name in settings else "the default" for settings in known)
            if ours != its:
                raise ValueError(
                    f"{name}: must stay {its}, with which {self.out_dir / run.folder} was started, got {ours}; give "
                    "the same, or choose another --out."
                )

    def _write_plan(self) -> None:
        plan = {
            "format": 1,
            "name": self.status.name,
            "token": self._token,
            "resources": self._resources._asdict(),
            "keep_replay": self._keep_replay,
            "runs": [run.to_plain() for run in self._plan.values()],
        }
        temporary = self._folder / f"{PLAN}.part"
        temporary.write_text(json.dumps(plan, separators=(",", ":")) + "\n", encoding="utf-8")
        temporary.replace(self._folder / PLAN)
        self.status.write(self._folder)

    # The loop

    def _loop(self, lock: FolderLock) -> None:
        while self._running or (self._signal is None and not self._is_complete()):
            if lock.lost is not None:
                raise lock.lost
            while self._signal is None and self._executor.has_room(self._resources):
                if not self._waiting and not self._plan_more():
                    break
                self._submit(self._waiting.popleft())
            if self._signal is not None:
                self._tell_to_stop()
            ended = self._executor.wait(_WAIT_SECONDS)
            for one in ended:
                self._handle(one)
            self._look(bool(ended))

    def _is_complete(self) -> bool:
        """Return whether nothing is left to be started."""
        return not self._waiting

    def _plan_more(self) -> bool:
        """Add runs, now that there is room and none is waiting; return whether there are any."""
        return False

    def _looked(self) -> None:
        """React to what the logs of the runs say, which has just been read."""

    def _add(self, run: PlannedRun) -> None:
        status = RunStatus(run.folder, run.algorithm, run.env, run.variant, run.seed, run.final_step)
        self._plan[run.folder], self._runs[run.folder] = run, status
        self.status.runs.append(status)

    def _prune(self, folders: Sequence[str]) -> None:
        """Stop runs that are not to be finished; each that has begun is saved."""
        running = [folder for folder in folders if folder in self._running]
        self._pruned.update(running)
        if running:
            self._executor.stop([self._folder / folder for folder in running])
        for folder in folders:
            if folder in self._waiting:
                self._waiting.remove(folder)
                self._runs[folder].state = "pruned"
                self._display.ended(self._runs[folder], self.status)

    def _submit(self, folder: str) -> None:
        run = self._runs[folder]
        run.state, run.error = "running", None
        run.attempts += 1
        self._running[folder] = _Attempt(time.monotonic(), run.steps, run.seconds)
        self._turn[folder] = None
        variables = {TOKEN_VARIABLE: self._token, "WANDB_RUN_GROUP": self.status.name}
        path = self._folder / folder
        try:
            self._executor.submit(RunFolder(path, self._plan[folder].words, variables, self._start), self._resources)
        except OSError as error:  # a full disk, or too many processes: the others may still go on
            self._handle(Ended(path, 1, f"its process could not be started ({error.strerror or error})"))

    def _handle(self, ended: Ended) -> None:
        folder = ended.path.relative_to(self._folder).as_posix()
        run, attempt = self._runs[folder], self._running.pop(folder)
        del self._turn[folder]
        self._update(run, attempt)
        run.steps_per_second = None
        if ended.code == 0:
            run.state = "done"
            run.steps_per_second = attempt.pace(run)
            if not self._keep_replay:
                _drop_replay(ended.path)
        elif folder in self._pruned:
            run.state = "pruned"
            if not self._keep_replay:
                _drop_replay(ended.path)
        elif self._signal is not None:
            run.state = "stopped"
        else:
            error = ended.error or last_words(ended.path) or _describe_code(ended.code)
            self._futile[folder] = 1 if run.steps > attempt.steps else self._futile.get(folder, 0) + 1
            allowed = max(self._retries, _LOSSES) if ended.lost else self._retries
            if ended.code == 2 or self._futile[folder] > allowed:
                run.state, run.error = "failed", error
            else:
                run.state = "waiting"
                self._waiting.appendleft(folder)
                self._display.say(f"retry   {folder}: {error}")
                return
        self._display.ended(run, self.status)

    def _look(self, changed: bool) -> None:
        """Bring the status up to date, write it and show it, each when it is due."""
        now = time.monotonic()
        if now >= self._next_look:  # by the clock alone: what it costs must not grow with the number of ends
            for folder in list(islice(self._turn, _LOOKS)):
                self._turn[folder] = self._turn.pop(folder)
                self._update(self._runs[folder], self._running[folder])
                self._runs[folder].steps_per_second = self._running[folder].pace(self._runs[folder])
            self._looked()
            self._estimate()
            self._next_look = now + max(_LOOK_SECONDS, (time.monotonic() - now) / _LOOK_SHARE)
            changed = True
        self._display.show(self.status)
        if now >= self._next_write and changed:
            self._write()

    def _write(self) -> None:
        begin = time.monotonic()
        with suppress(OSError):  # a full disk: the runs know themselves how far they are
            self.status.write(self._folder)
        took = time.monotonic() - begin
        self._next_write = begin + min(max(_LOOK_SECONDS, took / _WRITE_SHARE), _BEAT_SECONDS)

    def _update(self, run: RunStatus, attempt: _Attempt) -> None:
        run.seconds = attempt.seconds + time.monotonic() - attempt.begin
        progress = read_progress(self._folder / run.folder)
        if progress is not None:
            run.steps = max(run.steps, progress.steps)
            if progress.evaluation is not None:
                run.evaluation = progress.evaluation

    def _estimate(self) -> None:
        elapsed = max(time.time() - self.status.started, 1e-9)
        rate = (sum(run.steps for run in self._runs.values()) - self._before) / elapsed
        left = self._steps_left()
        self.status.steps_per_second = round(rate, 1)
        self.status.seconds_left = left / rate if rate > 0 else None

    def _steps_left(self) -> int:
        return sum(
            max(run.total_steps - run.steps, 0) for run in self._runs.values() if run.state in ("running", "waiting")
        )

    def _finish(self) -> None:
        for folder in self._running:
            self._runs[folder].state = "stopped"
        self._estimate()
        self.status.ended, self.status.seconds_left = True, None
        self.status.write(self._folder)

    # Stopping

    def _catch_signals(self, closing: ExitStack) -> None:
        if threading.current_thread() is not threading.main_thread():
            return  # Python delivers signals to the main thread alone
        for number in _STOP_SIGNALS:
            if signal.getsignal(number) is not signal.SIG_IGN:  # such as SIGHUP under nohup
                closing.callback(signal.signal, number, signal.signal(number, self._on_signal))

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self._signal = self._signal or number
        self._signals += 1

    def _tell_to_stop(self) -> None:
        if self._told == 0:
            name = signal.Signals(self._signal or signal.SIGINT).name
            self._display.say(f"{name}: saving and stopping {len(self._running)} runs. Once more ends them at once.")
            self._executor.stop()
            self._told = self._signals
        elif self._signals > self._told:
            self._executor.stop(kill=True)
            self._told = self._signals

    def _end_all(self) -> None:
        """End what is running after an error of the sweep itself: each run has its checkpoint."""
        with suppress(Exception):
            self._executor.stop()
            deadline = time.monotonic() + 60
            while self._running and time.monotonic() < deadline:
                for ended in self._executor.wait(_WAIT_SECONDS):
                    self._running.pop(ended.path.relative_to(self._folder).as_posix(), None)
            self._executor.stop(kill=True)


@dataclass(slots=True)
class _Attempt:
    """One process of a run."""

    begin: float
    steps: int  # that the run had taken before
    seconds: float

    def pace(self, run: RunStatus) -> float | None:
        """Return its steps per second so far."""
        taken = run.seconds - self.seconds
        return (run.steps - self.steps) / taken if run.steps > self.steps and taken > 0 else None


def _remove_empty(folder: Path) -> None:
    with suppress(OSError):
        folder.rmdir()


def _drop_replay(folder: Path) -> None:
    """Delete the replay buffer of a run that has ended: it is many times as large as the rest."""
    for replay in folder.glob("*_last.replay"):
        shutil.rmtree(replay, ignore_errors=True)


def _describe_code(code: int) -> str:
    if code >= 0:
        return f"its process ended with exit code {code}"
    try:
        return f"its process was killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"its process was killed by signal {-code}"
