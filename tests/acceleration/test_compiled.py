from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor

from minerva.acceleration.applied import Acceleration, accelerate
from minerva.acceleration.compiled import Compiled, quick_tanh
from minerva.acceleration.cuda_graph import CudaGraph
from tests.acceleration.marks import needs_compiler, needs_gpu


def add_up(total: Tensor, calls: Tensor, x: Tensor, y: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
    """Add up what it is called with, in place."""
    total.add_(torch.tanh(x) * y)
    calls.add_(1)
    return total * 2, {"calls": calls + 0}


def empty_sum(device: str = "cpu") -> tuple[Tensor, Tensor]:
    return torch.zeros(3, device=device), torch.zeros(1, device=device)


def inputs(count: int, device: str = "cpu") -> list[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(0)
    pairs = [torch.randn(2, 3, generator=generator).to(device).unbind() for _ in range(count)]
    return [(x, y) for x, y in pairs]


def check(function: object, held: tuple[Tensor, Tensor], device: str) -> None:
    assert callable(function)
    plain = empty_sum(device)
    for i, (x, y) in enumerate(inputs(5, device)):
        kept = x.clone(), y.clone()
        expected, _ = add_up(*plain, x, y)
        doubled, aux = function(*held, x, y)
        torch.testing.assert_close(doubled, expected)
        assert aux["calls"].item() == i + 1  # calls that trace it or warm it up are not counted
        torch.testing.assert_close(held[0], plain[0])
        assert torch.equal(x, kept[0]) and torch.equal(y, kept[1])


@pytest.mark.parametrize("compile_it", [False, pytest.param(True, marks=needs_compiler)])
def test_it_does_the_same(compile_it: bool) -> None:
    held = empty_sum()
    check(accelerate(add_up, Acceleration(compile_it)), held, "cpu")


class Pair(NamedTuple):
    first: Tensor
    rest: tuple[Tensor, ...]


@needs_compiler
def test_nests_of_tensors_come_and_go_as_they_are() -> None:
    def swapped(pair: Pair, scale: Tensor) -> Pair:
        return Pair(scale * pair.rest[0], (pair.first, *pair.rest[1:]))

    function = Compiled(swapped)
    for k in range(3):
        a, b, c = torch.arange(6.0).view(3, 2) + k
        found = function(Pair(a, (b, c)), torch.tensor([2.0]))
        assert isinstance(found, Pair) and isinstance(found.rest, tuple)
        torch.testing.assert_close(found, Pair(2 * b, (a, c)))


@needs_compiler
def test_one_tensor_comes_back_alone() -> None:
    function = Compiled(lambda x: x + 1)
    torch.testing.assert_close(function(torch.zeros(2)), torch.ones(2))


@needs_compiler
def test_many_differently_set_functions_compile_in_one_process() -> None:
    for k in range(3):
        function = Compiled(lambda x, k=k: x + k)
        torch.testing.assert_close(function(torch.zeros(2)), torch.full((2,), float(k)))


@needs_compiler
def test_a_function_can_ask_whether_it_is_traced() -> None:
    seen: list[bool] = []

    def watched(x: Tensor) -> Tensor:
        seen.append(Compiled.tracing)
        return x + 1

    function = Compiled(watched)
    assert torch.equal(function(torch.ones(2)), function(torch.ones(2)))
    assert seen == [True] and not Compiled.tracing  # traced once, and run without Python afterwards

    def failing(x: Tensor) -> Tensor:
        raise KeyError

    with pytest.raises(KeyError):
        Compiled(failing)(torch.ones(2))
    assert not Compiled.tracing


@needs_compiler
def test_what_cannot_be_compiled_as_a_whole_is_an_error() -> None:
    def branches(x: Tensor) -> Tensor:
        return x + 1 if x.sum() > 0 else x - 1

    function = accelerate(branches, Acceleration(compiled=True))
    with pytest.raises(RuntimeError, match=r"data-dependent|tracing tensor"):
        function(torch.ones(2))


@needs_gpu
@pytest.mark.parametrize("compiled", [False, pytest.param(True, marks=needs_compiler)])
def test_captured_it_does_the_same(compiled: bool) -> None:
    held = empty_sum("cuda")
    run = Compiled(add_up) if compiled else add_up
    graph = CudaGraph(lambda x, y: run(*held, x, y), held)
    check(lambda *arguments: graph(*arguments[2:]), held, "cuda")
    function = accelerate(torch.tanh, Acceleration(compiled, captured=True))
    assert isinstance(function, CudaGraph)
    x = torch.linspace(-1, 1, 5, device="cuda")
    torch.testing.assert_close(function(x), x.tanh())


@pytest.mark.formula(
    "minerva.acceleration.compiled", r"t = e^{-2 |x|}", r"\tanh x = \mathrm{sgn}(x)\, \frac{1 - t}{1 + t}"
)
def test_the_quick_tanh_is_tanh() -> None:
    x = torch.cat([torch.linspace(-12, 12, 100_001), torch.logspace(-30, 2, 999), -torch.logspace(-30, 2, 999)])
    expected = np.tanh(x.double().numpy())
    assert np.abs(quick_tanh(x).double().numpy() - expected).max() < 1.2e-7
    assert quick_tanh(torch.tensor([0.0, torch.inf, -torch.inf])).tolist() == [0.0, 1.0, -1.0]
    assert quick_tanh(torch.tensor(torch.nan)).isnan()


@needs_compiler
def test_what_is_compiled_for_a_cpu_has_it_and_the_same_gradient() -> None:
    def slope(x: Tensor) -> Tensor:
        found: Tensor = torch.func.grad(lambda x: torch.tanh(x).sum())(x)
        return found

    x = torch.linspace(-4, 4, 1000)
    for function in (torch.tanh, slope):
        torch.testing.assert_close(Compiled(function)(x), function(x), rtol=1e-5, atol=2e-7)
    assert not torch.equal(Compiled(torch.tanh)(x), torch.tanh(x))
