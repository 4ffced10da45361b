from __future__ import annotations

import os

import pytest
import torch
from torch import Tensor

from minerva.trainers.accelerate import Captured, accelerated, compiler_available

needs_compiler = pytest.mark.skipif(
    not compiler_available() and not os.environ.get("CI"), reason="no C++ compiler is installed (Debian: g++)"
)
needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="graphs are captured on a GPU")


class Sum:
    """Adds up what it is called with, in place."""

    def __init__(self, device: str = "cpu") -> None:
        self.total = torch.zeros(3, device=device)
        self.calls = torch.zeros(1, device=device)

    def __call__(self, x: Tensor, y: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        self.total.add_(torch.tanh(x) * y)
        self.calls.add_(1)
        return self.total * 2, {"calls": self.calls + 0}


def inputs(count: int, device: str = "cpu") -> list[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(0)
    pairs = [torch.randn(2, 3, generator=generator).to(device).unbind() for _ in range(count)]
    return [(x, y) for x, y in pairs]


def check(function: object, held: Sum, device: str) -> None:
    assert callable(function)
    plain = Sum(device)
    for i, (x, y) in enumerate(inputs(5, device)):
        kept = x.clone(), y.clone()
        expected, _ = plain(x, y)
        doubled, aside = function(x, y)
        torch.testing.assert_close(doubled, expected)
        assert aside["calls"].item() == i + 1  # calls that warm it up are not counted
        torch.testing.assert_close(held.total, plain.total)
        assert torch.equal(x, kept[0]) and torch.equal(y, kept[1])


def test_neither_is_the_function_itself() -> None:
    held = Sum()
    assert accelerated(held, (held.total, held.calls), compile_it=False, capture_it=False) is held


@needs_compiler
def test_compiled_it_does_the_same() -> None:
    held = Sum()
    check(accelerated(held, (held.total, held.calls), compile_it=True, capture_it=False), held, "cpu")


@needs_compiler
def test_what_cannot_be_compiled_as_a_whole_is_an_error() -> None:
    def branches(x: Tensor) -> Tensor:
        return x + 1 if x.sum() > 0 else x - 1

    function = accelerated(branches, (), compile_it=True, capture_it=False)
    with pytest.raises(torch._dynamo.exc.Unsupported):
        function(torch.ones(2))


@needs_gpu
@pytest.mark.parametrize("compiled", [False, pytest.param(True, marks=needs_compiler)])
def test_captured_it_does_the_same(compiled: bool) -> None:
    held = Sum("cuda")
    function = accelerated(held, (held.total, held.calls), compile_it=compiled, capture_it=True)
    assert isinstance(function, Captured)
    check(function, held, "cuda")
