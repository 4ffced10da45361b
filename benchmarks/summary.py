"""Makes the table of learning results in the README from the data under ``benchmarks/results``.

`python -m benchmarks.summary` prints it; with `--write` it is put into README.md, between its markers.
"""

from __future__ import annotations

import csv
import sys
import tomllib
from pathlib import Path

from minerva.report.statistics import summarise

HERE = Path(__file__).parent
README = HERE.parent / "README.md"
BEGIN, END = "<!-- results: made by benchmarks/summary.py -->", "<!-- /results -->"


def table(algo: str = "ppo") -> str:
    """Make the Markdown table of one algorithm, a row a task, in the order of published.toml."""
    lines = [
        "| task | steps | seeds | mean of seeds [95% interval] | each seed | published at that budget | set out for |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for env_id, published in tomllib.loads((HERE / "published.toml").read_text())[algo].items():
        file = HERE / "results" / algo / env_id.replace("/", "-") / "runs.csv"
        if not file.exists():
            continue
        with file.open() as handle:
            rows = list(csv.DictReader(handle))
        returns = [float(row["return_mean"]) for row in rows]
        summary = summarise(returns)
        steps = max(int(row["steps"]) for row in rows)
        seeds = ", ".join(f"{value:.0f}" for value in returns)
        mean = f"**{summary.mean:.0f}** [{summary.low:.0f}, {summary.high:.0f}]"
        lines.append(
            f"| {env_id} | {steps:,} | {len(rows)} | {mean} | {seeds} | {published['peers']} | {published['goal']} |"
        )
    return "\n".join(lines)


def readme_with(text: str, new: str) -> str:
    """Put a table between the markers of the README's text."""
    before, rest = text.split(BEGIN)
    _, after = rest.split(END)
    return f"{before}{BEGIN}\n{new}\n{END}{after}"


if __name__ == "__main__":
    made = table()
    print(made)
    if "--write" in sys.argv:
        README.write_text(readme_with(README.read_text(), made))
