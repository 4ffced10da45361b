"""Write into the files of presets what their runs reached, from the data in ``benchmarks/results``.

`python -m benchmarks.promises` lists what would change; `--write` writes ``minerva/presets/*.toml``.

A preset gets the promise of the runs in its task's ``runs.csv`` whose settings (``settings.json``) are those that the
preset has today. Without such runs it counts as tuned if a row of ``tuning*.csv`` has its settings, and otherwise as
not tried. So a preset that changes loses its promise.
"""

from __future__ import annotations

import json
import re
import sys
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.summary import HERE, Result, read, results
from minerva import api, presets
from minerva.report.groups import SAME_RESULT, is_scheduled
from minerva.report.statistics import summarize
from minerva.sweeps.seeds import seeds_as_text

RESULTS = HERE / "results"
PRESETS = Path(presets.__file__).parent
SETTINGS = "settings.json"
CANDIDATES = "tuning*.csv"
GENERAL = "tuning-general"
"""How the files with candidates for general presets begin, which say nothing of their tasks' own presets."""
IGNORED = SAME_RESULT | {"backend"}
"""Fields in which a run may differ from the preset. A promise names its backend."""

_HEADER = re.compile(r"\[(?P<name>.+?)(?:\.(?P<made>promise|tuned))?\]\s*$")


def folder_of(algo: str, env_id: str) -> Path:
    """Return where the results of a task are."""
    return RESULTS / algo / env_id.replace("/", "-")


def keep_settings(folder: Path, seed: int, settings: Mapping[str, Any]) -> None:
    """Store the settings of a run beside those of the task's other runs: seeds with equal ones share an entry."""
    file = folder / SETTINGS
    groups = json.loads(file.read_text()) if file.exists() else []
    kept = {name: value for name, value in settings.items() if name not in SAME_RESULT}
    for group in groups:
        group["seeds"] = [other for other in group["seeds"] if other != seed]
    same = next((group for group in groups if group["settings"] == kept), None)
    if same is None:
        groups.append({"seeds": [seed], "settings": kept})
    else:
        same["seeds"] = sorted([*same["seeds"], seed])
    lines = ",\n".join(json.dumps(group) for group in groups if group["seeds"])
    file.write_text(f"[\n{lines}\n]\n")


def settings_of(folder: Path) -> dict[int, dict[str, Any]]:
    """Read the settings of a task's runs, by seed."""
    file = folder / SETTINGS
    groups = json.loads(file.read_text()) if file.exists() else []
    return {seed: group["settings"] for group in groups for seed in group["seeds"]}


def agree(algo: str, preset: presets.Preset, settings: Mapping[str, Any]) -> bool:
    """Return whether a run had the settings that a preset has now; what the run did not know must be a default."""
    config = api.config_class(algo)
    now, default = config.from_fields(None, preset.fields).to_plain(), config().to_plain()
    if "total_steps" in settings:
        if settings["total_steps"] != preset.total_steps and is_scheduled(now):
            return False
        settings = {name: value for name, value in settings.items() if name != "total_steps"}
    unknown = now.keys() - settings.keys() - IGNORED
    return all(now[name] == default[name] for name in unknown) and all(
        name in now and now[name] == value for name, value in settings.items() if name not in IGNORED
    )


def promise(algo: str, preset: presets.Preset) -> dict[str, Any] | None:
    """Return what the reported runs of a preset reached; None if there are none."""
    folder = folder_of(algo, preset.name)
    settings = settings_of(folder)
    mine = {seed for seed, found in settings.items() if agree(algo, preset, found)}
    found: list[Result] = []
    for budget in (preset.total_steps, None):  # where no run came that far, its end
        found = found or [result for result in results(folder, budget) if result.seed in mine]
    if not found:
        return None
    seeds = [result.seed for result in found]
    rows = [row for row in read(folder / "runs.csv") if int(row["seed"]) in seeds]
    backends = {settings[seed].get("backend", "gymnasium") for seed in seeds}
    summary = summarize([result.mean_return for result in found])
    return {
        "steps": max(result.steps for result in found),
        "seeds": seeds,
        "returns": [round(result.mean_return, 2) for result in found],
        "mean": round(summary.mean, 4),
        **({"interval": [round(summary.low, 4), round(summary.high, 4)]} if len(found) > 1 else {}),
        "tuned_on": seeds_as_text(tuning_seeds(algo, preset.name)),
        "commits": list(dict.fromkeys(row["commit"] for row in rows)),
        "hardware": list(dict.fromkeys(row["hardware"] for row in rows)),
        **({} if backends == {"gymnasium"} else {"backend": " and ".join(sorted(backends))}),
    }


