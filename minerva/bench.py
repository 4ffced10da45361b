"""Measure the speed of training on this machine, and where the time goes.

It runs `train` itself, with clocks around acting, stepping the environments and updating.
"""

from __future__ import annotations

import dataclasses
import itertools
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from minerva import checkpointing
from minerva.callbacks import Callback
from minerva.trainers.config import RunConfig
from minerva.trainers.trainer import Trainer
from minerva.utils.hardware import gpu, hardware, peak_memory
from minerva.utils.ranks import launched

if TYPE_CHECKING:
    from rich.table import Table

SECONDS = 20.0
"""Default duration of a measurement."""
NO_STEP_LIMIT = 10**12
"""More steps than any measurement takes."""


@dataclass(frozen=True)
class Start:
    """Start-up time of a run: the seconds before its first environment step."""

    imports: float
    making: float  # building environments and networks
    opening: float  # starting the run: its folder, the first checkpoint and the first episodes

    @property
    def total(self) -> float:
        """Sum of all parts."""
        return self.imports + self.making + self.opening


@dataclass(frozen=True)
class Window:
    """The measured interval of a benchmark: whole rounds, from the first step after an update to a later such step."""

    seconds: float
    env_steps: int
    updates: int
    acting: float  # seconds, like the next two
    simulating: float
    updating: float
    peak_memory: int | None  # bytes, of this process, at the end
    peak_gpu_memory: int | None

    @property
    def shares(self) -> dict[str, float]:
        """Fraction of the time per part; they sum to 1."""
        parts = {"acting": self.acting, "simulating": self.simulating, "updating": self.updating}
        rest = self.seconds - sum(parts.values())
        return {name: seconds / self.seconds for name, seconds in {**parts, "rest": rest}.items()}

    @property
    def steps_per_second(self) -> float:
        """Steps of all environments together per second of training, without evaluation."""
        return self.env_steps / self.seconds

    @property
    def updates_per_second(self) -> float:
        """Updates per second of training, acting and simulating included."""
        return self.updates / self.seconds

    @property
    def update_ms(self) -> float:
        """Milliseconds per update alone."""
        return 1e3 * self.updating / self.updates


@dataclass(frozen=True)
class Measurement:
    """A measurement of the speed of training, and the run it was made on."""

    algorithm: str
    env_id: str
    seed: int
    device: str
    backend: str
    path: str  # how updates run: plain, compiled, captured, or compiled and captured
    total_steps: int
    window: Window
    start: Start
    first_updates: int  # number of updates in the first round
    first_updates_ms: float
    notes: tuple[str, ...]
    settings: dict[str, Any]

    def to_plain(self) -> dict[str, Any]:
        """Return everything as plain values for JSON, with versions, hardware and commit."""
        window = self.window
        return {
            "algorithm": self.algorithm,
            "env_id": self.env_id,
            "seed": self.seed,
            "device": self.device,
            "backend": self.backend,
            "path": self.path,
            "steps_per_second": window.steps_per_second,
            "shares": window.shares,
            "updates_per_second": window.updates_per_second,
            "update_ms": window.update_ms,
            "first_updates": self.first_updates,
            "first_updates_ms": self.first_updates_ms,
            "start_seconds": {"total": self.start.total, **dataclasses.asdict(self.start)},
            "peak_memory_bytes": window.peak_memory,
            "peak_gpu_memory_bytes": window.peak_gpu_memory,
            "measured": {"seconds": window.seconds, "env_steps": window.env_steps, "updates": window.updates},
            "notes": list(self.notes),
            "total_steps": self.total_steps,
            "settings": self.settings,
            "versions": checkpointing.versions(),
            "hardware": hardware(),
            "gpu": gpu() if self.device.startswith("cuda") else None,
            "git_commit": checkpointing.git_commit(),
            "command": checkpointing.command_line(),
        }

    def table(self) -> Table:
        """Build the table for the terminal."""
        from rich.box import SIMPLE
        from rich.markup import escape
        from rich.table import Table

        title = escape(f"{self.algorithm} on {self.env_id}")
        table = Table(
            title=title, title_justify="left", title_style="bold", box=SIMPLE, pad_edge=False, show_header=False
        )
        table.add_column(no_wrap=True)
        table.add_column(justify="right", no_wrap=True)
        table.add_column(style="dim")
        for what, value, remark in self._rows():
            table.add_row(what, value, escape(remark), style="bold" if what == "Steps per second" else None)
        return table

    def _rows(self) -> Iterator[tuple[str, str, str]]:
        window, start = self.window, self.start
        yield "Steps per second", _number(window.steps_per_second), f"{window.env_steps:,} in {window.seconds:.1f} s"
        for name, share in window.shares.items():
            each = f"{_number(1e6 * share / window.steps_per_second)} µs"
            what = ": storing, normalizing, logging" if name == "rest" else " per step"
            yield f"  {name}", f"{share:.1%}", each + what
        yield "Updates per second", _number(window.updates_per_second), f"{window.updates:,} updates"
        yield "Time per update", f"{_number(window.update_ms)} ms", f"path: {self.path}"
        several = f"{self.first_updates} updates" if self.first_updates > 1 else "update"
        yield f"First {several}", f"{_number(self.first_updates_ms)} ms", "including set-up and compiling"
        yield (
            "Before the first step",
            f"{_number(start.total)} s",
            f"imports {_number(start.imports)}, making {_number(start.making)}, opening {_number(start.opening)}",
        )
        yield "Peak memory", _mebibytes(window.peak_memory), "of this process"
        if window.peak_gpu_memory is not None:
            yield "Peak GPU memory", _mebibytes(window.peak_gpu_memory), "reserved by torch"
        yield "Device", self.device, self.backend


