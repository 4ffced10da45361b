"""Multilayer perceptrons."""

from __future__ import annotations

import math
from collections.abc import Sequence

from torch import nn


def orthogonal(layer: nn.Linear, gain: float) -> nn.Linear:
    """Give a layer orthogonal weights of the given gain and a zero bias."""
    nn.init.orthogonal_(layer.weight, gain)
    nn.init.zeros_(layer.bias)
    return layer


class Hidden(nn.Sequential):
    """The hidden layers of a tanh network: Linear and tanh for each, orthogonal with gain sqrt(2).

    Args:
        in_dim: Length of the input.
        layer_sizes: Units of each layer.

    Attributes:
        out_dim: Length of the output.
    """

    def __init__(self, in_dim: int, layer_sizes: Sequence[int]) -> None:
        layers: list[nn.Module] = []
        for units in layer_sizes:
            layers += [orthogonal(nn.Linear(in_dim, units), math.sqrt(2)), nn.Tanh()]
            in_dim = units
        super().__init__(*layers)
        self.out_dim = in_dim


def tanh_mlp(in_dim: int, layer_sizes: Sequence[int], out_dim: int, out_gain: float) -> nn.Sequential:
    """Make Linear and tanh for each hidden layer, then a Linear of its own gain; orthogonal throughout.

    Args:
        in_dim: Length of the input.
        layer_sizes: Units of each hidden layer.
        out_dim: Length of the output.
        out_gain: Gain of the last layer's weights; hidden layers have sqrt(2).
    """
    hidden = Hidden(in_dim, layer_sizes)
    return nn.Sequential(*hidden, orthogonal(nn.Linear(hidden.out_dim, out_dim), out_gain))
