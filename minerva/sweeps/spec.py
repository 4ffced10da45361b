"""The specification of a sweep: a TOML file, or a mapping of the same form, checked before anything starts."""

from __future__ import annotations

import difflib
import itertools
import math
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from minerva.sweeps.seeds import parse_seeds
from minerva.utils.ranges import LARGEST_INT, Range, number, shown, whole_number

Place = tuple[str | int, ...]
"""Where something stands in a specification: keys, and positions in an array of tables."""
MAX_RUNS = 100_000
LONGEST_NAME = 80
"""Characters of a variant's folder; a longer one is a hash."""

_KEYS = (
    "name", "algorithms", "envs", "seeds", "total_steps", "preset", "device", "init_from", "keep_replay", "settings",
    "grid", "variants", "resources",
)  # fmt: skip
_NAME = re.compile(r"[\w=,.+@ -]*[\w=,+@-]", re.ASCII)


class SpecError(ValueError):
    """A specification is wrong; the message names the line, the rule and the remedy."""


class Resources(NamedTuple):
    """What one run may use."""

    cores: int = 1
    """Processor cores. Each process of the run has as many threads."""
    gpu: float = 0.0
    """Share of a GPU: 0.25 for four runs on each. 0 leaves the choice of the device to the run."""


class Variant(NamedTuple):
    """Settings that one line of a sweep's table has."""

    name: str
    fields: dict[str, Any]
    places: dict[str, Place]
    """Where each field stands in the specification."""


@dataclass(frozen=True)
class Spec:
    """A checked specification; the values of settings are checked when it is expanded."""

    name: str
    algorithms: tuple[str, ...]
    envs: tuple[str, ...]
    seeds: tuple[int, ...]
    total_steps: int | None = None
    preset: str | None = None
    device: str = "auto"
    init_from: str | None = None
    keep_replay: bool = False
    settings: dict[str, Any] = field(default_factory=dict)
    grid: dict[str, Any] = field(default_factory=dict)
    variants: tuple[dict[str, Any], ...] = ()
    resources: Resources = field(default_factory=Resources)
    source: Source | None = None

    def error(self, place: Place, message: str) -> SpecError:
        """Return the error that names the line of a place."""
        return (self.source or Source("spec")).error(place, message)

    def settings_of(self, algorithm: str) -> Variant:
        """Return what ``[settings]`` and ``[settings.ALGO]`` say of an algorithm."""
        return Variant("", *_of(self.settings, ("settings",), algorithm, self.algorithms))

    def variants_of(self, algorithm: str) -> list[Variant]:
        """Return the variants of an algorithm: the grid's combinations, the named ones, or the default alone."""
        if self.variants:
            named = []
            for k, table in enumerate(self.variants):
                fields = {key: value for key, value in table.items() if key != "name"}
                named.append(Variant(table["name"], *_of(fields, ("variants", k), algorithm, self.algorithms)))
            return named
        axes, places = _of(self.grid, ("grid",), algorithm, self.algorithms)
        names = sorted(axes)
        combinations = itertools.product(*(axes[name] for name in names))
        return [Variant("", dict(zip(names, values, strict=True)), places) for values in combinations]

    def count(self) -> int:
        """Return the number of runs, without expanding them."""
        variants = sum(
            len(self.variants)
            or math.prod(len(axis) for axis in _of(self.grid, ("grid",), algorithm, self.algorithms)[0].values())
            for algorithm in self.algorithms
        )
        return variants * len(self.envs) * len(self.seeds)


def read_spec(spec: str | Path | Mapping[str, Any]) -> Spec:
    """Read a specification from a TOML file, or from a mapping of the same form.

    Raises:
        SpecError: It is wrong; the message names the line.
    """
    return check_spec(*read_table(spec, "sweep"))


def read_table(spec: str | Path | Mapping[str, Any], name: str) -> tuple[dict[str, Any], Source]:
    """Read the table that a specification consists of; a mapping is called `name`, where it has no name.

    Raises:
        SpecError: It is not TOML, or cannot be read.
    """
    if isinstance(spec, Mapping):
        return {"name": name, **spec}, Source("spec")
    path = Path(spec)
    try:
        text = path.read_text(encoding="utf-8")
        table = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise SpecError(f"{path}: is not valid TOML: {error}.") from error
    except UnicodeDecodeError as error:
        raise SpecError(f"{path}: is not text in UTF-8 ({error.reason}); give a TOML file.") from error
    except OSError as error:
        raise SpecError(f"spec: {path} cannot be read ({error.strerror}); give a TOML file.") from error
    return {"name": path.stem, **table}, Source(str(path), text)


