"""The precision of a GPU's convolutions and recurrent layers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch


@contextmanager
def full_precision(device: torch.device) -> Iterator[None]:
    """Let cuDNN compute in float32 within this context, and restore the user's setting after it.

    By default it rounds products to 10 bits (TF32), differently for each number of rows, so that a policy's
    probabilities would not be the same in a minibatch as in the rollout. On a CPU there is nothing to change. torch
    refuses to read the older setting `torch.backends.cudnn.allow_tf32` within this context.

    Args:
        device: Where the networks are.
    """
    cudnn: Any = torch.backends.cudnn
    kinds = (cudnn.conv, cudnn.rnn) if device.type == "cuda" else ()
    rounded = [kind for kind in kinds if kind.fp32_precision == "tf32"]
    for kind in rounded:
        kind.fp32_precision = "ieee"
    try:
        yield
    finally:
        for kind in rounded:
            kind.fp32_precision = "tf32"
