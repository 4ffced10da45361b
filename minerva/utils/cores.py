"""How many cores a run may use, and how its threads share them with others."""

from __future__ import annotations

import math
import os
import sys
from pathlib import Path

QUOTA = Path("/sys/fs/cgroup/cpu.max")
"""Where Linux keeps a container's share of the processor: microseconds a period, and the period."""


def usable_cores() -> int:
    """Count the cores for threads and worker processes that nobody has set a number of.

    Those that this process may run on, no more than its container's share of them, and no more than
    ``OMP_NUM_THREADS``: who sets it runs several things beside each other.
    """
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, int(min(cores, _quota(), _asked_for())))


def _quota() -> float:
    try:
        share, period = QUOTA.read_text().split()
        return math.ceil(int(share) / int(period))
    except (OSError, ValueError):  # no container, or one without a limit ("max")
        return math.inf


def _asked_for() -> float:
    number = os.environ.get("OMP_NUM_THREADS", "").split(",")[0]
    return int(number) if number.strip().isdigit() else math.inf


SPINS = "1000"
"""Turns that a thread waits for others of its process before it sleeps: with fewer a run alone is slower, with more two
runs at once are (`benchmarks/two_runs.py`)."""


def wait_briefly() -> None:
    """Let threads of torch that wait for each other give their core away soon, unless somebody has said how they wait.

    GNU's OpenMP lets them hold it for milliseconds: with two runs on a machine, each then waits most of the
    time for threads whose cores the other's waiting threads hold. It asks once, when torch is loaded; where torch was
    imported before, this is too late.
    """
    if "torch" not in sys.modules and "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", SPINS)
