"""The device of the networks."""

from __future__ import annotations

import re

import torch


def resolve_device(name: str) -> torch.device:
    """Turn "auto", "cpu", "cuda" or "cuda:1" into a device.

    Raises:
        ValueError: It is none of these, or does not exist here.
    """
    name = str(name)  # it may be a `torch.device`
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if re.fullmatch(r"cpu(:0)?|cuda(:\d{1,3})?", name, re.ASCII) is None:  # no other was tried
        raise ValueError(f"device: {name!r} is not available here; use auto or cpu, or cuda with an NVIDIA GPU.")
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        raise ValueError(f"device: {name!r} is not available here; use auto or cpu.") from error
    return device