def check_spec(table: Mapping[str, Any], source: Source) -> Spec:
    """Check the table of a sweep.

    Raises:
        SpecError: It is wrong; the message names the line.
    """
    for key in table:
        if key in ("search", "tune"):
            raise source.error((key,), f"{key}: is for `minerva tune`; leave it out, or list values in [grid].")
        if key not in _KEYS:
            near = difflib.get_close_matches(key, _KEYS, n=1)
            hint = f"Did you mean {near[0]}?" if near else "Settings of an algorithm belong into [settings]. The keys "
            hint += "" if near else f"are {', '.join(_KEYS)}."
            raise source.error((key,), f"{key}: is not a key of a sweep. {hint}")
    name = _text(table, "name", source)
    if not _NAME.fullmatch(name):
        raise source.error(("name",), f"name: must be letters, digits and any of =,.+@-, got {shown(name)}.")
    algorithms, envs = (_texts(table, key, source) for key in ("algorithms", "envs"))
    if "seeds" not in table:
        raise source.error((), 'seeds: is missing; add seeds = "1-5".')
    try:
        seeds = parse_seeds(table["seeds"])
    except ValueError as error:
        raise source.error(("seeds",), str(error)) from error
    try:
        steps = table.get("total_steps")
        if steps is not None:
            steps = whole_number("total_steps", steps, Range(1, LARGEST_INT, "be a whole number from 1 on"))
        resources = _resources(table.get("resources", {}), source)
    except SpecError:
        raise
    except ValueError as error:
        raise source.error((str(error).partition(":")[0],), str(error)) from error
    keep_replay = table.get("keep_replay", False)
    if not isinstance(keep_replay, bool):
        raise source.error(("keep_replay",), f"keep_replay: must be true or false, got {shown(keep_replay)}.")
    settings, grid = (_table(table, key, algorithms, source) for key in ("settings", "grid"))
    for place, axis in _leaves(grid, ("grid",), algorithms):
        if not isinstance(axis, list) or not axis:
            raise source.error(place, f"{place[-1]}: must be a list of values in a grid, got {shown(axis)}.")
        if any(value in axis[:k] for k, value in enumerate(axis)):
            raise source.error(place, f"{place[-1]}: each value must be listed once, got {shown(axis)}.")
    spec = Spec(
        name=name,
        algorithms=algorithms,
        envs=envs,
        seeds=seeds,
        total_steps=steps,
        preset=_text(table, "preset", source) if "preset" in table else None,
        device=_text({"device": "auto", **table}, "device", source),
        init_from=_text(table, "init_from", source) if "init_from" in table else None,
        keep_replay=keep_replay,
        settings=settings,
        grid=grid,
        variants=_variants(table, algorithms, source),
        resources=resources,
        source=source,
    )
    if spec.grid and spec.variants:
        raise source.error(("variants",), "variants: cannot be combined with a grid; leave out one of them.")
    if spec.count() > MAX_RUNS:
        raise source.error((), f"spec: must have at most {MAX_RUNS:,} runs, got {spec.count():,}; split it.")
    return spec


def _text(table: Mapping[str, Any], key: str, source: Source) -> str:
    value = table[key]
    if not isinstance(value, str) or not value.strip():
        raise source.error((key,), f"{key}: must be text, got {shown(value)}.")
    return value


def _texts(table: Mapping[str, Any], key: str, source: Source) -> tuple[str, ...]:
    example = '["ppo"]' if key == "algorithms" else '["Pendulum-v1"]'
    if key not in table:
        raise source.error((), f"{key}: is missing; add {key} = {example}.")
    values = table[key]
    if not isinstance(values, (list, tuple)) or not values or not all(isinstance(v, str) and v for v in values):
        raise source.error((key,), f"{key}: must be a list of names such as {example}, got {shown(values)}.")
    if len(set(values)) < len(values):
        raise source.error((key,), f"{key}: each must be listed once, got {shown(list(values))}.")
    return tuple(values)


def _table(table: Mapping[str, Any], key: str, algorithms: Sequence[str], source: Source) -> dict[str, Any]:
    values = table.get(key, {})
    if not isinstance(values, dict):
        raise source.error((key,), f"{key}: must be a table [{key}], got {shown(values)}.")
    for name in ("total_steps", "seed", "seeds", "device", "preset"):
        if name in values:
            raise source.error((key, name), f"{name}: is not a setting of an algorithm; write it above all tables.")
    return values


