"""Settings that change over a run: a number, a text such as "lin_2.5e-4", or a function of the remaining share."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from numbers import Real

Schedule = float | str | Callable[[float], float]
"""A number; "const_0.2", "lin_2.5e-4", "cos_3e-4" or "exp_1e-3"; or a function of the remaining share of training, from
1 to 0."""

FUNCTION = "function"
"""What stands for a function where only plain values can be kept."""


def constant(start: float, share: float) -> float:
    """Stay at the value."""
    return start


def linear(start: float, share: float) -> float:
    """Fall from the value to 0 in a straight line."""
    # LaTeX: x(s) = x_0 s
    return start * share


def cosine(start: float, share: float) -> float:
    """Fall from the value to 0 along half a cosine: slow at first, fast in the middle, slow at last."""
    # LaTeX: x(s) = \tfrac{1}{2} x_0 (1 - \cos \pi s)
    return 0.5 * start * (1 - math.cos(math.pi * share))


def exponential(start: float, share: float) -> float:
    """Fall from the value to a hundredth of it, by the same factor in equal times: fast at first, slow at last."""
    # LaTeX: x(s) = x_0 \cdot 100^{s - 1}
    return start * math.pow(100, share - 1)


_SHAPES = {"const": constant, "lin": linear, "cos": cosine, "exp": exponential}


def as_schedule(name: str, value: Schedule, *, positive: bool = False) -> Callable[[float], float]:
    """Turn a setting into a function of the share of training that remains.

    Args:
        name: The setting's name, for the message.
        value: The setting.
        positive: Whether a number, or the number in a text, has to be more than 0. A function may always give 0.

    Returns:
        A function from the share, 1 at the start and towards 0, to a finite number that is not negative. It raises a
        `ValueError` where a function that was given says otherwise.

    Raises:
        ValueError: It is none of the three, or not a finite number from 0 on, or stands for a function that was not
            saved.
    """
    if isinstance(value, str):
        if value == FUNCTION:
            raise ValueError(f"{name}: was a function, which a checkpoint does not hold; give the function again.")
        kind, _, number = value.partition("_")
        try:
            start = float(number)
        except ValueError:
            kind = ""
        if kind not in _SHAPES:
            raise ValueError(_rule(name, value))
        _check(name, start, value, positive)
        return partial(_SHAPES[kind], start)
    if callable(value):
        return partial(_called, name, value)
    received: object = value
    if isinstance(received, bool) or not isinstance(received, Real):
        raise ValueError(_rule(name, value))
    _check(name, float(value), value, positive)
    return partial(constant, float(value))


def plain_schedule(value: Schedule) -> float | str:
    """Give a setting as a checkpoint or JSON can hold it: a function becomes the text "function"."""
    if isinstance(value, str):
        return str(value)
    return FUNCTION if callable(value) else float(value)


def _called(name: str, function: Callable[[float], float], share: float) -> float:
    try:
        value = float(function(share))
    except Exception as error:
        raise ValueError(
            f"{name}: its function must give a number for the remaining share {share}, but failed "
            f"({type(error).__name__}: {error})."
        ) from error
    if not (math.isfinite(value) and value >= 0):
        raise ValueError(
            f"{name}: its function must give a finite number that is at least 0, got {value} for the remaining share "
            f"{share}."
        )
    return value


def _check(name: str, start: float, received: object, positive: bool) -> None:
    if not math.isfinite(start):
        raise ValueError(f"{name}: must be finite, got {received!r}.")
    if not (start > 0 if positive else start >= 0):
        raise ValueError(f"{name}: must be {'greater than' if positive else 'at least'} 0, got {received!r}.")


def _rule(name: str, received: object) -> str:
    return (
        f"{name}: must be a number, a text such as 'lin_2.5e-4', 'cos_3e-4', 'exp_1e-3' or 'const_0.2', or a function "
        f"of the remaining share; got {received!r}."
    )
