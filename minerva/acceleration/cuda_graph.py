"""Capturing a function as a CUDA graph."""

from __future__ import annotations

import copy
import gc
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from minerva.acceleration.compiled import Function
from minerva.acceleration.tree import leaves, rebuild


class CudaGraph:
    """Capture a function on a GPU at its first call: one launch in place of hundreds.

    The next call overwrites what a call returned.

    Args:
        function: The function.
        written: The tensors that it writes into. The warm-up calls leave them unchanged.
    """

    def __init__(self, function: Function, written: Sequence[Tensor] = ()) -> None:
        self._function = function
        self._written = list(written)
        self._graph: torch.cuda.CUDAGraph | None = None

    def __deepcopy__(self, memo: dict[int, Any]) -> CudaGraph:
        return CudaGraph(copy.deepcopy(self._function, memo), copy.deepcopy(self._written, memo))  # captured again

    def __call__(self, *inputs: Any) -> Any:
        """Run it."""
        tensors = leaves(inputs)
        with torch.cuda.device(tensors[0].device):  # graphs and streams belong to the current device
            if self._graph is None:
                self._graph = self._capture(inputs, tensors)
            for group in self._groups:
                torch._foreach_copy_([self._inputs[i] for i in group], [tensors[i] for i in group])
            self._graph.replay()
        return self._outputs

    def _capture(self, inputs: Sequence[Any], tensors: Sequence[Tensor]) -> torch.cuda.CUDAGraph:
        self._inputs = [tensor.clone() for tensor in tensors]
        dtypes = {tensor.dtype for tensor in tensors}  # one copy for all inputs of a dtype
        self._groups = [[i for i, tensor in enumerate(tensors) if tensor.dtype == dtype] for dtype in dtypes]
        held = rebuild(tuple(inputs), iter(self._inputs))
        before = [tensor.clone() for tensor in self._written]
        stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(3):
                self._function(*held)
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with no_garbage_collection(), torch.cuda.graph(graph):
            self._outputs = self._function(*held)
        for tensor, value in zip(self._written, before, strict=True):
            tensor.copy_(value)
        return graph


@contextmanager
def no_garbage_collection() -> Iterator[None]:
    """Pause Python's garbage collector: destroying an old graph breaks the capture of a new one.

    Since torch 2.9 a capture no longer starts with a collection of its own.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
