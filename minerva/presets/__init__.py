"""Presets: settings that are known to work, by environment id; one TOML file per algorithm.

A preset holds fields of the algorithm's config and `total_steps`, the length of the run it is meant for. Constructors
never apply presets; `minerva.train` and the command line do. The table ``common`` holds the fields that all presets of
a file share.
"""

from __future__ import annotations

import difflib
import tomllib
from pathlib import Path
from typing import Any

_FOLDER = Path(__file__).parent


def algorithms_with_presets() -> list[str]:
    """Return the names of the algorithms that have presets."""
    return sorted(path.stem for path in _FOLDER.glob("*.toml"))


def load_presets(algo: str) -> dict[str, dict[str, Any]]:
    """Load the presets of an algorithm.

    Returns:
        Config fields and `total_steps` by environment id. TOML arrays become tuples, as in a config.

    Raises:
        ValueError: The algorithm has no presets.
    """
    known = algorithms_with_presets()
    if algo not in known:
        raise ValueError(f"algo: must be one of {', '.join(known)}, got {algo!r}, which has no presets.")
    tables: dict[str, dict[str, Any]] = tomllib.loads((_FOLDER / f"{algo}.toml").read_text(encoding="utf-8"))
    common = tables.pop("common", {})
    whole = {name: {**common, **table} for name, table in tables.items()}
    return {
        name: {field: tuple(value) if isinstance(value, list) else value for field, value in table.items()}
        for name, table in whole.items()
    }


def find_preset(algo: str, name: str) -> dict[str, Any]:
    """Load one preset.

    Args:
        algo: The algorithm, such as "ppo".
        name: The environment id of the preset.

    Raises:
        ValueError: The algorithm has no preset of that name.
    """
    presets = load_presets(algo)
    if name not in presets:
        near = difflib.get_close_matches(name, presets, n=3, cutoff=0.5)
        hint = f"Did you mean {', '.join(near)}?" if near else f"It has {', '.join(presets)}."
        raise ValueError(f"preset: {algo} has no preset {name!r}. {hint} Use 'none' for the defaults.")
    return presets[name]
