"""What is known of a sweep's runs, in one small file: thousands are listed without opening their folders."""

from __future__ import annotations

import json
import math
import os
import socket
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Literal, NamedTuple, Self, get_args

from minerva.utils.folder_lock import STALE_SECONDS

STATUS = "status.json"
FORMAT = 1
OUTPUT = "output.log"
"""What a run prints, in its folder."""
_TAIL = 1 << 14  # bytes that are read from the end of a run's log

State = Literal["done", "running", "failed", "pruned", "stopped", "waiting"]
STATES: tuple[State, ...] = get_args(State)


@dataclass(slots=True)
class RunStatus:
    """What is known of one run."""

    folder: str
    """Relative to the sweep's folder."""
    algorithm: str
    env: str
    variant: str
    seed: int
    total_steps: int
    """Environment step at which it ends."""
    state: State = "waiting"
    steps: int = 0
    """Environment steps that its log knows of."""
    steps_per_second: float | None = None
    """Over its newest process, start and evaluations included."""
    seconds: float = 0.0
    """Time of all its processes."""
    attempts: int = 0
    """Processes that were started for it."""
    evaluation: float | None = None
    """Mean return of its newest evaluation."""
    error: str | None = None
    """Why it failed, in a sentence."""

    @property
    def cell(self) -> str:
        """What its seeds have in common, for tables."""
        return "/".join(part for part in (self.algorithm, self.env, self.variant) if part)


@dataclass
class SweepStatus:
    """What is known of a sweep."""

    name: str
    on: str
    runs: list[RunStatus]
    host: str = field(default_factory=socket.gethostname)
    pid: int = field(default_factory=os.getpid)
    started: float = field(default_factory=time.time)
    """Seconds since 1970, when the sweep was started for the last time."""
    updated: float = 0.0
    """Seconds since 1970."""
    ended: bool = False
    """Whether the process that ran it has come to its end."""
    steps_per_second: float = 0.0
    """Of all runs together, since the sweep was started for the last time."""
    seconds_left: float | None = None
    note: str = ""
    """What else is to be said of it: how far a search is, and what it has found."""

    def counts(self) -> dict[State, int]:
        """Return how many runs there are in each state."""
        counts = Counter(run.state for run in self.runs)
        return {state: counts[state] for state in STATES}

    def write(self, folder: Path) -> None:
        """Write the status file atomically."""
        self.updated = time.time()
        temporary = folder / f"{STATUS}.part"
        temporary.write_text(json.dumps(self.to_plain(), separators=(",", ":")) + "\n", encoding="utf-8")
        temporary.replace(folder / STATUS)

    def to_plain(self, runs: Sequence[RunStatus] | None = None) -> dict[str, Any]:
        """Return what the file holds, with all runs or with some."""
        head = {"format": FORMAT, **{key: getattr(self, key) for key in _HEAD}, "counts": self.counts()}
        return {**head, "runs": [_plain_run(run) for run in (self.runs if runs is None else runs)]}

    @classmethod
    def read(cls, folder: Path) -> Self:
        """Read the status file of a sweep's folder.

        Raises:
            ValueError: There is none, or it cannot be read.
        """
        path = folder / STATUS
        try:
            plain = json.loads(path.read_text(encoding="utf-8"))
            if plain["format"] != FORMAT:
                raise ValueError(f"it has format {plain['format']}, and this Minerva reads {FORMAT}")
            return cls(
                runs=[RunStatus(**run) for run in plain["runs"]], **{key: plain[key] for key in _HEAD if key in plain}
            )
        except (FileNotFoundError, NotADirectoryError) as error:
            what = f"there is no {STATUS} in it" if folder.is_dir() else "there is no such folder"
            raise ValueError(
                f"status: {folder} is not a sweep's folder: {what}; give a folder that `minerva sweep` wrote."
            ) from error
        except OSError as error:
            raise ValueError(f"status: {path} cannot be read ({error.strerror}); check the file system.") from error
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(
                f"status: {path} is damaged ({error}); start the sweep again, which rewrites it."
            ) from error

    def is_alive(self) -> bool:
        """Return whether the process that runs the sweep is alive; on another host, by the age of its status."""
        if self.ended:
            return False
        if self.host == socket.gethostname():
            try:
                os.kill(self.pid, 0)
            except (ProcessLookupError, OverflowError):
                return False
            except OSError:  # another user's
                return True
            return True
        return time.time() - self.updated < STALE_SECONDS

    def settled(self) -> SweepStatus:
        """Return it as it is: where the sweep's process has died, nothing is running."""
        if not self.is_alive():
            for run in self.runs:
                if run.state == "running":
                    run.state, run.steps_per_second = "stopped", None
            self.steps_per_second, self.seconds_left = 0.0, None
        return self


