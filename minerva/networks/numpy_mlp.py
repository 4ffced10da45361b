"""Small networks on NumPy: for a few observations at a time, torch's dispatch costs more than the work itself."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import nn


class NumpyMLP:
    """Runs a `nn.Sequential` of Linear and Tanh layers on views of its own weights.

    The views share the module's memory, so they see what an optimiser or `load_state_dict` writes into it; the module
    must stay on the CPU. Results agree with the module's to float32 rounding.

    Args:
        network: The module, on the CPU.
    """

    def __init__(self, network: nn.Sequential) -> None:
        self._layers: list[tuple[NDArray[Any], NDArray[Any]] | None] = []  # weights and bias, or None for tanh
        for module in network:
            if isinstance(module, nn.Linear):
                self._layers.append((module.weight.detach().numpy().T, module.bias.detach().numpy()))
            elif isinstance(module, nn.Tanh):
                self._layers.append(None)
            else:
                raise ValueError(f"network: must consist of Linear and Tanh layers, got {type(module).__name__}.")

    def __call__(self, x: NDArray[np.float32]) -> NDArray[np.float32]:
        """Map ``[B, in]`` to ``[B, out]``."""
        for layer in self._layers:
            if layer is None:
                x = np.tanh(x)
            else:
                x = x @ layer[0]
                x += layer[1]
        return x
