"""Runs as processes of this machine."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Collection, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from minerva.sweeps.executor import Ended, Executor, RunFolder
from minerva.sweeps.spec import Resources
from minerva.sweeps.status import OUTPUT
from minerva.utils.cores import CORES_VARIABLE, machine_cores
from minerva.utils.parent import PARENT_VARIABLE

_POLL_SECONDS = 0.05


PROGRAM = (sys.executable, "-m", "minerva.cli")


def start_process(run: RunFolder, resources: Resources, program: Sequence[str] = PROGRAM) -> subprocess.Popen[bytes]:
    """Start the process of a run; what it prints goes into its folder."""
    run.path.mkdir(parents=True, exist_ok=True)
    environment = {
        **os.environ,
        # The package, or the module of an environment, may be importable only through the path of this process.
        "PYTHONPATH": os.pathsep.join(part or "." for part in sys.path),
        CORES_VARIABLE: str(resources.cores),
        "OMP_NUM_THREADS": str(resources.cores),  # always the same, because the bits of a result depend on it
        PARENT_VARIABLE: str(os.getpid()),
        **run.variables,
    }
    command = [*program, *run.words, "--resume-or-start", "--out-dir", str(run.path)]
    with (run.path / OUTPUT).open("ab") as output:
        # In a session of its own: Ctrl-C is for the sweep, which then stops its runs.
        return subprocess.Popen(
            command,
            cwd=run.start if run.start.is_dir() else None,  # another machine may not have it
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )


class _Job(NamedTuple):
    process: subprocess.Popen[bytes]
    path: Path
    gpus: tuple[str, ...]
    share: float


class LocalExecutor(Executor):
    """Start each run as a process of this machine.

    Args:
        jobs: How many run at once (default: as many as there are cores for).
        resources: What each run may use.
        program: What takes a run's words as `minerva` does.

    Raises:
        ValueError: Runs ask for more than this machine has.
    """

    name = "local"

    def __init__(self, jobs: int | None, resources: Resources, program: Sequence[str] = PROGRAM) -> None:
        self._program = program
        cores = machine_cores()
        if resources.cores > cores:
            raise ValueError(f"cores: must be at most {cores}, those of this machine, got {resources.cores}.")
        self._jobs = jobs if jobs is not None else max(1, cores // resources.cores)
        self._free: dict[str, float] = dict.fromkeys(find_gpus() if resources.gpu else (), 1.0)
        if resources.gpu > len(self._free):
            raise ValueError(
                f"gpu: must be at most {len(self._free)}, the number of GPUs of this machine, got {resources.gpu:g}; "
                "leave it out to train on the CPU."
            )
        self._running: list[_Job] = []

    def open(self, folder: Path) -> None:
        """Nothing is to be prepared."""

    def has_room(self, resources: Resources) -> bool:
        return len(self._running) < self._jobs and self._choose_gpus(resources.gpu) is not None

    def submit(self, run: RunFolder, resources: Resources) -> None:
        gpus, share = self._choose_gpus(resources.gpu) or (), min(resources.gpu, 1.0)
        if gpus:
            run = run._replace(variables={**run.variables, "CUDA_VISIBLE_DEVICES": ",".join(gpus)})
        process = start_process(run, resources, self._program)
        for gpu in gpus:
            self._free[gpu] -= share
        self._running.append(_Job(process, run.path, gpus, share))

    def wait(self, seconds: float) -> list[Ended]:
        deadline = time.monotonic() + seconds
        while True:
            ended = [job for job in self._running if job.process.poll() is not None]
            left = deadline - time.monotonic()
            if ended or left <= 0:
                break
            time.sleep(min(_POLL_SECONDS, left))
        for job in ended:
            self._running.remove(job)
            for gpu in job.gpus:
                self._free[gpu] += job.share
        return [Ended(job.path, job.process.returncode) for job in ended]

    def stop(self, paths: Collection[Path] | None = None, kill: bool = False) -> None:
        for job in self._running:
            if paths is not None and job.path not in paths:
                continue
            with suppress(OSError):
                if kill:
                    job.process.kill()
                else:
                    job.process.send_signal(signal.SIGTERM)

    def close(self) -> None:
        """Nothing is held besides the processes."""

    def _choose_gpus(self, share: float) -> tuple[str, ...] | None:
        """Return the GPUs for one more run; None where they are taken."""
        if share == 0:
            return ()
        wanted, least = max(1, round(share)), min(share, 1.0) - 1e-9
        free = [gpu for gpu, left in self._free.items() if left >= least]
        return tuple(free[:wanted]) if len(free) >= wanted else None


def find_gpus() -> list[str]:
    """Return the ids of the GPUs that processes of this one may use; torch, which knows too, is not imported."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return [part.strip() for part in visible.split(",") if part.strip() not in ("", "-1")]
    program = shutil.which("nvidia-smi")
    if program is None:
        return []
    try:
        listed = subprocess.run([program, "-L"], capture_output=True, text=True, timeout=60, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return []
    return [str(k) for k, _ in enumerate(line for line in listed.splitlines() if line.startswith("GPU "))]
