"""Tell which runs are seeds of one experiment."""

from __future__ import annotations

import json
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from minerva.report.runs import RunRecord
from minerva.trainers.config import FREE_FIELDS

SAME_RESULT = FREE_FIELDS | {
    "compile", "eval_episodes", "eval_interval", "log_interval", "pool_threads", "torch_threads",
}  # fmt: skip
"""Fields that do not change what a run learns, but for rounding: runs that differ in them are one experiment."""
_NAMES = {"vmpo": "V-MPO"}  # names that are not just upper case
_SCHEDULES = ("lin_", "cos_", "exp_")
_LABEL = 48
"""Characters of a value in a label."""


@dataclass(frozen=True)
class Group:
    """Runs that differ in their seeds alone, or that were given one label."""

    label: str
    runs: list[RunRecord]


def group_runs(
    runs: Sequence[RunRecord], labels: Sequence[str] | None = None, group_by: Sequence[str] | None = None
) -> dict[str, list[Group]]:
    """Group runs by environment, and there by algorithm and settings, in order of first appearance.

    Args:
        runs: The runs. Of a group's runs with the same seed, the longest counts; a warning names the others.
        labels: A label for each run, in place of algorithm and settings: runs with the same label are one group.
        group_by: Fields of the settings that tell groups apart (default: all that differ and change the result).

    Raises:
        ValueError: No run has a field of `group_by`.
    """
    settings = [_settings(run) for run in runs]
    known = {name for one in settings for name in one}
    for name in group_by or ():
        if name not in known:
            raise ValueError(f"group_by: {name!r} is not a setting of these runs. They are {', '.join(sorted(known))}.")
    panels: dict[str, dict[tuple[str, ...], list[RunRecord]]] = {}
    fields = _fields_of([run.algorithm for run in runs], settings, group_by)
    for k, run in enumerate(runs):
        values = [_text(settings[k].get(name)) for name in fields[run.algorithm]]
        key = (labels[k],) if labels is not None else (run.algorithm, *values)
        panels.setdefault(run.env_id, {}).setdefault(key, []).append(run)
    return {
        env_id: [
            Group(name, _one_per_seed(name, members))
            for (key, members), label in zip(groups.items(), _labels(list(groups), fields), strict=True)
            for name in [label if labels is None else key[0]]
        ]
        for env_id, groups in panels.items()
    }


def algorithm_name(algorithm: str) -> str:
    """Return an algorithm's name as it is written in prose."""
    return _NAMES.get(algorithm, algorithm.upper())


def _settings(run: RunRecord) -> dict[str, Any]:
    """Return a run's settings, with its length where that changes the result: schedules end with the run."""
    return {**run.config, **({"total_steps": run.total_steps} if is_scheduled(run.config) else {})}


def is_scheduled(config: Mapping[str, Any]) -> bool:
    """Return whether some setting changes over a run, so that the length of the run changes its result."""
    return bool(config.get("anneal_lr")) or any(
        isinstance(value, str) and value.startswith(_SCHEDULES) for value in config.values()
    )


def _fields_of(
    algorithms: Sequence[str], settings: Sequence[dict[str, Any]], group_by: Sequence[str] | None
) -> dict[str, list[str]]:
    """Return the fields that tell an algorithm's groups apart. A field that some run does not have tells nothing."""
    found: dict[str, list[str]] = {}
    for algorithm in dict.fromkeys(algorithms):
        configs = [one for name, one in zip(algorithms, settings, strict=True) if name == algorithm]
        shared = [name for name in configs[0] if all(name in config for config in configs)]
        wanted = [name for name in shared if name not in SAME_RESULT] if group_by is None else group_by
        found[algorithm] = [name for name in wanted if len({_text(config.get(name)) for config in configs}) > 1]
    return found


def _text(value: Any) -> str:
    return json.dumps(value, sort_keys=True, default=str)


def _labels(keys: Sequence[tuple[str, ...]], fields: dict[str, list[str]]) -> list[str]:
    """Name each group by its algorithm and the first fields that suffice to tell it from the others."""
    labels = []
    for algorithm, *values in keys:
        others = [key[1:] for key in keys if key[0] == algorithm]
        names = fields.get(algorithm, [])
        differing = [k for k in range(len(values)) if len({other[k] for other in others}) > 1]
        chosen: list[int] = []
        for k in differing:
            if len({tuple(other[i] for i in [*chosen, k]) for other in others}) > len(
                {tuple(other[i] for i in chosen) for other in others}
            ):
                chosen.append(k)
        parts = [f"{names[k]}={_short(values[k])}" for k in chosen]
        labels.append(", ".join([algorithm_name(algorithm), *parts, *(["…"] if len(chosen) < len(differing) else [])]))
    return labels


def _short(value: str) -> str:
    text = value.strip('"')
    return text if len(text) <= _LABEL else text[: _LABEL - 1] + "…"


def _one_per_seed(label: str, runs: Sequence[RunRecord]) -> list[RunRecord]:
    """Return the longest run of each seed of a group."""
    longest: dict[int, RunRecord] = {}
    for run in runs:
        rival = longest.get(run.seed)
        if rival is None:
            longest[run.seed] = run
            continue
        kept, dropped = (run, rival) if _length(run) > _length(rival) else (rival, run)
        longest[run.seed] = kept
        warnings.warn(
            f"seed {run.seed} of {run.env_id} is there twice in {label!r}: {kept.folder} counts, {dropped.folder} does "
            "not",
            UserWarning,
            stacklevel=4,
        )
    return list(longest.values())


def _length(run: RunRecord) -> int:
    return max((int(series.steps.max()) for series in run.metrics.values() if len(series.steps)), default=0)
