"""The hardware of a measurement, and the memory of this process."""

from __future__ import annotations

import os
import platform
import re
import sys
from pathlib import Path

if sys.platform != "win32":
    import resource


def hardware() -> str:
    """Return the name of the processor and its number of cores."""
    model = platform.processor() or platform.machine()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        names = [line.split(":", 1)[1].strip() for line in cpuinfo.read_text().splitlines() if "model name" in line]
        model = names[0] if names else model
    return f"{model}, {os.cpu_count()} cores"


def gpu() -> str:
    """Return the name of the GPU, or "no GPU"."""
    import torch

    return torch.cuda.get_device_name() if torch.cuda.is_available() else "no GPU"


def peak_memory() -> int | None:
    """Return the peak resident memory of this process in bytes, or None if the system does not count it."""
    status = Path("/proc/self/status")
    if status.exists():
        # Not from getrusage: on Linux, a process inherits the peak of its parent there.
        found = re.search(r"^VmHWM:\s+(\d+) kB$", status.read_text(), re.MULTILINE)
        if found is not None:
            return 1024 * int(found[1])
    if sys.platform == "win32":
        return None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else 1024 * peak


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether an error says that memory ran out, on the CPU or a GPU."""
    # torch's allocator of the CPU raises a plain RuntimeError.
    texts = ("can't allocate memory", "not enough memory", "out of memory", "Storage size calculation overflowed")
    return isinstance(error, MemoryError) or (
        isinstance(error, RuntimeError) and any(text in str(error) for text in texts)
    )
