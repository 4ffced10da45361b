"""Running a pure update, plain, compiled or captured, and applying what it computes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from minerva.acceleration.compiled import Compiled, Function, compiler_available
from minerva.acceleration.cuda_graph import CudaGraph
from minerva.acceleration.learnable import Learnable
from minerva.acceleration.tree import leaves


class Acceleration(NamedTuple):
    """How updates run: plain, compiled, or captured as CUDA graphs."""

    compiled: bool = False
    captured: bool = False  # as a CUDA graph

    def __str__(self) -> str:
        return " and ".join(name for name, chosen in self._asdict().items() if chosen) or "plain"


def choose_acceleration(
    wanted: Literal["auto", True, False],
    device: torch.device,
    gradient_steps: float,
    worth_compiling: Mapping[str, int],
    static: bool,
) -> Acceleration:
    """Choose how the updates of a run are accelerated.

    Args:
        wanted: The config's `compile`.
        device: Where the networks learn.
        gradient_steps: Gradient steps of the whole run.
        worth_compiling: From how many gradient steps on compiling saves time, by type of device; none: never.
        static: Whether an update is the same operations every time, as a CUDA graph needs.
    """
    long = gradient_steps >= worth_compiling.get(device.type, float("inf"))
    compiled = static and long if wanted == "auto" else wanted
    captured = static and device.type == "cuda" and wanted is not False
    return Acceleration(compiled, captured)


def check_compiler(acceleration: Acceleration) -> tuple[Acceleration, str | None]:
    """Drop compiling where no compiler is installed; also return what to tell the user."""
    if not acceleration.compiled:
        return acceleration, None
    if compiler_available():
        return acceleration, "Updates are compiled, which takes a while before the first one."
    note = "No C++ compiler is installed (Debian: g++), so updates are not compiled."
    return acceleration._replace(compiled=False), note


def accelerate(function: Function, acceleration: Acceleration) -> Function:
    """Return a pure function in the form in which it runs: plain, compiled, captured as a CUDA graph, or both.

    A captured function overwrites its results with its next call.
    """
    run = Compiled(function) if acceleration.compiled else function
    return CudaGraph(run) if acceleration.captured else run


Update = Callable[..., tuple[Any, Any]]
"""A pure update: from a state and inputs to the state after it and metrics."""


class AppliedUpdate:
    """Run a pure update and write its result into a state, if every number of it is finite.

    Args:
        update: The update.
        state: Nested tuples of tensors with `Learnable`s, the same storage from first to last.
        acceleration: How it runs. With a CUDA graph, the next call overwrites what a call returned.
    """

    def __init__(self, update: Update, state: Any, acceleration: Acceleration) -> None:
        self._update = update
        self._state = state
        on_gpu = leaves(state)[0].is_cuda  # where nothing may wait for the result
        self._apply: Function = self._static if on_gpu else self._plain
        if acceleration.compiled:
            self._apply = Compiled(self._static)
        self._run = CudaGraph(self._on_state, leaves(state)) if acceleration.captured else self._on_state

    @torch.no_grad()
    def __call__(self, *inputs: Any) -> tuple[Tensor, Any]:
        """Return whether the update was applied, a scalar, and its metrics."""
        result: tuple[Tensor, Any] = self._run(*inputs)
        return result

    def _on_state(self, *inputs: Any) -> Any:
        return self._apply(self._state, *inputs)

    def _static(self, state: Any, *inputs: Any) -> tuple[Tensor, Any]:
        new, metrics = self._update(state, *inputs)
        finite = is_finite(new)
        for old, value in zip(leaves(state), leaves(new), strict=True):
            old.copy_(torch.where(finite, value, old))
        return finite, metrics

    def _plain(self, state: Any, *inputs: Any) -> tuple[Tensor, Any]:
        new, metrics = self._update(state, *inputs)
        finite = is_finite(new)
        if finite:
            overwrite(state, new)
        return finite, metrics


def overwrite(state: Any, new: Any) -> None:
    """Copy every tensor of a train state into another one, in place."""
    for old, value in zip(leaves(state), leaves(new), strict=True):
        if value is not old:
            old.copy_(value)


def is_finite(state: Any) -> Tensor:
    """Return whether all gradient steps up to a state were finite, a scalar: `Learnable.steps` holds NaN otherwise."""
    return torch.stack([learnable.steps for learnable in state if isinstance(learnable, Learnable)]).isfinite().all()


def moments(state: Any) -> dict[str, Tensor]:
    """Return the moments and step counts of a state's optimizers, by name; its parameters belong to the modules."""
    return {name: tensor.clone() for name, tensor in _moments(state).items()}


def load_moments(state: Any, saved: Mapping[str, Tensor]) -> None:
    """Load the optimizers' moments and step counts, as `moments` returned them, into a state, in place."""
    for name, tensor in _moments(state).items():
        tensor.copy_(saved[name])


def _moments(state: Any) -> dict[str, Tensor]:
    learnables = {name: part for name, part in state._asdict().items() if isinstance(part, Learnable)}
    parts = ("average", "square", "steps")
    return {f"{name}.{part}": getattr(learnable, part) for name, learnable in learnables.items() for part in parts}
