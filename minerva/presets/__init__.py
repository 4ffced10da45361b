"""Presets: settings by environment id, with what is known of them; one TOML file per algorithm.

The form of a file:

    about = "…"                   # sentences about all of them
    [common]                      # fields that all presets of the file share

    [default.continuous]          # the general preset of tasks without one of their own, by action space
    [default.discrete]

    ["Hopper-v5"]
    total_steps = 1_000_000       # the length of the run that it is for
    base = "Walker2d-v5"          # another table, whose fields this one takes over (optional)
    note = "…"                    # a sentence about it (optional)
    gamma = 0.99                  # every other key is a field of the algorithm's config

    ["Hopper-v5".promise]         # what its runs reached, or
    ["Hopper-v5".tuned]           # on which seeds it was tuned, where no run is reported: both are written by
                                  # `python -m benchmarks.promises --write`

A preset with neither `promise` nor `tuned` was never tried. Constructors never apply presets; `minerva.train` and the
command line do.
"""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

ActionKind = Literal["continuous", "discrete"]
"""What tells the general presets of an algorithm apart."""
ABOUT = ("total_steps", "base", "note", "promise", "tuned")
"""Keys of a table that are not fields of a config."""
CLOSE = 0.99
"""From this share of its steps on, a run counts as whole: updates come in batches."""

_FOLDER = Path(__file__).parent


@dataclass(frozen=True)
class Promise:
    """What runs with a preset reached, with seeds on which it was not tuned."""

    steps: int
    """Environment steps of the runs."""
    seeds: tuple[int, ...]
    """Their seeds."""
    returns: tuple[float, ...]
    """The mean return of each at the end."""
    mean: float
    """The mean of these."""
    interval: tuple[float, float] | None
    """Its 95% interval; None for a single seed."""
    tuned_on: str
    """Seeds whose results were known when the preset was chosen, such as "1-4"; "" where there were none, or none are
    known by number."""
    commits: tuple[str, ...]
    """The code that ran."""
    hardware: tuple[str, ...]
    """What it ran on."""
    backend: str = "gymnasium"
    """What stepped the environments, where it was not the preset's backend."""

    def __str__(self) -> str:
        count = f"{len(self.seeds)} seed{'s' * (len(self.seeds) != 1)}"
        between = "" if self.interval is None else f" [{self.interval[0]:.0f}, {self.interval[1]:.0f}]"
        return f"{count}: {self.mean:.0f}{between}{'' if self.backend == 'gymnasium' else f' ({self.backend})'}"


@dataclass(frozen=True)
class Tuning:
    """The runs by which a preset without reported results was chosen."""

    seeds: str
    """Their seeds, such as "1-4"."""
    tasks: tuple[str, ...] = ()
    """Their environments, for a general preset."""


@dataclass(frozen=True)
class Preset:
    """Settings, and what is known of them."""

    name: str
    """The environment id, or "default.continuous" and "default.discrete"."""
    fields: dict[str, Any]
    """Fields of the algorithm's config. TOML arrays are tuples, as in a config."""
    total_steps: int | None = None
    """The length of the run that it is for."""
    base: str | None = None
    """The preset whose settings it has, all of them."""
    note: str | None = None
    """A sentence about it."""
    promise: Promise | None = None
    """What its runs reached."""
    tuned: Tuning | None = None
    """How it was chosen, where no runs are reported."""

    @property
    def status(self) -> str:
        """What is known of it, in a few words."""
        if self.promise is not None:
            short = self.total_steps is not None and self.promise.steps < CLOSE * self.total_steps
            return f"{self.promise}{f' at {self.promise.steps:,} steps' if short else ''}"
        if self.tuned is not None:
            count = len(self.tuned.tasks)
            return f"tuned on {count} tasks, not reported" if count > 1 else "tuned, not reported"
        return "not tried" if self.base is None else f"not tried: settings of {self.base}"

    def described(self) -> str:
        """Return what is known of it, to follow "the preset …" in a sentence."""
        if self.promise is not None:
            return f" ({self.promise} after {self.promise.steps:,} steps)"
        if self.tuned is not None:
            where = f" on {_listed(self.tuned.tasks)}" if self.tuned.tasks else ""
            return f", which was tuned{where} and has no reported results"
        return ", which was never tried" + ("" if self.base is None else f" (it has the settings of {self.base})")


def algorithms_with_presets() -> list[str]:
    """Return the names of the algorithms that have presets."""
    return sorted(path.stem for path in _FOLDER.glob("*.toml"))


def load_presets(algo: str) -> dict[str, Preset]:
    """Load the presets of an algorithm, by environment id.

    Raises:
        ValueError: The algorithm has no presets.
    """
    tables = _tables(algo)
    return {name: _preset(name, tables) for name in tables if name not in ("common", *_default_names())}


