"""Draw learning curves as small SVG figures that take their colors from the page."""

from __future__ import annotations

import html
from pathlib import Path

import numpy as np

from benchmarks import summary
from minerva.report.curves import FloatArray, common_curve
from minerva.report.runs import Series

WIDTH, HEIGHT = 240, 150
LEFT, RIGHT, TOP, BOTTOM = 44, 6, 8, 20


def panels(folder: Path, goals: dict[str, list[float]]) -> str:
    """Draw one panel per task.

    Args:
        folder: An algorithm's results, one folder per task.
        goals: Target returns by task; tasks without results are left out.
    """
    drawn = []
    for env_id, wanted in goals.items():
        task = folder / env_id.replace("/", "-")
        if (task / "runs.csv").exists():
            seeds = [_series(task / f"seed{row['seed']}.csv") for row in summary.read(task / "runs.csv")]
            drawn.append(_panel(env_id, seeds, wanted))
    return f'<div class="curves">\n{"".join(drawn)}</div>'


def _series(file: Path) -> Series:
    rows = summary.read(file)
    return Series(
        np.array([int(row["step"]) for row in rows], dtype=np.int64),
        np.array([float(row["return_mean"]) for row in rows]),
    )


def _panel(env_id: str, seeds: list[Series], goals: list[float]) -> str:
    last = float(max(seed.steps[-1] for seed in seeds))
    values = np.concatenate([*(seed.values for seed in seeds), np.array(goals, dtype=np.float64)])
    low, high = float(values.min()), float(values.max())
    span = (high - low) or 1.0

    def x(step: float) -> float:
        return LEFT + step / last * (WIDTH - LEFT - RIGHT)

    def y(value: float) -> float:
        return TOP + (high - value) / span * (HEIGHT - TOP - BOTTOM)

    def line(steps: FloatArray, values: FloatArray, kind: str) -> str:
        points = " ".join(f"{x(step):.1f},{y(value):.1f}" for step, value in zip(steps, values, strict=True))
        return f'<polyline class="curves__{kind}" points="{points}"/>'

    steps, each = common_curve(seeds)
    parts = [
        f'<line class="curves__axis" x1="{LEFT}" y1="{HEIGHT - BOTTOM}" x2="{WIDTH - RIGHT}" y2="{HEIGHT - BOTTOM}"/>',
        f'<line class="curves__axis" x1="{LEFT}" y1="{TOP}" x2="{LEFT}" y2="{HEIGHT - BOTTOM}"/>',
        *(
            f'<line class="curves__goal" x1="{LEFT}" y1="{y(goal):.1f}" x2="{WIDTH - RIGHT}" y2="{y(goal):.1f}"/>'
            for goal in goals
        ),
        *(line(seed.steps.astype(np.float64), seed.values, "seed") for seed in seeds),
        line(steps, each.mean(axis=0), "mean"),
        f'<text x="{LEFT - 5}" y="{TOP + 7}" text-anchor="end">{_value(high)}</text>',
        f'<text x="{LEFT - 5}" y="{HEIGHT - BOTTOM}" text-anchor="end">{_value(low)}</text>',
        f'<text x="{LEFT}" y="{HEIGHT - 5}">0</text>',
        f'<text x="{WIDTH - RIGHT}" y="{HEIGHT - 5}" text-anchor="end">{_steps(last)} steps</text>',
    ]
    name = html.escape(env_id)
    label = f"Learning curves on {name}, {len(seeds)} seed{'s' * (len(seeds) != 1)}"
    return (
        f'<figure><figcaption>{name}</figcaption><svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{label}">'
        f"{''.join(parts)}</svg></figure>\n"
    )


def _value(number: float) -> str:
    return f"{round(number):,}"


def _steps(number: float) -> str:
    return f"{number / 1e6:.2g}M" if number >= 999_000 else f"{number / 1e3:.0f}k"
