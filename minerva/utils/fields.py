"""The check that every field of a config passes: its type and, for numbers, its range.

Both are read from the field's annotation. A number's has to declare a range (`minerva.utils.ranges` has the common
ones), so that a new field cannot be left unchecked.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
import types
import typing
from collections.abc import Callable
from functools import partial
from numbers import Integral, Real
from typing import Annotated, Any, Literal, Union

from minerva.utils.ranges import LARGEST_INT, Range, as_float, shown, whole_number
from minerva.utils.ranges import number as checked_number
from minerva.utils.schedules import Schedule, checked_schedule

DEEPEST = 32
"""Levels of lists and dicts within each other that `env_kwargs` may have."""

MAX_WEIGHTS = 2**28
"""Weights of a network: with gradients and moments, they take 4 GiB."""

Check = Callable[[Any], Any]
"""A function that returns a field's value in its plain form, or raises a `ValueError`."""


def check_fields(config: Any) -> None:
    """Check every field of a dataclass, and turn its value into Python's own types.

    A string where a number belongs would surface much later, far from its cause. NumPy's numbers are accepted, but a
    checkpoint holds plain values alone.

    Raises:
        ValueError: A value is not of its field's type, or out of its range.
        TypeError: A field's annotation does not say what is allowed.
    """
    for name, check in _checks(type(config)):  # type: ignore[arg-type]  # a class can be hashed
        object.__setattr__(config, name, check(getattr(config, name)))


def python_value(value: Any, hint: Any) -> Any:
    """Return a value of TOML as a config has it: arrays are tuples, and "none" is None where that is allowed.

    Args:
        value: The value.
        hint: The annotation of its field; None for a field that there is not.
    """
    if isinstance(value, list):
        return tuple(value)
    return None if value == "none" and _is_optional(hint) else value


def _is_optional(kind: Any) -> bool:
    return typing.get_origin(kind) in (Union, types.UnionType) and types.NoneType in typing.get_args(kind)


@functools.cache
def _checks(config: type[Any]) -> tuple[tuple[str, Check], ...]:
    kinds = typing.get_type_hints(config, include_extras=True)
    return tuple((field.name, _check_of(field.name, kinds[field.name])) for field in dataclasses.fields(config))


def _check_of(name: str, kind: Any) -> Check:
    if _is_optional(kind):
        (*others,) = (one for one in typing.get_args(kind) if one is not types.NoneType)
        inner = _check_of(name, Union[tuple(others)])  # noqa: UP007
        return lambda value: None if value is None else inner(value)
    if typing.get_origin(kind) is Literal:
        return partial(_choice, name, typing.get_args(kind))
    if kind in _WITHOUT_RANGE:
        return partial(_WITHOUT_RANGE[kind], name)
    if typing.get_origin(kind) is Annotated:
        plain, allowed = typing.get_args(kind)
        if plain in _WITH_RANGE and isinstance(allowed, Range):
            check = _WITH_RANGE[plain]
            return lambda value: check(name, value, allowed)
    raise TypeError(f"{name}: its type {kind} must be annotated with the Range of what is allowed.")


def _choice(name: str, choices: tuple[Any, ...], value: Any) -> Any:
    for choice in choices:
        if isinstance(value, type(choice)) and value == choice:  # 1 is not True
            return choice
    *most, last = map(repr, choices)
    raise ValueError(f"{name}: must be {', '.join(most)} or {last}, got {shown(value)}.")


def _flag(name: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise ValueError(f"{name}: must be True or False, got {shown(value)}.")
    return value


def _text(name: str, value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{name}: must be text, got {shown(value)}.")
    return str(value)


def _sizes(name: str, value: Any, allowed: Range) -> tuple[int, ...]:
    if not isinstance(value, (list, tuple)) or not value or not all(_is_whole(size) and size > 0 for size in value):
        raise ValueError(
            f"{name}: must name at least one layer of at least one unit, such as (64, 64); got {shown(value)}."
        )
    sizes = tuple(whole_number(name, size, allowed) for size in value)
    if sum(a * b for a, b in itertools.pairwise(sizes)) > MAX_WEIGHTS:
        raise ValueError(f"{name}: must have at most {MAX_WEIGHTS:,} weights between layers, got {shown(value)}.")
    return sizes


def _arguments(name: str, value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ValueError(f"{name}: must be a dict of arguments, such as {{'frame_skip': 2}}; got {shown(value)}.")
    plain: dict[str, Any] = _plain(name, value, 0)
    return plain


def _plain(name: str, value: Any, depth: int) -> Any:
    """Turn a value into one of Python's plain ones, as a checkpoint can hold them.

    An infinite number may mean "no bound" to an environment; NaN means nothing.
    """
    if depth > DEEPEST:
        raise ValueError(f"{name}: must be nested at most {DEEPEST} levels deep.")
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return str(value)
    if isinstance(value, Integral):
        return whole_number(name, value, Range(-LARGEST_INT, LARGEST_INT))
    if isinstance(value, Real) and not math.isnan(as_float(value)):
        return as_float(value)
    if isinstance(value, (list, tuple)):
        items = [_plain(f"{name}[{i}]", item, depth + 1) for i, item in enumerate(value)]
        return tuple(items) if isinstance(value, tuple) else items
    if isinstance(value, dict) and all(isinstance(key, str) for key in value):
        return {str(key): _plain(f"{name}[{key!r}]", item, depth + 1) for key, item in value.items()}
    raise ValueError(
        f"{name}: must be a plain value (numbers, text, lists, dicts), got {shown(value)}. "
        "For anything else, pass a function that makes the environment in place of its id."
    )


def _is_whole(value: Any) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool)


_WITHOUT_RANGE: dict[Any, Callable[[str, Any], Any]] = {bool: _flag, str: _text, dict[str, Any]: _arguments}
_WITH_RANGE: dict[Any, Callable[[str, Any, Range], Any]] = {
    int: whole_number,
    float: checked_number,
    Schedule: checked_schedule,
    tuple[int, ...]: _sizes,
}
