"""What a tuning has found: the preset with the best settings, and the table of the best trials."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from minerva.presets import toml_value
from minerva.sweeps.expansion import Algorithms
from minerva.tuning.space import text_of
from minerva.tuning.spec import TuneSpec

if TYPE_CHECKING:
    from rich.table import Table

    from minerva.tuning.study import Trial

LISTED = 10
"""Trials of the table."""


def best_of(trials: Sequence[Trial]) -> Trial | None:
    """Return the complete trial with the highest value; the first of several."""
    complete = [trial for trial in trials if trial.outcome == "complete" and trial.value is not None]
    return max(complete, key=lambda trial: trial.value or 0.0) if complete else None


def count_outcomes(trials: Sequence[Trial]) -> dict[str, int]:
    """Return how many trials have ended in each way."""
    return {outcome: sum(trial.outcome == outcome for trial in trials) for outcome in ("complete", "pruned", "failed")}


def write_best(path: Path, spec: TuneSpec, best: Trial, trials: Sequence[Trial], algorithms: Algorithms) -> None:
    """Write the settings of the best trial as a preset, which says on which seeds they were chosen."""
    (run, *_) = spec.plan(best.number, best.values, algorithms)
    complete = [trial.value for trial in trials if trial.outcome == "complete" and trial.value is not None]
    lines = [
        f"# {spec.algorithm} on {spec.env}: trial {best.number}, the best of {len(trials)} trials of `minerva tune`, "
        f"{len(complete)} of them complete.",
        f"# Its mean return with seeds {spec.tuned_on} was {best.value:.6g}; the median of the complete trials was "
        f"{statistics.median(complete):.6g}.",
        "# It was chosen for that, so what it is worth is what it reaches with other seeds.",
        "",
        f"[{toml_value(spec.env)}]",
        f"tuned_on = {toml_value(spec.tuned_on)}",
        f"total_steps = {toml_value(run.total_steps)}",
        *(f"{name} = {toml_value(value)}" for name, value in run.settings.items()),
    ]
    temporary = path.with_name(f"{path.name}.part")
    temporary.write_text("\n".join(lines) + "\n", encoding="utf-8")
    temporary.replace(path)


def best_rows(spec: TuneSpec, trials: Sequence[Trial], count: int = LISTED) -> list[list[str]]:
    """Return the best trials as rows of text, after a row of names; the first trial follows if it is not among them."""
    ranked = sorted((trial for trial in trials if trial.outcome == "complete"), key=lambda trial: -(trial.value or 0.0))
    shown = ranked[:count]
    if spec.first is not None:
        shown += [trial for trial in ranked[count:] if trial.number == 0]
    names = [one.name for one in spec.space.dimensions]
    rows = [["Trial", "Return", *names]]
    for trial in shown:
        number = f"{trial.number} (untuned)" if trial.number == 0 and spec.first is not None else str(trial.number)
        rows.append([number, f"{trial.value:,.4g}", *(_cell(trial.values.get(name)) for name in names)])
    return rows


def best_table(spec: TuneSpec, trials: Sequence[Trial]) -> Table:
    """Build the table of the best trials, for the terminal."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table
    from rich.text import Text

    head, *rows = best_rows(spec, trials)
    title = f"Best trials, with seeds {spec.tuned_on}"
    table = Table(title=Text(title, style="bold"), title_justify="left", box=SIMPLE_HEAD, pad_edge=False)
    for name in head:
        table.add_column(name, justify="right", overflow="fold")
    for row in rows:
        table.add_row(*map(Text, row))
    return table


def _cell(value: object) -> str:
    if value is None:
        return ""
    return f"{value:.4g}" if isinstance(value, float) else text_of(value)
