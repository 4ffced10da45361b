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
    """Map a dual variable's parameter to the variable.

    Args:
        parameter: x, any shape.

    Returns:
        The same shape, at least 1e-8.
    """
    # LaTeX: \eta = \log(1 + e^x) + 10^{-8}
    return nn.functional.softplus(parameter) + EPSILON


class DualVariable(nn.Module):
    """A positive variable: a free parameter behind a softplus. Its optimizer keeps the parameter above `MINIMUM`.

    Args:
        start: The parameter's first value, before the softplus.
        shape: One variable by default, else one per entry.

    Attributes:
        parameter: What an optimizer changes.
    """

    def __init__(self, start: float, shape: tuple[int, ...] = ()) -> None:
        super().__init__()
        self.parameter = nn.Parameter(torch.full(shape, float(start)))

    def forward(self) -> Tensor:
        """Return the variable."""
        return positive(self.parameter)


class Duals(nn.ModuleDict):
    """Dual variables by name.

    Args:
        starts: Where the parameter of each starts.
        shapes: The shapes of those that are not scalars.
    """

    def __init__(self, starts: Mapping[str, float], shapes: Mapping[str, tuple[int, ...]] | None = None) -> None:
        given = shapes or {}
        super().__init__(
            {name: DualVariable(max(MINIMUM, start), given.get(name, ())) for name, start in starts.items()}
        )

    def forward(self) -> tuple[Tensor, ...]:
        """Return the variables, in the order of their names."""
        return tuple(variable() for variable in self.values())

    def parameter_of(self, name: str) -> nn.Parameter:
        """Return the parameter behind a variable, before the softplus."""
        variable = self[name]
        assert isinstance(variable, DualVariable)
        return variable.parameter
