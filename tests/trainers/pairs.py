"""Two processes that train together, on this machine alone."""

from __future__ import annotations

import atexit
import os
import subprocess
import sys
import uuid
from datetime import timedelta
from pathlib import Path
from types import ModuleType

import torch.distributed as dist

COUNT = 2
TIMEOUT = 120
"""Seconds after which processes that wait for each other are a failure; they take a tenth of it."""


def run_pair(program: ModuleType, folder: Path, *words: str) -> None:
    """Run a program in two processes, which `connect`, and fail with what they said if one of them does."""
    environment = {**os.environ, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
    meeting = folder / f"store-{uuid.uuid4().hex}"  # a file, so that no port can be taken
    processes = [
        subprocess.Popen(
            [sys.executable, "-W", "error", "-m", program.__name__, str(meeting), str(rank), str(folder), *words],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(COUNT)
    ]
    try:
        said = [process.communicate(timeout=TIMEOUT)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
    assert all(process.returncode == 0 for process in processes), "\n".join(said)


def connect() -> tuple[int, Path, list[str]]:
    """Join the other process; return this one's rank, the folder for results, and the words."""
    meeting, rank, folder, *words = sys.argv[1:]
    atexit.register(_fail_if_still_exchanging)  # the last of what is called when Python ends
    dist.init_process_group(
        "gloo",
        init_method=f"file://{meeting}",
        rank=int(rank),
        world_size=COUNT,
        timeout=timedelta(seconds=TIMEOUT),
    )
    atexit.register(dist.destroy_process_group)
    return int(rank), Path(folder), words


def _fail_if_still_exchanging() -> None:
    """Fail if a thread could still let go of a tensor, which once in a hundred times takes the process down."""
    names = [(thread / "comm").read_text().strip() for thread in Path("/proc/self/task").iterdir()]
    if busy := [name for name in names if "gloo" in name]:
        print(f"threads that exchange are alive: {busy}", flush=True)
        os._exit(1)
