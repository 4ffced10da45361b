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


def tanh_mlp(in_dim: int, layer_sizes: Sequence[int], out_dim: int, out_gain: float) -> nn.Sequential:
    """Make Linear and tanh for each hidden layer, then a Linear of its own gain; orthogonal throughout.

    Args:
        in_dim: Length of the input.
        layer_sizes: Units of each hidden layer.
        out_dim: Length of the output.
        out_gain: Gain of the last layer's weights; hidden layers have sqrt(2).
    """
    layers: list[nn.Module] = []
    for units in layer_sizes:
        layers += [orthogonal(nn.Linear(in_dim, units), math.sqrt(2)), nn.Tanh()]
        in_dim = units
    return nn.Sequential(*layers, orthogonal(nn.Linear(in_dim, out_dim), out_gain))
