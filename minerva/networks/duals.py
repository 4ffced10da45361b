"""Lagrange multipliers and temperatures: positive numbers that are learned."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

MINIMUM = -18.0
"""The parameter goes no lower: beyond it the softplus is less than what is added to it, and its gradient as small."""
EPSILON = 1e-8
"""Added to the softplus, so that nothing is ever divided by 0."""


def inverse_softplus(value: float) -> float:
    """Give the parameter whose softplus is `value`."""
    # LaTeX: x = \eta + \log(1 - e^{-\eta})
    return value + math.log(-math.expm1(-value))


def positive(parameter: Tensor) -> Tensor:
    """Map a dual variable's parameter to the variable.

    Args:
        parameter: x, any shape.

    Returns:
        The same shape, at least 1e-8.
    """
    # LaTeX: \eta = \log(1 + e^x) + 10^{-8}
    return nn.functional.softplus(parameter) + EPSILON


def floored(parameter: Tensor) -> Tensor:
    """Lift a dual variable's parameter to the floor; it is due after each step on it."""
    # LaTeX: x \leftarrow \max(x, -18)
    return parameter.clamp(min=MINIMUM)


class DualVariable(nn.Module):
    """A positive variable: a free parameter behind a softplus. What changes it keeps it above the floor (`floored`).

    Args:
        start: The parameter's first value, before the softplus.
        shape: One variable, or one an entry.

    Attributes:
        parameter: What an optimizer changes.
    """

    def __init__(self, start: float, shape: tuple[int, ...] = ()) -> None:
        super().__init__()
        self.parameter = nn.Parameter(torch.full(shape, float(start)))

    def forward(self) -> Tensor:
        """Give the variable."""
        return positive(self.parameter)
