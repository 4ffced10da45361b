"""Read a run from its folder."""

from __future__ import annotations

import csv
import json
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray


class Series(NamedTuple):
    """The values of one metric in the order in which they were logged."""

    steps: NDArray[np.int64]
    """Environment steps `[n]`; several values may have the same step."""
    values: NDArray[np.float64]
    """Values `[n]`."""


@dataclass(frozen=True)
class RunRecord:
    """The settings and metrics that a run wrote to disk."""

    folder: Path
    """The run's folder."""
    algorithm: str
    """Name of the algorithm, such as "ppo"."""
    env_id: str
    """Id of the environment it trained on."""
    seed: int
    """The run's seed."""
    total_steps: int
    """Environment steps at which the run ends."""
    config: dict[str, Any]
    """Every field of its configuration."""
    metrics: dict[str, Series]
    """Its metrics by name."""


def read_run(folder: Path) -> RunRecord:
    """Read a run's ``config.json`` and ``metrics.csv``; the run may be in progress or may have been killed.

    Args:
        folder: The run's folder.

    Raises:
        ValueError: The folder is not a run's folder, or its files cannot be read.
    """
    folder = Path(folder)
    description = _read_config(folder)
    try:
        return RunRecord(
            folder=folder,
            algorithm=str(description["algorithm"]),
            env_id=str(description["env_id"]),
            seed=int(description["seed"]),
            total_steps=int(description["total_steps"]),
            config=dict(description["config"]),
            metrics=_read_metrics(folder / "metrics.csv"),
        )
    except KeyError as error:
        raise ValueError(
            f"run: {folder} is not a run's folder: its config.json has no {error.args[0]!r}; {_REMEDY}"
        ) from error
    except (TypeError, ValueError) as error:
        raise ValueError(f"run: {folder} cannot be read: {error}; {_REMEDY}") from error


def find_runs(folder: Path) -> list[Path]:
    """Return the folders of runs in a folder, itself included, sorted; the folder itself if there are none."""
    folder = Path(folder)
    if (folder / "config.json").exists():
        return [folder]
    return sorted(file.parent for file in folder.rglob("config.json") if (file.parent / "metrics.csv").exists()) or [
        folder
    ]


_REMEDY = "give a folder that `minerva train` wrote, such as runs/<algo>/<env>/<time>-seed<k>."


def _read_config(folder: Path) -> dict[str, Any]:
    try:
        description = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError) as error:
        what = "there is no config.json in it" if folder.is_dir() else "there is no such folder"
        raise ValueError(f"run: {folder} is not a run's folder: {what}; {_REMEDY}") from error
    except OSError as error:
        raise ValueError(f"run: {folder / 'config.json'} cannot be read ({error.strerror}); {_REMEDY}") from error
    except ValueError as error:  # not JSON, or not text
        raise ValueError(f"run: {folder / 'config.json'} is not valid JSON ({error}); {_REMEDY}") from error
    if not isinstance(description, dict):
        raise ValueError(f"run: {folder / 'config.json'} does not describe a run; {_REMEDY}")
    return description


def _read_metrics(path: Path) -> dict[str, Series]:
    """Read rows ``step,name,value``; skip an incomplete last row."""
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        return {}  # the run was killed before its first row
    except OSError as error:
        raise ValueError(f"{path} cannot be read ({error.strerror})") from error
    # A row without a line end may be cut inside the number, such as 12 for 123.4.
    whole = text[: text.rfind("\n") + 1].splitlines()
    if whole and whole[0] != "step,name,value":
        raise ValueError(f"{path} must start with 'step,name,value', got {whole[0][:60]!r}")
    steps: dict[str, list[int]] = {}
    values: dict[str, list[float]] = {}
    unreadable = 0
    for row in csv.reader(whole[1:]):
        try:
            step_text, name, value_text = row
            step, value = int(step_text), float(value_text)
        except ValueError:
            unreadable += 1
            continue
        steps.setdefault(name, []).append(step)
        values.setdefault(name, []).append(value)
    if unreadable:
        warnings.warn(f"{path}: {unreadable} rows could not be read and were skipped.", RuntimeWarning, stacklevel=4)
    return {
        name: Series(np.array(steps[name], dtype=np.int64), np.array(values[name], dtype=np.float64)) for name in steps
    }