def bench(
    make_trainer: Callable[[RunConfig], Trainer],
    config: RunConfig,
    total_steps: int,
    seconds: float = SECONDS,
    steps: int | None = None,
    begin: float | None = None,
) -> Measurement:
    """Measure the speed of training, and where the time goes.

    The warm-up ends with the first round of updates. Then it measures as many whole rounds as fit into the time, and
    at least one. No files are left on the disk.

    Args:
        make_trainer: Builds a trainer from a config.
        config: The settings. Evaluations, checkpoints, console output and Weights & Biases are switched off, and
            updates from a replay buffer start with the first batch.
        total_steps: Length of the run to measure for: it decides whether updates are compiled.
        seconds: How long to measure.
        steps: Environment steps to measure instead of `seconds`, rounded up to whole rounds.
        begin: Value of `time.perf_counter` at the start of the program; now by default.

    Raises:
        ValueError: A setting is invalid, the run would make no update, or torchrun has started several processes.
    """
    if launched():
        raise ValueError("bench: measures a run of one process, got several (torchrun); start it without torchrun.")
    marks = [time.perf_counter() if begin is None else begin, time.perf_counter()]
    load_notes = _load_notes()
    config, changes = prepare_config(config)
    trainer = make_trainer(config)
    notes = [note for note in trainer.notes if trainer.env.description not in note]  # the table shows it
    marks.append(time.perf_counter())
    try:
        trainer.config.check_length(total_steps)
        clocks = Clocks(trainer)
        with tempfile.TemporaryDirectory(prefix="minerva-bench-") as folder:
            warm_up = Stopwatch(clocks, lambda elapsed, rounds, env_steps: True)
            trainer.train(total_steps, out_dir=folder, callbacks=warm_up)
            if trainer.updates == 0:
                raise ValueError(f"total_steps: a run of {total_steps:,} steps makes no update; increase it.")
            marks.append(warm_up.begin)
            first_updates, first_seconds = trainer.updates, clocks.updating.seconds
            # The first call decided what is compiled; that does not change.
            watch = Stopwatch(clocks, long_enough(seconds, steps))
            trainer.train(NO_STEP_LIMIT, out_dir=folder, callbacks=watch)
        assert watch.window is not None
        return Measurement(
            trainer.algorithm,
            trainer.env_name,
            trainer.seed,
            str(trainer.device),
            trainer.env.description,
            str(trainer.acceleration),
            total_steps,
            watch.window,
            Start(*(after - before for before, after in itertools.pairwise(marks))),
            first_updates,
            1e3 * first_seconds,
            (*notes, *changes, *load_notes),
            config.to_plain(),
        )
    finally:
        trainer.close()


def prepare_config(config: RunConfig) -> tuple[RunConfig, list[str]]:
    """Return the config that a benchmark measures, and notes on how it differs from the given one."""
    changes: dict[str, Any] = {
        "eval_episodes": 0, "checkpoint_interval": None, "checkpoint_minutes": 0.0, "console": False, "wandb": "off",
    }  # fmt: skip
    notes = ["Evaluations, checkpoints, console output and Weights & Biases are left out."]
    wait, batch = getattr(config, "update_after", 0), getattr(config, "batch_size", 0)
    if wait > batch:
        changes["update_after"] = batch
        notes.append(f"Updates start after {batch:,} transitions (update_after) instead of {wait:,}.")
    return dataclasses.replace(config, **changes), notes


