"""Presets in the user's own files."""

from __future__ import annotations

import re
import tomllib
import typing
from pathlib import Path
from typing import TYPE_CHECKING, Any

from minerva.presets import Preset, Tuning
from minerva.utils.fields import python_value
from minerva.utils.ranges import LARGEST_INT, Range, shown, whole_number

if TYPE_CHECKING:
    from minerva.trainers.config import RunConfig

SUFFIX = ".toml"
SEEDS = re.compile(r"\d+(-\d+)?(,\d+(-\d+)?)*", re.ASCII)
LARGEST_FILE = 2**20
"""Bytes."""


def read_preset_file(path: Path, config: type[RunConfig]) -> Preset:
    """Read a preset from a TOML file.

    The file holds fields of the algorithm's config, where "none" stands for None, and, if it likes, `total_steps` and
    `tuned_on`, the seeds with which it was chosen: either at its top level, or in one table, which may have the
    environment's id as its name:

        total_steps = 200_000             ["Hopper-v5"]
        policy_lr = 1e-3                  total_steps = 200_000
        policy_layer_sizes = [64, 64]     policy_lr = 1e-3

    Args:
        path: The file.
        config: The algorithm's config.

    Raises:
        ValueError: There is no such file, or it holds something else; the message says what.
    """
    try:
        return _read(path, config)
    except (ValueError, RecursionError, OSError) as error:
        reason = (error.strerror or "it cannot be read") if isinstance(error, OSError) else str(error)
        raise ValueError(f"preset: {path}: {reason.rstrip('.')}.") from error


def _read(path: Path, config: type[RunConfig]) -> Preset:
    if not path.is_file():
        raise ValueError("is a folder" if path.is_dir() else "there is no such file")
    if path.stat().st_size > LARGEST_FILE:
        raise ValueError(f"must be at most {LARGEST_FILE:,} bytes, got {path.stat().st_size:,}")
    try:
        content: dict[str, Any] = tomllib.loads(path.read_text(encoding="utf-8"))
    except UnicodeDecodeError as error:
        raise ValueError("must be text in UTF-8") from error
    except tomllib.TOMLDecodeError as error:
        raise ValueError(f"is not TOML ({error}); an id with a slash needs quotes") from error
    fields = _one_table(content)
    total_steps = fields.pop("total_steps", None)
    if total_steps is not None:
        total_steps = whole_number("total_steps", total_steps, Range(1, LARGEST_INT))
    tuned_on = fields.pop("tuned_on", None)
    if tuned_on is not None and (not isinstance(tuned_on, str) or not SEEDS.fullmatch(tuned_on)):
        raise ValueError(f'tuned_on: must be seeds such as "1-5" or "1,3,7-9", got {shown(tuned_on)}')
    if not fields:
        raise ValueError("must hold at least one setting, got none")
    hints = typing.get_type_hints(config)
    fields = {name: python_value(value, hints.get(name)) for name, value in fields.items()}
    config.from_fields(None, fields)  # refuses what is not a setting, and values out of range
    return Preset(str(path), fields, total_steps, tuned=None if tuned_on is None else Tuning(tuned_on))


def _one_table(content: dict[str, Any]) -> dict[str, Any]:
    tables = {name: value for name, value in content.items() if isinstance(value, dict) and name != "env_kwargs"}
    if not tables:
        return content
    if len(content) > 1:
        others = "several" if len(tables) == len(content) else "a table and fields beside it"
        raise ValueError(f"must hold fields, or one table of them; got {others} ({', '.join(content)})")
    (table,) = tables.values()
    return dict(table)
