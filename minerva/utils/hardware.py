"""What a measurement was made on, and how much memory it took."""

from __future__ import annotations

import os
import platform
import re
import sys
from pathlib import Path

if sys.platform != "win32":
    import resource


def hardware() -> str:
    """Name the processor and count its cores."""
    model = platform.processor() or platform.machine()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        names = [line.split(":", 1)[1].strip() for line in cpuinfo.read_text().splitlines() if "model name" in line]
        model = names[0] if names else model
    return f"{model}, {os.cpu_count()} cores"


def gpu() -> str:
    """Name the GPU."""
    import torch

    return torch.cuda.get_device_name() if torch.cuda.is_available() else "no GPU"


def peak_memory() -> int | None:
    """Give the most memory that this process has been resident in so far, in bytes; None where nobody counts it."""
    status = Path("/proc/self/status")
    if status.exists():
        # Not from getrusage: on Linux a process inherits there what the one that started it had.
        found = re.search(r"^VmHWM:\s+(\d+) kB$", status.read_text(), re.MULTILINE)
        if found is not None:
            return 1024 * int(found[1])
    if sys.platform == "win32":
        return None
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most if sys.platform == "darwin" else 1024 * most
