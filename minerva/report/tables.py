"""Tables for the terminal."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from minerva.report.statistics import Summary

if TYPE_CHECKING:
    from rich.table import Table


def evaluation_table(summary: Summary, title: str) -> Table:
    """Build a table of the statistics of an evaluation, one per row.

    Args:
        summary: The statistics.
        title: Title of the table.
    """
    table = _table(title)
    table.add_column("Return", no_wrap=True)
    table.add_column(f"{summary.n:,} episode{'s' if summary.n != 1 else ''}", justify="right", no_wrap=True)
    table.add_row("mean", _number(summary.mean), style="bold")
    table.add_row(f"{_percent(summary.confidence)} interval of the mean", _interval(summary.low, summary.high))
    table.add_row("std", _number(summary.std))
    table.add_row("median", _number(summary.median))
    table.add_row("IQM", _number(summary.iqm))
    table.add_row("minimum", _number(summary.minimum))
    table.add_row("maximum", _number(summary.maximum))
    return table


def episodes_table(returns: Sequence[float], lengths: Sequence[int] | None = None, title: str = "Episodes") -> Table:
    """Build a table of the return of each episode, and its length where known.

    Args:
        returns: Return of each episode.
        lengths: Steps of each episode.
        title: Title of the table.

    Raises:
        ValueError: The numbers of lengths and returns differ.
    """
    if lengths is not None and len(lengths) != len(returns):
        raise ValueError(f"lengths: must be one per return, got {len(lengths)} for {len(returns)} returns.")
    table = _table(title)
    table.add_column("Episode", justify="right")
    table.add_column("Return", justify="right")
    if lengths is not None:
        table.add_column("Length", justify="right")
    for k, value in enumerate(returns):
        table.add_row(str(k + 1), _number(value), *([f"{lengths[k]:,}"] if lengths is not None else []))
    return table


def _table(title: str) -> Table:
    # Imported here, so that `minerva --help` stays fast.
    from rich.box import SIMPLE_HEAD
    from rich.markup import escape
    from rich.table import Table

    return Table(title=escape(title), title_justify="left", title_style="bold", box=SIMPLE_HEAD, pad_edge=False)


def _number(value: float) -> str:
    return f"{value:,.2f}"


def _interval(low: float, high: float) -> str:
    # The interval of a single episode is not defined.
    return f"{_number(low)} to {_number(high)}" if math.isfinite(low) and math.isfinite(high) else "unknown"


def _percent(confidence: float) -> str:
    return f"{100 * confidence:g}%"
