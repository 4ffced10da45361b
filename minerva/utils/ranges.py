"""Ranges of numbers, the types of settings that have them, and the check of one number."""

from __future__ import annotations

import math
from numbers import Integral, Real
from typing import Annotated, Any, NamedTuple

LARGEST_INT = 2**63 - 1
"""Larger whole numbers fit neither a tensor nor a file of ours."""
LARGEST_FLOAT = 10**12
"""The product of three such numbers is still finite in float32."""
SMALLEST_FLOAT = 1.2e-38
"""Smaller positive numbers may be 0 in float32."""
LONGEST_SHOWN = 200
"""Characters of a wrong value that an error shows."""


class Range(NamedTuple):
    """A range of numbers, from `low` to `high`, both included; infinite ones and NaN never."""

    low: float
    high: float
    below: str = ""  # the rule in words for smaller ones, by default "be at least low"
    above: str = ""  # for larger ones, by default "be at most high"
    remedy: str = ""

    def check(self, name: str, value: float, received: Any) -> None:
        """Check that a number lies in the range.

        Raises:
            ValueError: It does not.
        """
        if self.low <= value <= self.high:  # false for NaN
            return
        if value in (math.inf, -math.inf):  # math.isinf fails for large whole numbers
            rule = "be finite"
        elif value > self.high:
            rule = self.above or f"be at most {self.high:,}"
        else:
            rule = self.below or f"be at least {self.low:,}"
        raise ValueError(f"{name}: must {rule}, got {shown(received)}{self.remedy}.")


POSITIVE = Range(SMALLEST_FLOAT, LARGEST_FLOAT, "be greater than 0")
NON_NEGATIVE = Range(0, LARGEST_FLOAT)

PositiveInt = Annotated[int, Range(1, LARGEST_INT)]
NonNegativeInt = Annotated[int, Range(0, LARGEST_INT)]
PositiveFloat = Annotated[float, POSITIVE]
NonNegativeFloat = Annotated[float, NON_NEGATIVE]
FiniteFloat = Annotated[float, Range(-LARGEST_FLOAT, LARGEST_FLOAT)]
UnitInterval = Annotated[float, Range(0, 1, "lie in [0, 1]", "lie in [0, 1]")]


def whole_number(name: str, value: Any, allowed: Range) -> int:
    """Check that a value is a whole number in a range and return it, NumPy's too, as Python's.

    Raises:
        ValueError: It is not.
    """
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise ValueError(f"{name}: must {allowed.below or 'be a whole number'}, got {shown(value)}.")
    allowed.check(name, int(value), int(value))
    return int(value)


def number(name: str, value: Any, allowed: Range) -> float:
    """Check that a value is a real number in a range and return it as a float.

    Raises:
        ValueError: It is not.
    """
    if isinstance(value, bool) or not isinstance(value, Real):
        raise ValueError(f"{name}: must be a number, got {shown(value)}.")
    real = as_float(value)
    allowed.check(name, real, real)
    return real


def as_float(value: Real) -> float:
    """Convert a number to a float; one that is too large becomes infinite."""
    try:
        return float(value)
    except OverflowError:
        return math.inf


def shown(value: Any) -> str:
    """Return a value as an error message shows it: cut where it is long, its type where it cannot be shown."""
    try:
        text = repr(value)
    except Exception:  # a number of thousands of digits, or a class whose `__repr__` fails
        return f"a value of type {type(value).__name__}"
    return text if len(text) <= LONGEST_SHOWN else f"{text[:LONGEST_SHOWN]}…"
