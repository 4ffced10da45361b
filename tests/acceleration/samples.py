"""A small regression, as something to learn."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import pytest
import torch
from torch import Tensor, nn

from minerva.acceleration.compiled import Compiled
from minerva.acceleration.flat import FlatModule
from minerva.acceleration.learnable import Learnable

MODES = ("functional", "in place", "traced")
each_mode = pytest.mark.parametrize("mode", MODES)
"""How a step is computed: with torch's fused kernels, over its own input, or written out for the compiler."""


@contextmanager
def computed(mode: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[bool]:
    """Choose how steps are computed; yield the optimizer's `in_place`."""
    with monkeypatch.context() as patch:
        patch.setattr(Compiled, "tracing", mode == "traced")
        yield mode == "in place"


class Regression(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 1)
        self.scale = nn.Parameter(torch.ones(1))

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.layer(x)
        return self.scale * y.squeeze(-1).tanh()


class Minibatch(NamedTuple):
    x: Tensor
    y: Tensor
    w: Tensor


def loss(module: Regression, minibatch: Minibatch) -> tuple[Tensor, Tensor]:
    x, y, w = minibatch
    error = module(x) - y
    return (w * error**2).sum() / w.sum().clamp(min=1), (w * error).sum()


def minibatches(count: int, rows: int = 6, dtype: torch.dtype = torch.float32) -> Iterator[Minibatch]:
    generator = torch.Generator().manual_seed(1)
    for _ in range(count):
        x = torch.randn(rows, 3, generator=generator).to(dtype)
        yield Minibatch(x, 5 * x.sum(-1), torch.ones(rows, dtype=dtype))


class State(NamedTuple):
    """What an update of the regression changes."""

    regression: Learnable


def begin(module: Regression) -> tuple[FlatModule[Regression], State]:
    flat = FlatModule(module)
    return flat, State(Learnable.start(flat.vector))
