"""Training and evaluation mode of modules, and what differs between them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from minerva.utils.seeding import as_global_generator


def training_parts(module: nn.Module) -> list[nn.Module]:
    """List the parts of a module that are in training mode: all but those that a user has frozen with `eval`."""
    return [part for part in module.modules() if part.training]


@contextmanager
def mode(parts: Iterable[nn.Module], *, training: bool) -> Iterator[None]:
    """Put parts of a module into training or evaluation mode within this context, and back into their own after it."""
    changed = [part for part in parts if part.training != training]
    for part in changed:
        part.training = training
    try:
        yield
    finally:
        for part in changed:
            part.training = not training


def is_pure(module: nn.Module, *inputs: Tensor) -> bool:
    """Return whether a module computes, in its present mode, without drawing noise and without changing its buffers.

    Dropout draws, and BatchNorm changes its statistics. Afterwards the buffers are as they were.
    """
    return _effects(module, *inputs) == (False, False)


def changes_buffers(module: nn.Module, *inputs: Tensor) -> bool:
    """Return whether a module changes its buffers as it computes in its present mode; afterwards they are as before."""
    return _effects(module, *inputs)[1]


def _effects(module: nn.Module, *inputs: Tensor) -> tuple[bool, bool]:
    """Return whether a module draws noise, and whether it changes its buffers, as it computes in its present mode."""
    buffers = list(module.buffers())
    before = [buffer.clone() for buffer in buffers]
    generator = torch.Generator(inputs[0].device)
    state = generator.get_state()
    with torch.no_grad(), as_global_generator(generator):
        module(*inputs)
    changed = False
    for buffer, old in zip(buffers, before, strict=True):
        changed = changed or not torch.equal(buffer, old)
        buffer.copy_(old)
    return not torch.equal(generator.get_state(), state), changed


def restore_unless(applied: Tensor, buffers: Iterable[Tensor], before: Iterable[Tensor]) -> None:
    """Restore buffers to what they were before, in place, unless a step was applied (a scalar)."""
    for buffer, old in zip(buffers, before, strict=True):
        buffer.copy_(torch.where(applied, buffer, old))
