"""Checks of the arguments of callbacks."""

from __future__ import annotations

from numbers import Integral, Real
from typing import Any


def positive_int(name: str, value: Any) -> int:
    """Check that a value is a positive integer and return it as an int.

    Raises:
        ValueError: It is not.
    """
    if isinstance(value, bool) or not isinstance(value, Integral) or value < 1:
        raise ValueError(f"{name}: must be a positive integer, got {value!r}.")
    return int(value)


def number(name: str, value: Any) -> float:
    """Check that a value is a number and return it as a float.

    Raises:
        ValueError: It is not.
    """
    if isinstance(value, bool) or not isinstance(value, Real):
        raise ValueError(f"{name}: must be a number, got {value!r}.")
    return float(value)


def function(name: str, value: Any) -> Any:
    """Check that a value can be called and return it.

    Raises:
        ValueError: It cannot.
    """
    if not callable(value):
        raise ValueError(f"{name}: must be a function, got {value!r}.")
    return value
