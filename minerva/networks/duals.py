"""Lagrange multipliers and temperatures: positive numbers that are learned."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor, nn

MINIMUM = -18.0
"""The parameter goes no lower: below it the softplus is smaller than what is added to it, and so is its gradient."""
EPSILON = 1e-8
"""Added to the softplus, so that nothing is ever divided by 0."""


def inverse_softplus(value: float) -> float:
    """Return the parameter whose softplus is `value`."""
    # LaTeX: x = \eta + \log(1 - e^{-\eta})
    return value + math.log(-math.expm1(-value))


def positive(parameter: Tensor) -> Tensor:
    """Map the free parameter of a dual variable to the variable, with a softplus.

    Args:
        parameter: x, any shape.

    Returns:
        The same shape, at least 1e-8.
    """
    # LaTeX: \eta = \log(1 + e^x) + 10^{-8}
    return nn.functional.softplus(parameter) + EPSILON


class Duals(nn.Module):
    """Temperatures and Lagrange multipliers by name, kept positive: a free parameter behind a softplus each.

    Optimizers keep the parameters above `MINIMUM`.

    Args:
        starts: Where the parameter of each starts, before the softplus.
        shapes: The shapes of those that are not scalars.
    """

    def __init__(self, starts: Mapping[str, float], shapes: Mapping[str, tuple[int, ...]] | None = None) -> None:
        super().__init__()
        for name, start in starts.items():
            value = torch.full((shapes or {}).get(name, ()), max(MINIMUM, float(start)))
            self.register_parameter(name, nn.Parameter(value))

    def forward(self) -> tuple[Tensor, ...]:
        """Return the variables, in the order of their names."""
        return tuple(map(positive, self.parameters()))
