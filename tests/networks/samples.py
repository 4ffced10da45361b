"""Networks away from their initialization, and double precision."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn


def move_parameters(network: nn.Module, scale: float) -> None:
    """Add noise to every parameter: biases and scales then matter too."""
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.add_(torch.randn(parameter.shape), alpha=scale)


@contextmanager
def float64() -> Iterator[None]:
    """Make double precision the default."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(before)
