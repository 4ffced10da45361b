"""Make the result tables of the README from the data in ``benchmarks/results``.

`python -m benchmarks.summary` prints them; `--write` also writes them into README.md, between their markers.
"""

from __future__ import annotations

import csv
import json
import re
import statistics
import string
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from minerva.report.statistics import summarize

HERE = Path(__file__).parent
README = HERE.parent / "README.md"
ALGORITHMS = {"ppo": "PPO", "mpo": "MPO", "vmpo": "V-MPO"}
SPEED_TITLES = {
    "ppo-1": "PPO, HalfCheetah-v5, 1 environment, rollouts of 2048, minibatches of 64, 10 epochs",
    "ppo-8": "… 8 environments",
    "pool-64": "… 64 environments, rollouts of 4096, minibatches of 1024",
    "cartpole-8": "PPO, CartPole-v1, 8 environments, rollouts of 1024, minibatches of 256, 4 epochs",
    "recurrent-cartpole-8": "… with an LSTM, minibatches of 512",
    "mpo-update-small": "One MPO update, batch 256, 20 samples, two (256, 256) networks",
    "mpo-update-large": "… policy (256, 256, 256), critic (512, 512, 256)",
}
TOLERANCE = 0.01
"""Relative distance from a step budget at which an evaluation still counts as made there: updates come in batches."""


class Result(NamedTuple):
    """The result of one seed."""

    seed: int
    steps: int
    mean_return: float
    steps_per_second: int  # without evaluation
    hardware: str


def results(folder: Path, budget: int | None) -> list[Result]:
    """Read a task's results, one per seed: at the end of the runs, or at a budget, for the runs that reached it."""
    file = folder / "runs.csv"
    if not file.exists():
        return []
    found = []
    for row in read(file):
        evaluation = row
        if budget is not None:
            curve = read(folder / f"seed{row['seed']}.csv")
            evaluation = min(curve, key=lambda point: abs(int(point["step"]) - budget))
            evaluation = {**evaluation, "steps": evaluation["step"]}
            if abs(int(evaluation["steps"]) - budget) > TOLERANCE * budget:
                continue
        hardware = re.sub(r"one( core)? a run", "one core per run", row["hardware"]).replace("(R)", "")
        mean_return, pace = float(evaluation["return_mean"]), int(row["sps"])
        found.append(Result(int(row["seed"]), int(evaluation["steps"]), mean_return, pace, hardware))
    return found


def read(file: Path) -> list[dict[str, str]]:
    """Read a CSV table."""
    with file.open() as handle:
        return list(csv.DictReader(handle))