def tuned(algo: str, preset: presets.Preset) -> dict[str, Any] | None:
    """Return how a preset was chosen: by candidates that had its settings, or as ``tuned_on.toml`` says."""
    if preset.name.startswith("default."):
        said: dict[str, Any] | None = _said(algo).get(preset.name)
        return said
    rows = [row for file, row in _candidates(algo, preset.name) if "fields" in row]
    total = {} if preset.total_steps is None else {"total_steps": preset.total_steps}
    if not any(agree(algo, preset, {**_default(algo), **total, **json.loads(row["fields"])}) for row in rows):
        return None
    return {"seeds": seeds_as_text(tuning_seeds(algo, preset.name))}


def tuning_seeds(algo: str, env_id: str) -> set[int]:
    """Return the seeds whose results were known when a preset was chosen."""
    seeds = {int(row["seed"]) for _, row in _candidates(algo, env_id)}
    for file in folder_of(algo, env_id).glob("*.csv"):
        if file.stem not in ("runs", "training") and not re.fullmatch(r"(former-)?seed\d+", file.stem):
            seeds |= {int(row["seed"]) for row in read(file)}
    return seeds | set(seeds_of_text(_said(algo).get(env_id, "")))


def _candidates(algo: str, env_id: str) -> list[tuple[Path, dict[str, str]]]:
    files = [file for file in sorted((RESULTS / algo).glob(CANDIDATES)) if not file.stem.startswith(GENERAL)]
    return [(file, row) for file in files for row in read(file) if row["env"] == env_id]


def _said(algo: str) -> dict[str, Any]:
    found: dict[str, Any] = tomllib.loads((RESULTS / "tuned_on.toml").read_text())[algo]
    return found


def _default(algo: str) -> dict[str, Any]:
    return api.config_class(algo)().to_plain()


def seeds_of_text(text: str) -> list[int]:
    """Read seeds that are written as "1-4,11"."""
    ends = [[int(end) for end in part.split("-")] for part in text.split(",") if part]
    return [seed for part in ends for seed in range(part[0], part[-1] + 1)]


def file_with(algo: str, text: str) -> str:
    """Return the text of a file of presets with what is known of each of them in place of what it says of that."""
    known = {
        preset.name: preset for preset in (*presets.load_presets(algo).values(), *presets.load_defaults(algo).values())
    }
    lines: list[str] = []
    name, skipping = "", False
    for line in [*text.splitlines(), "[end]"]:
        header = _HEADER.match(line)
        if header is not None and not header["made"]:
            at = len(lines)
            while at and (not lines[at - 1].strip() or lines[at - 1].startswith("#")):
                at -= 1  # comments above a table belong to it
            if name in known:
                lines[at:at] = _made(algo, known[name])
            name = header["name"].strip('"')
        skipping = bool(header["made"]) if header is not None else skipping and "=" in line
        if not skipping:
            lines.append(line)
        elif lines and not lines[-1].strip():
            lines.pop()  # the empty line above it
    return "\n".join(lines[:-1]).rstrip() + "\n"


def _made(algo: str, preset: presets.Preset) -> list[str]:
    for kind, find in (("promise", promise), ("tuned", tuned)):
        found = find(algo, preset)
        if found is not None:
            own = preset.name if preset.name.startswith("default.") else presets.toml_value(preset.name)
            entries = [f"{key} = {presets.toml_value(value)}" for key, value in found.items()]
            return ["", f"[{own}.{kind}]", *entries]
    return []


def main() -> None:
    for algo in presets.algorithms_with_presets():
        file = PRESETS / f"{algo}.toml"
        before = file.read_text(encoding="utf-8")
        after = file_with(algo, before)
        if "--write" in sys.argv:
            file.write_text(after, encoding="utf-8")
        print(f"{file.name}: {'as the results say' if after == before else 'changed'}")


if __name__ == "__main__":
    main()
