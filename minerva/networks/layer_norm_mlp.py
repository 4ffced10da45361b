"""The network of MPO and V-MPO: a normalized first layer, then ELU."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from torch import nn


class LayerNormMLP(nn.Sequential):
    """Linear, LayerNorm and tanh, then Linear and ELU for each further layer (Acme's network of that name).

    Args:
        in_dim: Length of the input.
        layer_sizes: Units of each layer.
        activate_final: Whether the last Linear is followed by an ELU. A first layer always has its tanh.

    Attributes:
        out_dim: Length of the output.

    Raises:
        ValueError: There is no layer.
    """

    def __init__(self, in_dim: int, layer_sizes: Sequence[int], activate_final: bool = False) -> None:
        if not layer_sizes:
            raise ValueError(f"layer_sizes: must name at least one layer, such as (256, 256); got {layer_sizes!r}.")
        first = layer_sizes[0]
        layers: list[nn.Module] = [nn.Linear(in_dim, first), nn.LayerNorm(first), nn.Tanh()]
        for before, units in itertools.pairwise(layer_sizes):
            layers += [nn.Linear(before, units), nn.ELU()]
        if len(layer_sizes) > 1 and not activate_final:
            layers.pop()
        super().__init__(*layers)
        self.out_dim = layer_sizes[-1]
