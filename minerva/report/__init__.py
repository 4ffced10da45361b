"""Curves, statistics and tables, from the files that runs wrote to disk."""

from minerva.report.curves import plot_curves
from minerva.report.runs import RunRecord, Series, read_run
from minerva.report.statistics import Summary, summarize
from minerva.report.tables import episodes_table, evaluation_table, results_table

__all__ = [
    "RunRecord",
    "Series",
    "Summary",
    "episodes_table",
    "evaluation_table",
    "plot_curves",
    "read_run",
    "results_table",
    "summarize",
]
