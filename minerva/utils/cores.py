"""CPU cores: how many a run may use, and how its threads wait."""

from __future__ import annotations

import math
import os
import sys
import threading
from pathlib import Path

CGROUP_QUOTA = Path("/sys/fs/cgroup/cpu.max")
"""File with the CPU quota of a Linux container: microseconds per period, and the period."""


CORES_VARIABLE = "MINERVA_CORES"
"""Environment variable with the number of cores that the processes of a run may use together; a sweep sets it."""


def usable_cores() -> int:
    """Return the default number of threads and worker processes.

    This is the number of cores that this process may run on, limited by the quota of its container and by
    ``MINERVA_CORES``; where that is not set, by ``OMP_NUM_THREADS``, which users set when they run several processes at
    once.

    Raises:
        ValueError: ``MINERVA_CORES`` is not a whole number from 1 on.
    """
    granted = _granted_cores()
    return max(1, int(min(machine_cores(), _omp_num_threads() if granted is None else granted)))


def machine_cores() -> int:
    """Return the number of cores that the operating system and the container let this process use."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, int(min(cores, _cgroup_quota())))


def _granted_cores() -> int | None:
    text = os.environ.get(CORES_VARIABLE, "").strip()
    if not text:
        return None
    if not (text.isascii() and text.isdigit() and int(text) >= 1):
        raise ValueError(f"{CORES_VARIABLE}: must be a whole number from 1 on, got {text!r}; correct it, or unset it.")
    return int(text)


def _cgroup_quota() -> float:
    try:
        quota, period = CGROUP_QUOTA.read_text().split()
        return math.ceil(int(quota) / int(period))
    except (OSError, ValueError):  # no container, or no limit ("max")
        return math.inf


def _omp_num_threads() -> float:
    number = os.environ.get("OMP_NUM_THREADS", "").split(",")[0]
    return int(number) if number.strip().isdigit() else math.inf


def check_threads(name: str, count: int) -> None:
    """Check that this process may have so many threads: where a native library is refused one, it ends the process.

    Up to the number of cores nothing is checked, because no system refuses that few.

    Raises:
        ValueError: The operating system refuses them.
    """
    cores = usable_cores()
    if count > cores and not _can_start(count):
        raise ValueError(f"{name}: the operating system refuses so many threads, got {count}; use at most {cores}.")


def _can_start(count: int) -> bool:
    finish = threading.Event()
    started: list[threading.Thread] = []
    try:
        for _ in range(count):
            thread = threading.Thread(target=finish.wait)
            thread.start()
            started.append(thread)
    except (RuntimeError, MemoryError):
        return False
    finally:
        finish.set()
        for thread in started:
            thread.join()
    return True


SPIN_COUNT = "1000"
"""Spins of a thread that waits for others before it sleeps: with fewer, a single run is slower; with more, two runs at
once are (`benchmarks/two_runs.py`)."""


def wait_briefly() -> None:
    """Let waiting threads of torch release their core soon, unless the user has set how they wait.

    By default, GNU OpenMP lets a waiting thread keep its core for milliseconds: with two runs on a machine, each then
    waits most of the time for cores that waiting threads of the other hold. This must run before torch is imported,
    because OpenMP reads the setting once.
    """
    if "torch" not in sys.modules and "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", SPIN_COUNT)


def keep_freed_memory() -> None:
    """Let the C library reuse freed memory instead of returning it to the system after every gradient step.

    glibc keeps blocks up to the size of the largest one that was freed, at most 32 MiB (mallopt(3)). The pages of this
    block are never touched. Otherwise each step may have to fault its memory in again, which costs up to a fifth of it.
    """
    import torch

    torch.empty(2**25 - 2**16, dtype=torch.uint8)
