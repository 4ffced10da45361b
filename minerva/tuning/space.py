"""The space of a search: which settings vary, between which values, and under which condition."""

from __future__ import annotations

import difflib
import itertools
import math
import random
import types
import typing
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Union

from minerva.presets import toml_value
from minerva.sweeps.spec import Source
from minerva.trainers.config import FREE_FIELDS
from minerva.utils.ranges import shown

if TYPE_CHECKING:
    from minerva.trainers.config import RunConfig

MAX_CORNERS = 512
"""Combinations of extreme values that are checked before anything starts."""
_KEYS = ("low", "high", "log", "choices", "when")


@dataclass(frozen=True)
class Dimension:
    """One setting that varies."""

    name: str
    """The field of the config."""
    kind: Literal["float", "int", "choices"]
    low: float = 0.0
    high: float = 0.0
    log: bool = False
    choices: Mapping[str, Any] = field(default_factory=dict)
    """By its text, each value that it may have, as TOML has it."""
    when: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """It varies only where each of these settings has one of these texts."""

    def applies(self, values: Mapping[str, Any]) -> bool:
        """Return whether it varies, given the settings before it (choices by their texts)."""
        return all(values.get(name) in allowed for name, allowed in self.when.items())

    def ends(self) -> list[Any]:
        """Return its extreme values, choices by their texts."""
        return list(self.choices) if self.kind == "choices" else [self.low, self.high]

    def find(self, plain: Any) -> Any:
        """Return a config's plain value as a value of this dimension; None where it is outside."""
        if self.kind == "choices":
            text = text_of(plain)
            return text if text in self.choices else None
        if isinstance(plain, bool) or not isinstance(plain, (int, float)) or not self.low <= plain <= self.high:
            return None
        return plain

    def __str__(self) -> str:
        if self.kind == "choices":
            return f"{self.name} of {', '.join(self.choices)}"
        return f"{self.name} from {self.low} to {self.high}{' (log)' if self.log else ''}"


