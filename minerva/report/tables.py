"""Tables for the terminal."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from minerva.report.statistics import Summary, mean_interval

if TYPE_CHECKING:
    from rich.table import Table


def evaluation_table(summary: Summary, title: str) -> Table:
    """Build a table of the statistics of an evaluation, one per row, for the terminal."""
    table = _table(title)
    table.add_column("Return", no_wrap=True)
    table.add_column(f"{summary.n:,} episode{'s' if summary.n != 1 else ''}", justify="right", no_wrap=True)
    table.add_row("mean", _number(summary.mean), style="bold")
    known = math.isfinite(summary.low)  # the interval of a single episode is not defined
    interval = f"{_number(summary.low)} to {_number(summary.high)}" if known else "unknown"
    table.add_row("95% interval of the mean", interval)
    table.add_row("std", _number(summary.std))
    table.add_row("median", _number(summary.median))
    table.add_row("IQM", _number(summary.iqm))
    table.add_row("minimum", _number(summary.minimum))
    table.add_row("maximum", _number(summary.maximum))
    return table


def episodes_table(returns: Sequence[float], lengths: Sequence[int]) -> Table:
    """Build a table of the return and the number of steps of each episode."""
    table = _table("Episodes")
    for name in ("Episode", "Return", "Length"):
        table.add_column(name, justify="right")
    for k, (value, length) in enumerate(zip(returns, lengths, strict=True), start=1):
        table.add_row(str(k), _number(value), f"{length:,}")
    return table


def results_table(returns: Mapping[str, Sequence[float]], title: str) -> Table:
    """Build a table of experiments: number of seeds, mean return and its 95% interval.

    Args:
        returns: The return of each seed, at least one, by experiment.
        title: The table's title.
    """
    import numpy as np
    from rich.text import Text

    table = _table(title)
    table.add_column("Runs", overflow="fold")
    for name in ("Seeds", "Mean", "95% interval"):
        table.add_column(name, justify="right", no_wrap=True)
    for name, values in returns.items():
        column = np.array(values)[:, None]
        (low,), (high,) = mean_interval(column)
        interval = f"{_number(low)} to {_number(high)}" if math.isfinite(low) else "unknown"  # of a single seed
        table.add_row(Text(name), str(len(values)), _number(column.mean()), interval)
    return table


def _table(title: str) -> Table:
    # Imported here, so that `minerva --help` stays fast.
    from rich.box import SIMPLE_HEAD
    from rich.markup import escape
    from rich.table import Table

    return Table(title=escape(title), title_justify="left", title_style="bold", box=SIMPLE_HEAD, pad_edge=False)


def _number(value: float) -> str:
    return f"{value:,.2f}"
