"""What the ready callbacks ask of their arguments."""

from __future__ import annotations

from numbers import Integral, Real
from typing import Any


def whole_number(name: str, value: Any) -> int:
    """Take a whole number from 1 on.

    Raises:
        ValueError: It is none.
    """
    if isinstance(value, bool) or not isinstance(value, Integral) or value < 1:
        raise ValueError(f"{name}: must be a whole number from 1 on, got {value!r}.")
    return int(value)


def number(name: str, value: Any) -> float:
    """Take a number.

    Raises:
        ValueError: It is none.
    """
    if isinstance(value, bool) or not isinstance(value, Real):
        raise ValueError(f"{name}: must be a number, got {value!r}.")
    return float(value)


def function(name: str, value: Any) -> Any:
    """Take something that can be called.

    Raises:
        ValueError: It cannot.
    """
    if not callable(value):
        raise ValueError(f"{name}: must be a function, got {value!r}.")
    return value