@dataclass(frozen=True)
class Space:
    """What varies, in an order in which each condition is known before what depends on it."""

    dimensions: tuple[Dimension, ...]

    def fields(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Return the settings of a trial as TOML has them, given its values (choices by their texts)."""
        by_name = {one.name: one for one in self.dimensions}
        return {
            name: by_name[name].choices[value] if by_name[name].kind == "choices" else value
            for name, value in values.items()
        }

    def first(self, settings: Mapping[str, Any]) -> dict[str, Any] | None:
        """Return the values that settings have without a search; None where one is outside of the space.

        Args:
            settings: The whole config, as plain values.
        """
        values: dict[str, Any] = {}
        for one in self.dimensions:
            if one.applies(values):
                value = one.find(settings[one.name])
                if value is None:
                    return None
                values[one.name] = value
        return values

    def corners(self) -> list[dict[str, Any]]:
        """Return all combinations of extreme values or, where they are many, a sample that has each extreme."""
        ends = {one.name: one.ends() for one in self.dimensions}
        if math.prod(map(len, ends.values())) <= MAX_CORNERS:
            combined = [dict(zip(ends, values, strict=True)) for values in itertools.product(*ends.values())]
        else:
            draw = random.Random(0)
            forced = [dict(self._alone(one, value)) for one in self.dimensions for value in one.ends()]
            forced += [{}] * max(MAX_CORNERS - len(forced), 0)
            combined = [{**{name: draw.choice(values) for name, values in ends.items()}, **some} for some in forced]
        found: dict[str, dict[str, Any]] = {}
        for values in combined:
            corner: dict[str, Any] = {}
            for one in self.dimensions:
                if one.applies(corner):
                    corner[one.name] = values[one.name]
            found[repr(corner)] = corner
        return list(found.values())

    def _alone(self, one: Dimension, value: Any) -> Iterator[tuple[str, Any]]:
        """Yield a value, after what its condition asks for."""
        by_name = {other.name: other for other in self.dimensions}
        for name, allowed in one.when.items():
            yield from self._alone(by_name[name], allowed[0])
        yield one.name, value


def read_space(table: Any, config_class: type[RunConfig], source: Source) -> Space:
    """Read ``[search]``; whether the values themselves are allowed is checked by the config, when it is expanded.

    Raises:
        SpecError: It is wrong; the message names the line.
    """
    if not isinstance(table, dict) or not table:
        raise source.error(
            ("search",),
            "search: must be a table [search] of at least one setting, such as "
            f"policy_lr = {{low = 1e-5, high = 1e-2, log = true}}, got {shown(table)}.",
        )
    hints = typing.get_type_hints(config_class)
    found: dict[str, Dimension] = {}
    for name, given in table.items():
        if name not in hints:
            near = difflib.get_close_matches(name, hints, n=3)
            hint = f"Did you mean {', '.join(near)}?" if near else f"The fields are {', '.join(hints)}."
            raise source.error(("search", name), f"{name}: not a setting of {config_class.__name__}. {hint}")
        if name in FREE_FIELDS:
            raise source.error(("search", name), f"{name}: changes no result; leave it out of [search].")
        try:
            found[name] = _dimension(name, given, hints[name])
        except ValueError as error:
            raise source.error(("search", name), str(error)) from error
    for one in found.values():
        try:
            _check_condition(one, found)
        except ValueError as error:
            raise source.error(("search", one.name), str(error)) from error
    try:
        return Space(tuple(_in_order(found)))
    except ValueError as error:
        raise source.error(("search",), str(error)) from error


def _dimension(name: str, given: Any, hint: Any) -> Dimension:
    if not isinstance(given, dict):
        raise ValueError(
            f"{name}: must be {{low = …, high = …}} or {{choices = […]}} in [search], got {shown(given)}; a fixed "
            "value belongs into [settings]."
        )
    for key in given:
        if key not in _KEYS:
            near = difflib.get_close_matches(key, _KEYS, n=1)
            hint = f"Did you mean {near[0]}?" if near else f"The keys are {', '.join(_KEYS)}."
            raise ValueError(f"{name}: {key} is not a key of a searched setting. {hint}")
    when = _when(name, given.get("when", {}))
    if "choices" in given:
        others = [key for key in ("low", "high", "log") if key in given]
        if others:
            raise ValueError(f"{name}: cannot have choices and {others[0]}; leave out one of them.")
        choices = given["choices"]
        if not isinstance(choices, (list, tuple)) or len(choices) < 2:
            raise ValueError(f"{name}: choices must be a list of at least two values, got {shown(choices)}.")
        numbers = _number_kind(hint)
        values = [float(value) if numbers == "float" and type(value) is int else value for value in choices]
        by_text = {text_of(value): value for value in values}
        if len(by_text) < len(choices):
            raise ValueError(f"{name}: each choice must be listed once, got {shown(choices)}.")
        return Dimension(name, "choices", choices=by_text, when=when)
    return _range(name, given, _number_kind(hint), when)


def _range(
    name: str, given: dict[str, Any], kind: Literal["float", "int"] | None, when: Mapping[str, tuple[str, ...]]
) -> Dimension:
    if kind is None:
        raise ValueError(f"{name}: is not a number, so it needs choices = […], got {shown(given)}.")
    if "low" not in given or "high" not in given:
        raise ValueError(f"{name}: needs low and high, or choices, got {shown(given)}.")
    allowed = (int,) if kind == "int" else (int, float)
    low, high = given["low"], given["high"]
    for end, value in (("low", low), ("high", high)):
        if isinstance(value, bool) or not isinstance(value, allowed) or not math.isfinite(value):
            what = "a whole number" if kind == "int" else "a number"
            raise ValueError(f"{name}: {end} must be {what}, got {shown(value)}.")
    log = given.get("log", False)
    if not isinstance(log, bool):
        raise ValueError(f"{name}: log must be true or false, got {shown(log)}.")
    if low >= high:
        raise ValueError(f"{name}: low must be less than high, got {shown(low)} and {shown(high)}.")
    if log and low <= 0:
        raise ValueError(f"{name}: low must be greater than 0 with log = true, got {shown(low)}.")
    if kind == "float":
        low, high = float(low), float(high)
    return Dimension(name, kind, low, high, log, when=when)


def _number_kind(hint: Any) -> Literal["float", "int"] | None:
    """Return how a field's numbers vary; None for a field without numbers."""
    parts = typing.get_args(hint) if typing.get_origin(hint) in (Union, types.UnionType) else (hint,)
    return "int" if int in parts else "float" if float in parts else None


def _when(name: str, given: Any) -> dict[str, tuple[str, ...]]:
    if not isinstance(given, dict):
        raise ValueError(f'{name}: when must be a table such as {{optimizer_type = "sgd"}}, got {shown(given)}.')
    return {other: tuple(map(text_of, value if isinstance(value, list) else [value])) for other, value in given.items()}


def _check_condition(one: Dimension, found: Mapping[str, Dimension]) -> None:
    for other, allowed in one.when.items():
        if other not in found or found[other].kind != "choices":
            raise ValueError(
                f"{one.name}: when names {other}, which must be in [search] with choices; add it, or leave out when."
            )
        for text in allowed:
            if text not in found[other].choices:
                listed = ", ".join(found[other].choices)
                raise ValueError(f"{one.name}: when must name one of {other}'s choices, {listed}; got {text}.")
        if not allowed:
            raise ValueError(f"{one.name}: when must name a value of {other}, got none.")


def _in_order(found: Mapping[str, Dimension]) -> Iterator[Dimension]:
    """Yield the dimensions, each after those that its condition names.

    Raises:
        ValueError: The conditions go round in a circle.
    """
    left, known = dict(found), set[str]()
    while left:
        ready = [one for one in left.values() if known.issuperset(one.when)]
        if not ready:
            raise ValueError(f"search: the conditions of {', '.join(left)} depend on each other; leave out one when.")
        for one in ready:
            del left[one.name]
            known.add(one.name)
            yield one


def text_of(value: Any) -> str:
    """Return a value as journals and plots name it."""
    return value if isinstance(value, str) else toml_value(value).strip('"')
