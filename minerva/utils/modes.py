"""Training and evaluation mode of modules, for a while."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from torch import nn


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