def _load_notes() -> list[str]:
    load, cores = os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0, os.cpu_count() or 1
    return [f"The machine was already busy (load {load:.1f} on {cores} cores)."] if load >= cores else []


# Clocks


class Clock:
    """Measure a method: replace it, and sum the time that its calls take.

    Args:
        owner: Object that has the method.
        name: Name of the method.
        device: Device it runs on; on a GPU, the time includes the work that a call queued, and no earlier work.
    """

    def __init__(self, owner: Any, name: str, device: torch.device) -> None:
        self.seconds = 0.0
        self._method = getattr(owner, name)
        self._gpu = device if device.type == "cuda" else None
        setattr(owner, name, self)

    def __call__(self, *arguments: Any) -> Any:
        """Call the method and add its time."""
        if self._gpu is not None:
            torch.cuda.synchronize(self._gpu)
        begin = time.perf_counter()
        result = self._method(*arguments)
        if self._gpu is not None:
            torch.cuda.synchronize(self._gpu)
        self.seconds += time.perf_counter() - begin
        return result


class Clocks:
    """The clocks of a trainer that is measured: acting, simulating and updating.

    Args:
        trainer: Trainer of any algorithm: each has a collector and an update.
    """

    def __init__(self, trainer: Any) -> None:
        collector, cpu = trainer.collector, torch.device("cpu")
        self.device: torch.device = trainer.device
        self.acting = Clock(collector, "actor", trainer.actor.device)
        workers, asynchronous = trainer.config.rollout_workers, trainer.config.asynchronous
        stepping = "step" if workers is None else "take" if asynchronous else "collect"  # then: waiting for workers
        self.simulating = Clock(trainer.env, stepping, cpu)
        self.updating = Clock(trainer, "update", trainer.device)

    def start(self) -> None:
        """Set all clocks to 0."""
        for clock in (self.acting, self.simulating, self.updating):
            clock.seconds = 0.0

    def read(self, seconds: float, env_steps: int, updates: int) -> Window:
        """Return the measured interval since the start."""
        on_gpu = self.device.type == "cuda"
        return Window(
            seconds,
            env_steps,
            updates,
            self.acting.seconds,
            self.simulating.seconds,
            self.updating.seconds,
            peak_memory(),
            torch.cuda.max_memory_reserved(self.device) if on_gpu else None,
        )


Enough = Callable[[float, int, int], bool]
"""Maps elapsed seconds, rounds of updates and environment steps to whether the measurement is long enough."""


class Stopwatch(Callback):
    """Run the clocks of a benchmark during a call of `train`, and stop it at the first step after a round of updates.

    The next call resumes there and stops at the same point of a later round, so it measures whole rounds.
    """

    def __init__(self, clocks: Clocks, enough: Enough) -> None:
        self.begin = 0.0
        self.window: Window | None = None
        self._clocks = clocks
        self._enough = enough
        self._rounds = 0

    def on_training_start(self, trainer: Any) -> None:
        """Start the clocks."""
        self._first_step, self._first_update = trainer.env_steps, trainer.updates
        self._updates = trainer.updates
        self._clocks.start()
        self.begin = time.perf_counter()

    def on_step(self, trainer: Any) -> bool | None:
        """Read the clocks when a round is over, and stop if it is enough."""
        if trainer.updates == self._updates:
            return None
        elapsed = time.perf_counter() - self.begin
        self._updates = trainer.updates
        self._rounds += 1
        env_steps = trainer.env_steps - self._first_step
        if not self._enough(elapsed, self._rounds, env_steps):
            return None
        self.window = self._clocks.read(elapsed, env_steps, trainer.updates - self._first_update)
        return False


def long_enough(seconds: float, steps: int | None) -> Enough:
    """Return the rule when a benchmark stops: after `steps`, or if another round would exceed `seconds`."""
    if steps is not None:
        return lambda elapsed, rounds, env_steps: env_steps >= steps
    return lambda elapsed, rounds, env_steps: elapsed + elapsed / rounds > seconds


# Numbers


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def _mebibytes(count: int | None) -> str:
    return "unknown" if count is None else f"{count / 2**20:,.0f} MiB"
