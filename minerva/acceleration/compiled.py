"""Compiling a whole function. The one place that calls the compiler."""

from __future__ import annotations

import os
import shutil
import warnings
from collections.abc import Callable
from typing import Any, ClassVar

import torch
from torch import Tensor

from minerva.acceleration.tree import leaves, rebuild

Function = Callable[..., Any]
"""A function of nested tuples and dictionaries of tensors, with static shapes. It may write into its arguments and into
nothing else, and it draws no random numbers."""


class Compiled:
    """Compile a function as a whole at its first call.

    It is traced by running it once on copies, and the trace goes to Inductor directly. `torch.compile` would check at
    every call that nothing has changed: a third of the time of a small gradient step. Static shapes make that check
    unnecessary. Tensors that the function holds, rather than takes, become constants.

    Args:
        function: The function.

    Attributes:
        tracing: Whether any function is being traced at this moment.
    """

    tracing: ClassVar[bool] = False

    def __init__(self, function: Function) -> None:
        self._function = function
        self._run: Function | None = None
        self._result: Any = None  # an earlier result, for its structure

    def __call__(self, *arguments: Any) -> Any:
        """Run it."""
        tensors = leaves(arguments)
        if self._run is None:
            self._run = self._compile(arguments, tensors)
        found = self._run(*tensors)
        return found[0] if self._result is None else rebuild(self._result, iter(found))

    def _compile(self, arguments: tuple[Any, ...], tensors: list[Tensor]) -> Function:
        import torch._inductor  # here, because it takes two seconds
        from torch.fx.experimental.proxy_tensor import make_fx

        def flat(*given: Tensor) -> list[Tensor]:
            result = self._function(*rebuild(arguments, iter(given)))
            self._result = None if isinstance(result, Tensor) else result
            return leaves((result,))

        on_cpu = all(tensor.device.type == "cpu" for tensor in tensors)
        cheaper: dict[Any, Function] = {torch.ops.aten.tanh.default: quick_tanh} if on_cpu else {}
        Compiled.tracing = True
        try:
            traced = make_fx(flat, decomposition_table=cheaper)(*(tensor.detach().clone() for tensor in tensors))
        finally:
            Compiled.tracing = False
        with warnings.catch_warnings():
            # Its advice would round products to 10 bits, differently for each number of rows.
            warnings.filterwarnings("ignore", "TensorFloat32 tensor cores", UserWarning)
            run: Function = torch._inductor.compile(traced, [*tensors])
        return run


def quick_tanh(x: Tensor) -> Tensor:
    """Compute tanh with one exponential: two to three times as fast as the CPU's own, and as exact (1e-7)."""
    # LaTeX: t = e^{-2 |x|}
    t = torch.exp(-2 * x.abs())
    # LaTeX: \tanh x = \mathrm{sgn}(x)\, \frac{1 - t}{1 + t}
    return torch.copysign((1 - t) / (1 + t), x)


def compiler_available() -> bool:
    """Return whether a C++ compiler is installed, which compiling for the CPU needs."""
    return any(shutil.which(name) for name in (os.environ.get("CXX", ""), "g++", "clang++", "c++") if name)
