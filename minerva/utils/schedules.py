"""Schedules: settings that change over a run, given as a number, a string such as "lin_2.5e-4", or a function."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from numbers import Real
from typing import Annotated, Any

from minerva.utils.ranges import NON_NEGATIVE, POSITIVE, Range, as_float, shown

Schedule = float | str | Callable[[float], float]
"""A number; "const_0.2", "lin_2.5e-4", "cos_3e-4" or "exp_1e-3"; or a function of the remaining fraction of training,
which falls from 1 to 0."""
PositiveSchedule = Annotated[Schedule, POSITIVE]
NonNegativeSchedule = Annotated[Schedule, NON_NEGATIVE]

FUNCTION = "function"
"""Placeholder for a function where only plain values can be stored."""


def constant(start: float, remaining: float) -> float:
    """Return the start value, at any time: the constant schedule."""
    return start


def linear(start: float, remaining: float) -> float:
    """Decrease linearly from the start value to 0: the schedule "lin"."""
    # LaTeX: x(s) = x_0 s
    return start * remaining


def cosine(start: float, remaining: float) -> float:
    """Decrease from the start value to 0 along half a cosine, slow, then fast, then slow: the schedule "cos"."""
    # LaTeX: x(s) = \tfrac{1}{2} x_0 (1 - \cos \pi s)
    return 0.5 * start * (1 - math.cos(math.pi * remaining))


def exponential(start: float, remaining: float) -> float:
    """Decrease exponentially from the start value to a hundredth of it: the schedule "exp"."""
    # LaTeX: x(s) = x_0 \cdot 100^{s - 1}
    return start * math.pow(100, remaining - 1)


_SHAPES = {"const": constant, "lin": linear, "cos": cosine, "exp": exponential}


def as_schedule(name: str, value: Schedule, *, positive: bool = False) -> Callable[[float], float]:
    """Convert the setting of a schedule to a function of the remaining fraction of training.

    Args:
        name: The setting's name, for error messages.
        value: The setting.
        positive: Whether the number, or the number in the string, must be greater than 0. A function may return 0.

    Returns:
        A function from the remaining fraction, which falls from 1 to 0, to a finite number that is at least 0. It
        raises a `ValueError` if the user's function returns anything else.

    Raises:
        ValueError: `value` is none of the three, its number is not finite or out of range, or it is the placeholder of
            a function that was not saved.
    """
    if isinstance(value, str):
        if value == FUNCTION:
            raise ValueError(f"{name}: was a function, which a checkpoint cannot store; give the function again.")
        kind, _, text = value.partition("_")
        try:
            start = float(text)
        except ValueError:
            kind = ""
        if kind not in _SHAPES:
            raise ValueError(_kind_error(name, value))
        return partial(_SHAPES[kind], _in_range(name, start, value, positive))
    if callable(value):
        return partial(_call_checked, name, value)
    received: object = value
    if isinstance(received, bool) or not isinstance(received, Real):
        raise ValueError(_kind_error(name, value))
    number = as_float(received)
    return partial(constant, _in_range(name, number, number, positive))


def checked_schedule(name: str, value: Any, allowed: Range) -> Schedule:
    """Check the setting of a schedule, a function at the start of training, and return it; a number becomes a float.

    The placeholder of a function passes: such a config can still be acted with, and training asks for the function.

    Raises:
        ValueError: It is not a schedule, or out of range.
    """
    if isinstance(value, str) and value == FUNCTION:
        return FUNCTION
    start = as_schedule(name, value, positive=allowed.low > 0)(1.0)
    return str(value) if isinstance(value, str) else value if callable(value) else start


def plain_schedule(value: Schedule) -> float | str:
    """Return the setting of a schedule in a form for checkpoints and JSON: a function becomes the string "function"."""
    if isinstance(value, str):
        return str(value)
    return FUNCTION if callable(value) else float(value)


def _call_checked(name: str, function: Callable[[float], float], remaining: float) -> float:
    try:
        result: object = function(remaining)
        if isinstance(result, (bool, str, bytes)):
            raise TypeError(f"{type(result).__name__} is not a number")
        value = float(result)  # type: ignore[arg-type]  # whatever else Python can convert
    except Exception as error:
        raise ValueError(
            f"{name}: its function must return a number for the remaining fraction {remaining}, but failed "
            f"({type(error).__name__}: {error})."
        ) from error
    if not 0 <= value <= NON_NEGATIVE.high:
        raise ValueError(
            f"{name}: its function must return a finite number that is at least 0, got {value} for the remaining "
            f"fraction {remaining}."
        )
    return value


def _in_range(name: str, start: float, received: object, positive: bool) -> float:
    if math.isnan(start):
        raise ValueError(f"{name}: must be finite, got {shown(received)}.")
    (POSITIVE if positive else NON_NEGATIVE).check(name, start, received)
    return start


def _kind_error(name: str, received: object) -> str:
    return (
        f"{name}: must be a number, a string such as 'lin_2.5e-4', 'cos_3e-4', 'exp_1e-3' or 'const_0.2', or a "
        f"function of the remaining fraction; got {shown(received)}."
    )
