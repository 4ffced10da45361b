"""Makes the tables of learning results in the README from the data under ``benchmarks/results``.

`python -m benchmarks.summary` prints them; with `--write` they are put into README.md, between their markers.
"""

from __future__ import annotations

import csv
import statistics
import sys
import tomllib
from pathlib import Path
from typing import NamedTuple

from minerva.report.statistics import summarise

HERE = Path(__file__).parent
README = HERE.parent / "README.md"
ALGORITHMS = {"ppo": "PPO", "mpo": "MPO", "vmpo": "V-MPO"}
TOLERANCE = 0.01
"""How far from a budget, as a share of it, an evaluation may lie to count as made there: updates come in batches."""


class Result(NamedTuple):
    """What one seed came to."""

    steps: int
    mean_return: float
    steps_a_second: int


def results(folder: Path, budget: int | None) -> list[Result]:
    """Read a task's results, a seed each: at the runs' end, or at a budget that those of them reached."""
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
        found.append(Result(int(evaluation["steps"]), float(evaluation["return_mean"]), int(row["sps"])))
    return found


def read(file: Path) -> list[dict[str, str]]:
    """Read a table."""
    with file.open() as handle:
        return list(csv.DictReader(handle))


def table(algo: str) -> str:
    """Make the Markdown table of one algorithm, a row a task and budget, in the order of published.toml."""
    lines = [
        "| task | steps | seeds | mean of seeds [95% interval] | each seed | published at that budget | set out for | "
        "steps/s |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for env_id, budgets in tomllib.loads((HERE / "published.toml").read_text())[algo].items():
        for published in budgets:
            found = results(HERE / "results" / algo / env_id.replace("/", "-"), published.get("steps"))
            if not found:
                continue
            returns = [result.mean_return for result in found]
            summary = summarise(returns)
            interval = f" [{summary.low:.0f}, {summary.high:.0f}]" if len(found) > 1 else ""
            pace = round(statistics.median(result.steps_a_second for result in found))
            cells = (
                env_id,
                f"{max(result.steps for result in found):,}",
                len(found),
                f"**{summary.mean:.0f}**{interval}",
                ", ".join(f"{value:.0f}" for value in returns),
                published["peers"],
                published["goal"],
                pace,
            )
            lines.append(f"| {' | '.join(map(str, cells))} |")
    return "\n".join(lines)


def readme_with(text: str) -> str:
    """Put the tables between the markers of the README's text."""
    for algo, name in ALGORITHMS.items():
        begin, end = f"<!-- {name}: made by benchmarks/summary.py -->", f"<!-- /{name} -->"
        before, rest = text.split(begin)
        _, after = rest.split(end)
        text = f"{before}{begin}\n{table(algo)}\n{end}{after}"
    return text


if __name__ == "__main__":
    made = readme_with(README.read_text())
    print("\n\n".join(table(algo) for algo in ALGORITHMS))
    if "--write" in sys.argv:
        README.write_text(made)
