"""Actors of rollouts, which take arrays on the CPU, for tests that have tensors."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from minerva.trainers.collector import Act


def on_tensors(act: Act) -> Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]:
    def call(*tensors: Tensor) -> tuple[Tensor, Tensor]:
        actions, state, _ = act(*(tensor.numpy() for tensor in tensors))
        return torch.from_numpy(actions), torch.from_numpy(state)

    return call