def load_defaults(algo: str) -> dict[ActionKind, Preset]:
    """Load the general presets of an algorithm, by the kind of actions that they are for.

    Raises:
        ValueError: The algorithm has no presets.
    """
    tables = _tables(algo)
    kinds: tuple[ActionKind, ...] = get_args(ActionKind)
    return {kind: _preset(f"default.{kind}", tables) for kind in kinds if f"default.{kind}" in tables}


def about(algo: str) -> str:
    """Return what a file of presets says of all of them."""
    known: str = tomllib.loads(_text(algo)).get("about", "")
    return known.strip()


def common_fields(algo: str) -> dict[str, Any]:
    """Return the fields that all presets of an algorithm share."""
    return _fields_of(_tables(algo).get("common", {}))


def find_preset(algo: str, name: str) -> Preset:
    """Load one preset.

    Args:
        algo: The algorithm, such as "ppo".
        name: The environment id of the preset, or "default.continuous" or "default.discrete".

    Raises:
        ValueError: The algorithm has no preset of that name.
    """
    presets = load_presets(algo) | {preset.name: preset for preset in load_defaults(algo).values()}
    if name not in presets:
        near = difflib.get_close_matches(name, presets, n=3, cutoff=0.5)
        hint = f"Did you mean {', '.join(near)}?" if near else f"It has {', '.join(presets)}."
        raise ValueError(
            f"preset: {algo} has no preset {name!r}. {hint} Use 'none' for the defaults, 'default' for the general "
            "preset, or a file whose name ends with .toml."
        )
    return presets[name]


def to_toml(preset: Preset) -> str:
    """Write a preset's settings as TOML, in the form that `read_preset_file` reads."""
    lines = [f"[{toml_value(preset.name)}]  # {preset.status}"]
    if preset.total_steps is not None:
        lines.append(f"total_steps = {toml_value(preset.total_steps)}")
    return "\n".join([*lines, *(f"{name} = {toml_value(value)}" for name, value in preset.fields.items())]) + "\n"


def toml_value(value: Any) -> str:
    """Write a value as TOML; None as "none", which a preset's file may have for it."""
    if value is None:
        return '"none"'
    if isinstance(value, dict):
        return f"{{{', '.join(f'{toml_value(key)} = {toml_value(part)}' for key, part in value.items())}}}"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        escaped = value.replace("\\", "\\\\").replace('"', '\\"')
        return f'"{escaped}"'
    if isinstance(value, int):
        return f"{value:_}" if value >= 10_000 else str(value)
    return f"[{', '.join(map(toml_value, value))}]" if isinstance(value, (tuple, list)) else repr(value)


def _text(algo: str) -> str:
    known = algorithms_with_presets()
    if algo not in known:
        raise ValueError(f"algo: must be one of {', '.join(known)}, got {algo!r}, which has no presets.")
    return (_FOLDER / f"{algo}.toml").read_text(encoding="utf-8")


def _tables(algo: str) -> dict[str, Mapping[str, Any]]:
    tables: dict[str, Any] = tomllib.loads(_text(algo))
    general: dict[str, Any] = tables.pop("default", {})
    tables.pop("about", None)
    return {**tables, **{f"default.{kind}": table for kind, table in general.items()}}


def _default_names() -> tuple[str, ...]:
    return tuple(f"default.{kind}" for kind in get_args(ActionKind))


def _preset(name: str, tables: Mapping[str, Mapping[str, Any]]) -> Preset:
    table = tables[name]
    base = _preset(table["base"], tables) if "base" in table else None
    inherited = {**tables.get("common", {})} if base is None else base.fields
    fields = {**_fields_of(inherited), **_fields_of(table)}
    promise, tuned = table.get("promise"), table.get("tuned")
    return Preset(
        name,
        fields,
        table.get("total_steps", None if base is None else base.total_steps),
        base.name if base is not None and base.fields == fields else None,
        table.get("note"),
        None if promise is None else _promise(promise),
        None if tuned is None else Tuning(tuned["seeds"], tuple(tuned.get("tasks", ()))),
    )


def _promise(table: Mapping[str, Any]) -> Promise:
    values = _fields_of(table)
    interval = values.pop("interval", None)
    return Promise(**values, interval=interval)


def _fields_of(table: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: tuple(value) if isinstance(value, list) else value for name, value in table.items() if name not in ABOUT
    }


def _listed(items: tuple[str, ...]) -> str:
    return items[0] if len(items) == 1 else f"{', '.join(items[:-1])} and {items[-1]}"
