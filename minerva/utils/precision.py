"""The precision and order of a GPU's convolutions and recurrent layers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch


@contextmanager
def exact_cudnn(device: torch.device) -> Iterator[None]:
    """Let cuDNN compute in float32 and in a fixed order within this context; restore the user's settings after it.

    By default it rounds products to 10 bits (TF32), differently for each number of rows, so that a policy's
    probabilities would not be the same in a minibatch as in the rollout. And it may add up a convolution's gradient in
    any order, so that a run would not resume bit for bit. On a CPU there is nothing to change.

    Args:
        device: Where the networks are.
    """
    if device.type != "cuda":
        yield
        return
    cudnn: Any = torch.backends.cudnn
    settings: list[tuple[Any, str, Any]] = [(cudnn, "deterministic", True)]
    if _uses_new_settings():
        settings.extend((kind, "fp32_precision", "ieee") for kind in (cudnn.conv, cudnn.rnn))
    else:  # torch refuses to mix both, and its own `cudnn.flags` reads this one
        settings.append((cudnn, "allow_tf32", False))
    before = [getattr(place, name) for place, name, _ in settings]
    try:
        for place, name, value in settings:
            setattr(place, name, value)
        yield
    finally:
        for (place, name, _), value in zip(settings, before, strict=True):
            setattr(place, name, value)


def _uses_new_settings() -> bool:
    """Return whether the user has chosen a precision per operation or for all."""
    backends: Any = torch.backends
    if "tf32" in (backends.fp32_precision, backends.cudnn.fp32_precision):
        return True
    try:
        return backends.cudnn.allow_tf32 is None
    except RuntimeError:
        return True
