"""Schedules: settings that change over a run, given as a number, a string such as "lin_2.5e-4", or a function."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from numbers import Real

Schedule = float | str | Callable[[float], float]
"""A number; "const_0.2", "lin_2.5e-4", "cos_3e-4" or "exp_1e-3"; or a function of the remaining fraction of training,
which falls from 1 to 0."""

FUNCTION = "function"
"""Placeholder for a function where only plain values can be stored."""


def constant(start: float, remaining: float) -> float:
    """Return the start value."""
    return start


def linear(start: float, remaining: float) -> float:
    """Decrease linearly from the start value to 0."""
    # LaTeX: x(s) = x_0 s
    return start * remaining


def cosine(start: float, remaining: float) -> float:
    """Decrease from the start value to 0 along half a cosine: slow, then fast, then slow."""
    # LaTeX: x(s) = \tfrac{1}{2} x_0 (1 - \cos \pi s)
    return 0.5 * start * (1 - math.cos(math.pi * remaining))


def exponential(start: float, remaining: float) -> float:
    """Decrease exponentially from the start value to a hundredth of it."""
    # LaTeX: x(s) = x_0 \cdot 100^{s - 1}
    return start * math.pow(100, remaining - 1)


_SHAPES = {"const": constant, "lin": linear, "cos": cosine, "exp": exponential}


def as_schedule(name: str, value: Schedule, *, positive: bool = False) -> Callable[[float], float]:
    """Convert a setting to a function of the remaining fraction of training.

    Args:
        name: The setting's name, for error messages.
        value: The setting.
        positive: Whether the number, or the number in the string, must be greater than 0. A function may return 0.

    Returns:
        A function from the remaining fraction, which falls from 1 to 0, to a finite number that is at least 0. It
        raises a `ValueError` if the user's function returns anything else.

    Raises:
        ValueError: `value` is none of the three, its number is not finite or is negative, or it is the placeholder of a
            function that was not saved.
    """
    if isinstance(value, str):
        if value == FUNCTION:
            raise ValueError(f"{name}: was a function, which a checkpoint cannot store; give the function again.")
        kind, _, number = value.partition("_")
        try:
            start = float(number)
        except ValueError:
            kind = ""
        if kind not in _SHAPES:
            raise ValueError(_kind_error(name, value))
        _check_range(name, start, value, positive)
        return partial(_SHAPES[kind], start)
    if callable(value):
        return partial(_call_checked, name, value)
    received: object = value
    if isinstance(received, bool) or not isinstance(received, Real):
        raise ValueError(_kind_error(name, value))
    _check_range(name, float(value), value, positive)
    return partial(constant, float(value))


def plain_schedule(value: Schedule) -> float | str:
    """Return a setting in a form for checkpoints and JSON: a function becomes the string "function"."""
    if isinstance(value, str):
        return str(value)
    return FUNCTION if callable(value) else float(value)


def _call_checked(name: str, function: Callable[[float], float], remaining: float) -> float:
    try:
        value = float(function(remaining))
    except Exception as error:
        raise ValueError(
            f"{name}: its function must return a number for the remaining fraction {remaining}, but failed "
            f"({type(error).__name__}: {error})."
        ) from error
    if not (math.isfinite(value) and value >= 0):
        raise ValueError(
            f"{name}: its function must return a finite number that is at least 0, got {value} for the remaining "
            f"fraction {remaining}."
        )
    return value


def _check_range(name: str, start: float, received: object, positive: bool) -> None:
    if not math.isfinite(start):
        raise ValueError(f"{name}: must be finite, got {received!r}.")
    if not (start > 0 if positive else start >= 0):
        raise ValueError(f"{name}: must be {'greater than' if positive else 'at least'} 0, got {received!r}.")


def _kind_error(name: str, received: object) -> str:
    return (
        f"{name}: must be a number, a string such as 'lin_2.5e-4', 'cos_3e-4', 'exp_1e-3' or 'const_0.2', or a "
        f"function of the remaining fraction; got {received!r}."
    )