def _variants(table: Mapping[str, Any], algorithms: Sequence[str], source: Source) -> tuple[dict[str, Any], ...]:
    variants = table.get("variants", [])
    if not isinstance(variants, list) or not all(isinstance(variant, dict) for variant in variants):
        raise source.error(("variants",), "variants: must be tables [[variants]], each with a name.")
    names: list[str] = []
    for k, variant in enumerate(variants):
        name = variant.get("name")
        if not isinstance(name, str) or not _NAME.fullmatch(name) or len(name) > LONGEST_NAME:
            raise source.error(
                ("variants", k, "name"),
                f"name: each variant must have one, of at most {LONGEST_NAME} letters, digits and any of =,.+@-; got "
                f"{shown(name)}.",
            )
        if name in names:
            raise source.error(("variants", k, "name"), f"name: each variant must have its own, got {name!r} twice.")
        names.append(name)
        _table({"variants": variant}, "variants", algorithms, source)
    return tuple(variants)


def _resources(table: Any, source: Source) -> Resources:
    if not isinstance(table, dict):
        raise source.error(("resources",), f"resources: must be a table [resources], got {shown(table)}.")
    for key in table:
        if key not in Resources._fields:
            raise source.error(("resources", key), f"{key}: is not a resource; there are cores and gpu.")
    try:
        cores = whole_number("cores", table.get("cores", 1), Range(1, 1024, "be a whole number from 1 on"))
        gpu = number("gpu", table.get("gpu", 0.0), Range(0, 64))
        if gpu > 1 and gpu != int(gpu):
            raise ValueError(f"gpu: must be a share of one GPU or a whole number of them, got {gpu}.")
    except ValueError as error:
        raise source.error(("resources", str(error).partition(":")[0]), str(error)) from error
    return Resources(cores, gpu)


def _leaves(table: dict[str, Any], place: Place, algorithms: Sequence[str]) -> Iterator[tuple[Place, Any]]:
    """Yield each field of a table with its place, an algorithm's own table included."""
    for key, value in table.items():
        if key in algorithms and isinstance(value, dict):
            yield from _leaves(value, (*place, key), ())
        else:
            yield (*place, key), value


def _of(
    table: dict[str, Any], place: Place, algorithm: str, algorithms: Sequence[str]
) -> tuple[dict[str, Any], dict[str, Place]]:
    """Return the fields of a table that hold for an algorithm, and where they stand; its own table wins."""
    fields: dict[str, Any] = {}
    places: dict[str, Place] = {}
    for where, value in sorted(_leaves(table, place, algorithms), key=lambda leaf: len(leaf[0])):
        key = str(where[-1])
        if len(where) == len(place) + 1 or where[len(place)] == algorithm:
            fields[key], places[key] = value, where
    return fields, places


class Source:
    """The text of a specification, in which errors find their line.

    Args:
        name: The file, or "spec".
        text: Its text; None for a specification from Python.
    """

    def __init__(self, name: str, text: str | None = None) -> None:
        self.name, self.text = name, text
        self._lines = text.splitlines() if text is not None else []

    def error(self, place: Place, message: str) -> SpecError:
        """Return the error that names the line of a place."""
        line = self._line_of(place)
        where = f", line {line}" if line is not None else ""
        if line is None and len(place) > 1:
            message = (
                f"{'.'.join(map(str, place[:-1]))}.{message}" if str(place[-1]) == message.split(":")[0] else message
            )
        return SpecError(f"{self.name}{where}: {message}")

    def _line_of(self, place: Place) -> int | None:
        while place:
            found = [number for number, here in self._places() if here[: len(place)] == place]
            if found:
                return found[0]
            # An inline table stands on the line of its key.
            place = place[:-1]
        return None

    def _places(self) -> Iterator[tuple[int, Place]]:
        table: Place = ()
        counts: dict[Place, int] = {}
        for k, line in enumerate(self._lines, start=1):
            if (match := _HEADER.match(line)) is not None:
                table = _keys(match["keys"])
                if match["array"]:
                    counts[table] = counts.get(table, -1) + 1
                for length in range(len(table), 0, -1):
                    if table[:length] in counts:
                        table = (*table[:length], counts[table[:length]], *table[length:])
                        break
                yield k, table
            elif (match := _ASSIGNMENT.match(line)) is not None:
                yield k, (*table, *_keys(match["keys"]))


_KEY = r"""(?:[A-Za-z0-9_-]+|"[^"]*"|'[^']*')"""
_HEADER = re.compile(rf"\s*\[(?P<array>\[)?\s*(?P<keys>{_KEY}(?:\s*\.\s*{_KEY})*)\s*\]")
_ASSIGNMENT = re.compile(rf"\s*(?P<keys>{_KEY}(?:\s*\.\s*{_KEY})*)\s*=")


def _keys(text: str) -> Place:
    return tuple(key.strip("\"'") for key in re.findall(_KEY, text))
