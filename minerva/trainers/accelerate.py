"""Running many operations as one piece: compiled, and on a GPU captured as a graph. The one compile site."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Sequence
from types import FunctionType
from typing import Any

import torch
from torch import Tensor

Function = Callable[..., Any]
"""Of tensors alone, of static shapes; it may write into tensors that it holds, and draws no random numbers."""


def compiled(function: Function) -> Function:
    """Compile a function of tensors of static shapes as a whole."""

    def call(*arguments: Any) -> Any:
        return function(*arguments)

    # Under a code object of its own. The compiler keeps what it made by code object, and gives up at the eighth: many
    # runs in one process, each with other settings, would come to that.
    own = FunctionType(call.__code__.replace(), call.__globals__, closure=call.__closure__)
    return torch.compile(own, fullgraph=True, dynamic=False)


def compiler_available() -> bool:
    """Whether a C++ compiler is installed, which compiling for the CPU needs."""
    return any(shutil.which(name) for name in (os.environ.get("CXX", ""), "g++", "clang++", "c++") if name)


class Captured:
    """A function on a GPU as a graph: one launch in place of hundreds. It is captured at its first call.

    What it returns is overwritten by the next call.

    Args:
        function: What is captured.
        written: The tensors that it writes into; the calls that warm it up leave them as they were.
    """

    def __init__(self, function: Function, written: Sequence[Tensor]) -> None:
        self._function = function
        self._written = list(written)
        self._graph: torch.cuda.CUDAGraph | None = None

    def __call__(self, *inputs: Tensor) -> Any:
        """Run it."""
        with torch.cuda.device(inputs[0].device):  # graphs and streams are those of the current device
            if self._graph is None:
                self._graph = self._capture(inputs)
            torch._foreach_copy_(self._inputs, list(inputs))
            self._graph.replay()
        return self._outputs

    def _capture(self, inputs: Sequence[Tensor]) -> torch.cuda.CUDAGraph:
        self._inputs = [tensor.clone() for tensor in inputs]
        before = [tensor.clone() for tensor in self._written]
        stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(3):
                self._function(*self._inputs)
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self._outputs = self._function(*self._inputs)
        for tensor, value in zip(self._written, before, strict=True):
            tensor.copy_(value)
        return graph


def accelerated(function: Function, written: Sequence[Tensor], compile_it: bool, capture_it: bool) -> Function:
    """Make a function faster: compile it as a whole, capture it as a graph, or both."""
    if compile_it:
        function = compiled(function)
    return Captured(function, written) if capture_it else function