def table(algo: str) -> str:
    """Make the Markdown table of one algorithm: one row per task and budget, in the order of published.toml."""
    lines = [
        "| task | steps | seeds | mean of seeds [95% interval] | each seed | published at that budget | target | "
        "steps/s |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    letters = _hardware_letters(algo)
    for env_id, published, found in _rows(algo):
        returns = [result.mean_return for result in found]
        summary = summarize(returns)
        interval = f" [{summary.low:.0f}, {summary.high:.0f}]" if len(found) > 1 else ""
        pace = round(statistics.median(result.steps_per_second for result in found))
        used = ", ".join(sorted({letters[result.hardware] for result in found}))
        cells = (
            env_id,
            f"{max(result.steps for result in found):,}",
            len(found),
            f"**{summary.mean:.0f}**{interval}",
            ", ".join(f"{value:.0f}" for value in returns),
            published["peers"],
            published["goal"],
            f"{pace} ({used})",
        )
        lines.append(f"| {' | '.join(map(str, cells))} |")
    return "\n".join(lines)


def general_table(budgets: tuple[int, ...] = (100_000, 300_000)) -> str:
    """Make the Markdown table of tasks without a preset: each seed, with the defaults and with the general preset."""
    folder = HERE / "results" / "general"
    columns = {
        f"{title}, {name}": folder / part / algo
        for algo, title in ALGORITHMS.items()
        for part, name in (("before", "defaults"), ("after", "general preset"))
        if (folder / part / algo).is_dir()
    }
    tasks = sorted({read(file)[0]["env"] for part in columns.values() for file in part.glob("*/runs.csv")})
    lines = [f"| {' | '.join(['task', 'steps', *columns])} |", "| --- " * (2 + len(columns)) + "|"]
    for task in tasks:
        for budget in budgets:
            found = [results(part / task.replace("/", "-"), budget) for part in columns.values()]
            cells = [", ".join(f"{result.mean_return:.0f}" for result in seeds) for seeds in found]
            lines.append(f"| {' | '.join([task, f'{budget:,}', *cells])} |")
    return "\n".join(lines)


def hardware_note(algo: str) -> str:
    """Say what the steps per second of an algorithm's table are, and on which hardware each was measured."""
    machines = "; ".join(f"({letter}) {hardware}" for hardware, letter in _hardware_letters(algo).items())
    return f"Steps per second (steps/s): median of the seeds, evaluation left out, beside other runs. {machines}."


def _rows(algo: str) -> Iterator[tuple[str, dict[str, Any], list[Result]]]:
    """Yield each task with what is published of it at a budget, and the results at that budget, where there are any."""
    for env_id, budgets in tomllib.loads((HERE / "published.toml").read_text())[algo].items():
        for published in budgets:
            found = results(HERE / "results" / algo / env_id.replace("/", "-"), published.get("steps"))
            if found:
                yield env_id, published, found


def _hardware_letters(algo: str) -> dict[str, str]:
    """Return a letter for each hardware, in order of appearance."""
    machines = dict.fromkeys(result.hardware for _, _, found in _rows(algo) for result in found)
    return dict(zip(machines, string.ascii_lowercase, strict=False))


def speed_table() -> str:
    """Make the Markdown table that compares Minerva's speed with its peers': one row per comparison."""
    comparisons = json.loads((HERE / "results" / "speed" / "peers.json").read_text())
    lines = ["| steps per second; for an update, ms | Minerva | peers |", "| --- | --- | --- |"]
    for name, title in SPEED_TITLES.items():
        comparison = comparisons[name]
        medians = {row: found["median"] for row, found in comparison["contenders"].items()}
        updates = comparison["unit"] == "updates/s"
        ours = {row: medians.pop(row) for row in comparison["ratios"]}
        best = max(ours.values())
        peers: dict[str, float] = {}  # the faster of the two thread settings that some of them ran with
        for row, median in medians.items():
            short = row.removesuffix(", one thread").removesuffix(", one core")
            peers[short] = max(median, peers.get(short, 0))

        def show(value: float, updates: bool = updates) -> str:
            return f"{1e3 / value:.1f} ms" if updates else f"{value:,.0f}"

        mine = [f"{row.removeprefix('Minerva').lstrip(', ')} {show(value)}".lstrip() for row, value in ours.items()]
        theirs = [
            f"{row} {show(value)}" + ("" if updates else f" ({best / value:.1f} ×)")
            for row, value in sorted(peers.items(), key=lambda pair: -pair[1])
        ]
        lines.append(f"| {title} | {'; '.join(mine)} | {'; '.join(theirs)} |")
    return "\n".join(lines)


def readme_with(text: str) -> str:
    """Return the README's text with the tables between their markers."""
    tables = {name: f"{table(algo)}\n\n{hardware_note(algo)}" for algo, name in ALGORITHMS.items()}
    tables["Speed"] = speed_table()
    for name, made in tables.items():
        begin, end = f"<!-- {name}: made by benchmarks/summary.py -->", f"<!-- /{name} -->"
        before, rest = text.split(begin)
        _, after = rest.split(end)
        text = f"{before}{begin}\n{made}\n{end}{after}"
    return text


if __name__ == "__main__":
    made = readme_with(README.read_text())
    print("\n\n".join([*(table(algo) for algo in ALGORITHMS), speed_table()]))
    if "--write" in sys.argv:
        README.write_text(made)
