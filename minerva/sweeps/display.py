"""Show how far a sweep has come: a live table in a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

from minerva.sweeps.status import RunStatus, SweepStatus, duration, facts_of, summary_of

if TYPE_CHECKING:
    from rich.console import Console
    from rich.live import Live
    from rich.table import Table

_DRAW_SECONDS = 0.5
_LINE_SECONDS = 30.0
_ENDED = ("done", "failed", "pruned")
_ORDER = {"failed": 0, "running": 1, "stopped": 2, "waiting": 3, "pruned": 4, "done": 5}


class Display:
    """Shows a sweep while it runs.

    Args:
        quiet: Show nothing.
    """

    def __init__(self, quiet: bool = False) -> None:
        self._quiet = quiet
        self._console: Console | None = None
        self._live: Live | None = None
        self._next = 0.0
        self._ended = 0  # runs

    def open(self, status: SweepStatus) -> None:
        """Begin; a terminal gets a table that updates in place."""
        if self._quiet:
            return
        from rich.console import Console
        from rich.live import Live

        self._ended = sum(run.state in _ENDED for run in status.runs)
        self._console = Console(file=sys.stdout)
        if self._console.is_terminal and not self._console.is_dumb_terminal:
            self._live = Live(
                console=self._console,
                get_renderable=lambda: table_of(status, self._rows()),
                auto_refresh=False,
                redirect_stdout=True,  # what others print, such as Ray, appears above the table
                redirect_stderr=True,
            )
            self._live.start(refresh=True)
        else:
            self.say(summary_of(status))
        self._next = time.monotonic() + (_DRAW_SECONDS if self._live is not None else _LINE_SECONDS)

    def show(self, status: SweepStatus) -> None:
        """Draw again, if it is time."""
        now = time.monotonic()
        if self._quiet or now < self._next:
            return
        if self._live is not None:
            self._next = now + _DRAW_SECONDS
            self._live.refresh()
        else:
            self._next = now + _LINE_SECONDS
            self.say(summary_of(status))

    def ended(self, run: RunStatus, status: SweepStatus) -> None:
        """Say that a run has ended, where there is no table."""
        self._ended += run.state in _ENDED
        if self._live is None:
            self.say(f"{run.state:<8}{run.folder}  {facts_of(run)}  ({self._ended:,} of {len(status.runs):,})")

    def say(self, text: str) -> None:
        """Print a line, above the table."""
        if self._console is not None:
            self._console.print(text, markup=False, highlight=False, soft_wrap=True)

    def close(self) -> None:
        """Draw for the last time."""
        if self._live is not None:
            self._live.refresh()
            self._live.stop()
            self._live = None

    def _rows(self) -> int:
        return max(3, (self._console.height if self._console is not None else 24) - 5)


def table_of(status: SweepStatus, rows: int) -> Table:
    """Build the table: failed and running runs first, as many as fit."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table
    from rich.text import Text

    table = Table(
        title=Text(summary_of(status), style="bold"),
        title_justify="left", box=SIMPLE_HEAD, pad_edge=False, expand=False,
    )  # fmt: skip
    table.add_column("", no_wrap=True)
    table.add_column("Run", no_wrap=True, overflow="ellipsis", ratio=None)
    for name in ("Steps", "Steps/s", "Time", "Return"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("", overflow="ellipsis", no_wrap=True)
    listed = sorted(status.runs, key=lambda run: _ORDER[run.state])
    shown = listed if len(listed) <= rows else listed[: rows - 1]
    for run in shown:
        table.add_row(*(Text(cell, style=_STYLE[run.state]) for cell in _cells(run)))
    if len(shown) < len(listed):
        table.add_row("", f"and {len(listed) - len(shown):,} more")
    return table


_STYLE = {"failed": "red", "running": "", "stopped": "yellow", "pruned": "dim", "waiting": "dim", "done": "green"}


def _cells(run: RunStatus) -> Iterator[str]:
    yield run.state
    yield run.folder
    if run.state == "done":
        yield f"{run.steps:,}"
    else:
        yield f"{run.steps:,} / {run.total_steps:,}" if run.steps or run.state == "running" else f"{run.total_steps:,}"
    yield f"{run.steps_per_second:,.0f}" if run.steps_per_second else ""
    yield duration(run.seconds) if run.seconds else ""
    yield f"{run.evaluation:,.1f}" if run.evaluation is not None else ""
    yield run.error or ""
