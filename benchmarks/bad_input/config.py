"""Configs with bad values: every field with every value that no field of its kind may have, and random combinations.

What a kind may be is read from the annotations; the values are written here, so that a range that is never checked
shows.
"""

from __future__ import annotations

import dataclasses
import datetime
import decimal
import fractions
import itertools
import math
import random
import types
import typing
from collections.abc import Iterator
from typing import Any

import numpy as np

from benchmarks.bad_input import Result
from minerva import api
from minerva.utils.ranges import Range, shown

COUNT = 15_000


class Unprintable:
    """A value that cannot even be shown."""

    def __repr__(self) -> str:
        raise RuntimeError("no text")


CYCLE: list[Any] = []
CYCLE.append(CYCLE)
DEEP: dict[str, Any] = {}
for _ in range(5000):
    DEEP = {"deeper": DEEP}

BAD: list[Any] = [
    math.nan, math.inf, -math.inf, np.float32("nan"), np.float64("inf"), 1e300, -1e300, 2**63, -(2**63) - 1, 10**400,
    -(10**5000), fractions.Fraction(10**400), np.uint64(2**64 - 1), decimal.Decimal(1), 1j, np.complex64(1), "", "ten",
    "1", "nan", "1e3", "lin_nan", "const_inf", "lin_", "cos_-1", "exp_1e400", "x" * 5000, b"1", bytearray(b"1"), [], (),
    [1.5], [math.nan], ["64"], [0], (64, -1), [True], [2**63], [None], [[64]], {}, {1: 2}, {1, 2}, frozenset(),
    range(3),
    object(), Unprintable(), dict, Range, datetime.date(2020, 1, 1), datetime.timedelta(1), np.zeros(2), np.array(1.0),
    np.datetime64("NaT"), Ellipsis, NotImplemented, iter([1]), CYCLE, DEEP,
]  # fmt: skip
BAD_FUNCTIONS: list[Any] = [
    lambda share: math.nan, lambda share: -share, lambda share: math.inf, lambda share: None, lambda share: "1",
    lambda share: True, lambda share: 1j, lambda share: [share], lambda: 1.0, lambda share: 10**400,
    lambda share: 1 / 0,
]  # fmt: skip
BAD_ARGUMENTS: list[Any] = [
    {"x": math.nan}, {"x": object()}, {1: 2}, {"x": {2: 3}}, {"x": [1j]}, {"x": np.zeros(3)}, {"x": 2**64},
    {"x": CYCLE}, DEEP, {"x": (b"1",)}, {"x": Unprintable()},
]  # fmt: skip


def bad_values(kind: Any) -> list[Any]:
    """Return values that no field of this type may have."""
    allowed = [part for option in options(kind) for part in [option, *typing.get_args(option)]]
    if dict[str, Any] in allowed:  # a dict may be empty
        return [value for value in BAD if not isinstance(value, dict)] + BAD_ARGUMENTS
    values = [value for value in BAD if not (str in allowed and float not in allowed and isinstance(value, str))]
    if bool not in options(kind):
        values += [value for value in (True, False, np.True_) if not any(value is one for one in allowed)]
    else:
        values += [0, 1, "True", np.True_]
    if types.NoneType not in options(kind):
        values.append(None)
    if any(typing.get_origin(option) is typing.Annotated and callable_allowed(option) for option in options(kind)):
        values += BAD_FUNCTIONS
    for limits in (part for part in allowed if isinstance(part, Range)):
        for value in (limits.low - 1, limits.high + 1, math.nextafter(limits.high, math.inf)):
            if not limits.low <= value <= limits.high:
                values += [value, (8, value)]
    return values


def options(kind: Any) -> tuple[Any, ...]:
    """Return the types that a union joins, or the type itself."""
    union = typing.get_origin(kind) in (typing.Union, types.UnionType)
    return typing.get_args(kind) if union else (kind,)


def callable_allowed(option: Any) -> bool:
    """Return whether a type is that of a schedule, which may be a function."""
    return any(typing.get_origin(one) is not None for one in options(typing.get_args(option)[0]) if one is not float)


def cases() -> list[tuple[type[Any], str, Any]]:
    """Return every config class, field and bad value."""
    found = []
    for algo in api.ALGORITHMS:
        config = api.config_class(algo)
        kinds = typing.get_type_hints(config, include_extras=True)
        found += [(config, f.name, value) for f in dataclasses.fields(config) for value in bad_values(kinds[f.name])]
    return found


def results(count: int, seed: int) -> Iterator[Result]:
    """Make `count` configs: each field with each bad value in a random order, then combinations of two to five."""
    generator = random.Random(seed)
    single = cases()
    classes = [api.config_class(algo) for algo in api.ALGORITHMS]
    by_class = {config: [case for case in single if case[0] is config] for config in classes}
    for config, name, value in itertools.islice(generator.sample(single, len(single)), count):
        yield attempt(config, {name: value})
    for _ in range(count - len(single)):
        config = generator.choice(list(by_class))
        chosen = generator.sample(by_class[config], generator.randint(2, 5))
        yield attempt(config, {name: value for _, name, value in chosen})


def attempt(config: type[Any], fields: dict[str, Any]) -> Result:
    """Make one config."""
    case = f"{config.__name__}({', '.join(f'{name}={shown(value)}' for name, value in fields.items())})"
    try:
        config.from_fields(None, fields)
    except ValueError as error:
        message = str(error)
        about = message.partition(":")[0].partition("[")[0]
        sentence = about in fields and "\n" not in message and message.endswith(".") and len(message) < 1000
        return Result("config", case, "refused" if sentence else "traceback", message)
    except Exception as error:
        return Result("config", case, "traceback", f"{type(error).__name__}: {error}")
    return Result("config", case, "accepted", "")
