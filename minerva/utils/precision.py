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
    any order, so that a run would not resume bit for bit. On a CPU there is nothing to change. torch refuses to read
    the older setting `torch.backends.cudnn.allow_tf32` within this context.

    Args:
        device: Where the networks are.
    """
    cudnn: Any = torch.backends.cudnn
    kinds = (cudnn.conv, cudnn.rnn) if device.type == "cuda" else ()
    any_order = device.type == "cuda" and not cudnn.deterministic
    rounded = [kind for kind in kinds if kind.fp32_precision == "tf32"]
    for kind in rounded:
        kind.fp32_precision = "ieee"
    if any_order:
        cudnn.deterministic = True
    try:
        yield
    finally:
        for kind in rounded:
            kind.fp32_precision = "tf32"
        if any_order:
            cudnn.deterministic = False
