"""The structure of loaded values: compare a tree of plain values and tensors with one of the right form."""

from __future__ import annotations

import reprlib
from collections.abc import Callable
from typing import Any

from torch import Tensor

Check = Callable[[Any, str], None]
"""Checks a value that it is given with its name; raises a `StructureError`."""


class StructureError(ValueError):
    """A loaded value does not have the form that is expected; the message says where."""


def check(value: Any, form: Any, name: str) -> None:
    """Check that a loaded value has the same form as another one: types, keys, lengths, shapes and dtypes.

    Args:
        value: What was loaded.
        form: Plain values and tensors in dicts, lists and tuples. What they contain does not matter, but a whole number
            must not be negative where this one is not. In place of a part there may be a `Check` of its own.
        name: Where the value was found.

    Raises:
        StructureError: It has another form.
    """
    if callable(form):
        form(value, name)
    elif isinstance(form, Tensor):
        expect(_is_alike(value, form), name, f"must be {describe(form)}", value)
    elif isinstance(form, dict):
        expect(isinstance(value, dict), name, "must be a dict", value)
        for key in form.keys() - value.keys():
            raise StructureError(f"{name}: must have the entry {key}, got none")
        for key in value.keys() - form.keys():
            raise StructureError(f"{name}: must have no entry {_short(key)}, got one")
        for key, part in form.items():
            check(value[key], part, f"{name}.{key}")
    elif isinstance(form, (list, tuple)):
        kind = f"must be a {type(form).__name__} of {len(form)}"
        expect(type(value) is type(form) and len(value) == len(form), name, kind, value)
        kinds = set(map(type, form))
        if kinds == set(map(type, value)) and (kinds == {float} or (kinds == {int} and _are_counts(value))):
            return  # a space of images has millions of bounds
        for i, (item, part) in enumerate(zip(value, form, strict=True)):
            check(item, part, f"{name}[{i}]")
    else:
        expect(type(value) is type(form), name, f"must be {describe_type(form)}", value)
        if isinstance(value, int):
            least, most = min(form, 0) and -(2**63), max(form, 2**63 - 1)
            expect(least <= value <= most, name, f"must lie between {least} and {most}", value)


def expect(right: bool, name: str, rule: str, value: Any) -> None:
    """Raise a `StructureError` with the rule and the value unless it is right."""
    if not right:
        raise StructureError(f"{name}: {rule}, got {describe(value)}")


def anything(value: Any, name: str) -> None:
    """Accept any loaded value: one that is checked elsewhere."""


def text(value: Any, name: str) -> None:
    """Check that a loaded value is text."""
    check(value, "", name)


def optional(form: Any) -> Check:
    """Return a check that a loaded value is None or has a form."""
    return lambda value, name: None if value is None else check(value, form, name)


def list_of(form: Any) -> Check:
    """Return a check that a loaded value is a list, of any length, of values of one form."""

    def check_list(value: Any, name: str) -> None:
        expect(isinstance(value, list), name, "must be a list", value)
        for i, item in enumerate(value):
            check(item, form, f"{name}[{i}]")

    return check_list


def dict_of(form: Any) -> Check:
    """Return a check that a loaded value is a dict from text to values of one form."""

    def check_dict(value: Any, name: str) -> None:
        expect(isinstance(value, dict), name, "must be a dict", value)
        for key, item in value.items():
            check(key, "", f"{name}: a key")
            check(item, form, f"{name}.{key}")

    return check_dict


def _are_counts(values: list[int] | tuple[int, ...]) -> bool:
    return min(values) >= 0 and max(values) < 2**63


def _is_alike(value: Any, form: Tensor) -> bool:
    return (
        isinstance(value, Tensor)
        and (value.shape, value.dtype, value.layout) == (form.shape, form.dtype, form.layout)
        and not value.requires_grad
    )


def describe_type(value: Any) -> str:
    """Name the type of a plain value, as a user knows it."""
    names = {bool: "True or False", int: "a whole number", float: "a number with a fraction", str: "text"}
    return "None" if value is None else names.get(type(value), f"a {type(value).__name__}")


def describe(value: Any) -> str:
    """Describe a value of any size in a few words."""
    if isinstance(value, Tensor):
        return f"a {str(value.dtype).removeprefix('torch.')} tensor of shape {tuple(value.shape)}"
    if isinstance(value, (dict, list, tuple)):
        return f"a {type(value).__name__} of {len(value)}"
    return _short(value)


def _short(value: Any) -> str:
    if isinstance(value, int) and value.bit_length() > 64:  # Python refuses to print numbers of thousands of digits
        return f"a whole number of {value.bit_length()} bits"
    shown = reprlib.repr(value)
    return shown if len(shown) <= 60 else f"a {type(value).__name__}"
