"""Tables of what was measured of rollout workers."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent.parent / "benchmarks/results"


def table(name: str, uri: str) -> str:
    """Make one of the tables: "growth", "overhead" or "faults".

    Raises:
        ValueError: There is no such table.
    """
    tables = {"growth": _growth, "overhead": _overhead, "faults": _faults}
    if name not in tables:
        raise ValueError(f"there is no table {name!r} of rollout workers, only {', '.join(tables)}")
    return tables[name]()


def _growth() -> str:
    """Make a table of steps per second by the number of workers, for an environment that sleeps."""
    measured = _read("rollout_workers.json")
    grown = measured["growth"]
    training, collecting = grown["training"], grown["collecting"]
    rows = ["| | steps/s, training | of W × one process | steps/s, collecting alone | of W × one process |"]
    rows += ["| --- | --- | --- | --- | --- |"]
    for name, speed in training["steps_per_second"].items():
        label = f"{name} worker{'s' * (name != '1')}" if name.isdigit() else f"one environment {name}"
        shares = (part["of_w_times_one_process"].get(name) for part in (training, collecting))
        share, alone = ("" if value is None else f"{value:.2f}" for value in shares)
        rows.append(f"| {label} | {speed:,.0f} | {share} | {collecting['steps_per_second'][name]:,.0f} | {alone} |")
    milliseconds = 1000 * grown["seconds_per_step"]
    about = (
        f"PPO with an environment that sleeps {milliseconds:g} ms per step, one per worker, rollouts of "
        f"{grown['rollout_steps']} steps. {_where(measured, grown['load'])}"
    )
    return "\n".join([*rows, "", about])


def _overhead() -> str:
    """Make a table of the time per environment step, by what steps the environments."""
    measured = _read("rollout_workers.json")
    tables = measured["overhead"]
    places = list(tables[0]["us_per_step"])
    titles = [re.sub("^(1 .*?)(es|s)$", r"\1", place) for place in places]  # one process, one worker
    rows = ["| µs per environment step | " + " | ".join(titles) + " |", "| --- " * (len(places) + 1) + "|"]
    for each in tables:
        values = " | ".join(f"{each['us_per_step'][place]:,.1f}" for place in places)
        rows.append(f"| {each['env']}, segments of {each['segment_steps']} steps | {values} |")
    loads = [load for each in tables for load in each["load"]]
    about = f"8 environments, without learning. {_where(measured, [min(loads), max(loads)])}"
    return "\n".join([*rows, "", about])


def _faults() -> str:
    """Make a table of the faults after which runs were compared with undisturbed ones."""
    measured = _read("rollout_faults.json")
    kinds = list(dict.fromkeys(case["fault"] for case in measured["cases"]))
    rows = ["| | " + " | ".join(f"{kind} killed" for kind in kinds) + " |", "| --- " * (len(kinds) + 1) + "|"]
    verdicts: dict[tuple[str, int], dict[str, str]] = {}
    for case in measured["cases"]:
        verdict = "identical" if case["identical"] else "differs"
        verdicts.setdefault((case["algo"], case["workers"]), {})[case["fault"]] = verdict
    names = {"ppo": "PPO", "vmpo": "V-MPO", "mpo": "MPO"}
    for algo, count in sorted(verdicts, key=lambda key: (list(names).index(key[0]), key[1])):
        found = [verdicts[algo, count].get(kind, "") for kind in kinds]
        rows.append(f"| {names[algo]}, {count} worker{'s' * (count > 1)} | {' | '.join(found)} |")
    return "\n".join(rows)


def _where(measured: dict[str, Any], load: list[float]) -> str:
    return (
        f"Medians of turns that all take in each round. {measured['hardware']}, also busy with other work "
        f"(load {load[0]:g} to {load[1]:g})."
    )


def _read(file: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((RESULTS / file).read_text(encoding="utf-8"))
    return found
