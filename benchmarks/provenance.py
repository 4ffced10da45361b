"""What a measurement was made on."""

from __future__ import annotations

import os
import platform
from pathlib import Path


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