_HEAD = tuple(f.name for f in fields(SweepStatus) if f.name != "runs")
_RUN = tuple(f.name for f in fields(RunStatus))


def _plain_run(run: RunStatus) -> dict[str, Any]:
    return {name: getattr(run, name) for name in _RUN}


class Progress(NamedTuple):
    """How far a run's log has come."""

    steps: int
    evaluation: float | None


def read_progress(folder: Path) -> Progress | None:
    """Read the end of a run's ``metrics.csv``; None where there is nothing yet."""
    try:
        with (folder / "metrics.csv").open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(size - _TAIL, 0))
            lines = file.read(_TAIL).split(b"\n")[:-1]  # the last one may be incomplete
    except OSError:
        return None
    steps, evaluation = None, None
    for line in reversed(lines[1:]):  # the first is the header, or incomplete
        step, _, rest = line.partition(b",")
        name, _, value = rest.partition(b",")
        with suppress(ValueError):
            steps = max(int(step), steps or 0)
            if name == b"eval/return_mean":
                evaluation = float(value)
                break
    if evaluation is not None and not math.isfinite(evaluation):
        evaluation = None  # JSON has no word for it
    return None if steps is None else Progress(steps, evaluation)


class EvaluationLog:
    """The evaluations in a run's ``metrics.csv``, which are read as they are written.

    Args:
        folder: The run's folder.
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder / "metrics.csv"
        self._offset = 0
        self._means: list[float] = []

    def read(self) -> list[float]:
        """Return the mean returns of all evaluations so far."""
        try:
            with self._path.open("rb") as file:
                if file.seek(0, os.SEEK_END) < self._offset:  # a resumed run has dropped what it takes again
                    self._offset = 0
                    self._means.clear()
                file.seek(self._offset)
                new = file.read()
        except OSError:
            return self._means
        whole = new.rfind(b"\n") + 1  # the last line may be incomplete
        self._offset += whole
        for line in new[:whole].splitlines():
            _, _, rest = line.partition(b",")
            name, _, value = rest.partition(b",")
            if name == b"eval/return_mean":
                with suppress(ValueError):
                    self._means.append(float(value))
        return self._means


def last_words(folder: Path) -> str | None:
    """Return the error that a run's newest process printed; None where it printed none."""
    try:
        with (folder / OUTPUT).open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(size - _TAIL, 0))
            lines = file.read(_TAIL).decode("utf-8", "replace").splitlines()
    except OSError:
        return None
    said = [line for line in lines if line.strip()]
    # The sentence of the command line, or the last line of a traceback.
    for line in reversed(said[-20:]):
        if line.startswith("minerva: ") and not line.startswith("minerva: warning: "):
            return line.removeprefix("minerva: ")
    return said[-1].strip() if said and any(line.startswith("Traceback ") for line in said) else None


def lines_of(status: SweepStatus, states: Sequence[str] = ()) -> Iterator[str]:
    """Yield a line for each run (of the given states), and a last one for all of them together."""
    runs = [run for run in status.runs if not states or run.state in states]
    width = max((len(run.folder) for run in runs), default=0)
    for run in runs:
        yield f"{run.state:<8}{run.folder:<{width}}  {facts_of(run)}".rstrip()
    yield summary_of(status)


def facts_of(run: RunStatus) -> str:
    """Return what a line says of a run besides its state and folder."""
    if run.state == "waiting" and not run.steps:
        return ""
    parts = [f"{run.steps:,} of {run.total_steps:,} steps" if run.state != "done" else f"{run.steps:,} steps"]
    if run.steps_per_second:
        parts.append(f"{run.steps_per_second:,.0f} steps/s")
    if run.seconds:
        parts.append(duration(run.seconds))
    if run.evaluation is not None:
        parts.append(f"return {run.evaluation:,.1f}")
    if run.error is not None:
        parts.append(run.error)
    return "  ".join(parts)


def summary_of(status: SweepStatus) -> str:
    """Return one line about the whole sweep."""
    counts = [f"{count:,} {state}" for state, count in status.counts().items() if count or state == "done"]
    parts = [f"{status.name}: {len(status.runs):,} run{'s' * (len(status.runs) != 1)}: {', '.join(counts)}"]
    if status.steps_per_second:
        parts.append(f"{status.steps_per_second:,.0f} steps/s")
    if status.seconds_left is not None:
        parts.append(f"{duration(status.seconds_left)} left")
    parts += [status.note] if status.note else []
    return "  ".join(parts)


def duration(seconds: float) -> str:
    """Format seconds as h:mm:ss."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}"
