"""Multilayer perceptrons."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from torch import nn


def orthogonal(layer: nn.Linear, gain: float) -> nn.Linear:
    """Initialize a layer with orthogonal weights of the given gain and a zero bias."""
    nn.init.orthogonal_(layer.weight, gain)
    nn.init.zeros_(layer.bias)
    return layer


class HiddenLayers(nn.Sequential):
    """The hidden layers of an MLP: Linear and an activation for each, orthogonal with gain sqrt(2).

    Args:
        in_dim: Length of the input.
        layer_sizes: Units of each layer.
        activation: Builds the activation.

    Attributes:
        out_dim: Length of the output.
    """

    def __init__(self, in_dim: int, layer_sizes: Sequence[int], activation: Callable[[], nn.Module] = nn.Tanh) -> None:
        layers: list[nn.Module] = []
        for units in layer_sizes:
            layers += [orthogonal(nn.Linear(in_dim, units), math.sqrt(2)), activation()]
            in_dim = units
        super().__init__(*layers)
        self.out_dim = in_dim
