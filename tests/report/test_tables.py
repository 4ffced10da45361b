from __future__ import annotations

import io

from rich.console import Console
from rich.table import Table

from minerva.report import episodes_table, evaluation_table, results_table, summarize


def rows(table: Table) -> list[list[str]]:
    stream = io.StringIO()
    Console(file=stream, width=80, force_terminal=False).print(table)
    return [line.split() for line in stream.getvalue().splitlines() if line.strip(" ─")]


def test_evaluation() -> None:
    summary = summarize([1, 2, 3, 4, 5, 6, 7, 2000])
    low, high = f"{summary.low:,.2f}", f"{summary.high:,.2f}"
    assert rows(evaluation_table(summary, "PPO [HalfCheetah-v5]")) == [
        ["PPO", "[HalfCheetah-v5]"],
        ["Return", "8", "episodes"],
        ["mean", "253.50"],
        ["95%", "interval", "of", "the", "mean", low, "to", high],
        ["std", "660.12"],
        ["median", "4.50"],
        ["IQM", "4.50"],
        ["minimum", "1.00"],
        ["maximum", "2,000.00"],
    ]


def test_a_single_episode_has_no_interval() -> None:
    table = rows(evaluation_table(summarize([1.0]), "one"))
    assert table[1] == ["Return", "1", "episode"]
    assert table[3] == ["95%", "interval", "of", "the", "mean", "unknown"]


def test_episodes() -> None:
    assert rows(episodes_table([1.5, -2000.0], [10, 1000])) == [
        ["Episodes"],
        ["Episode", "Return", "Length"],
        ["1", "1.50", "10"],
        ["2", "-2,000.00", "1,000"],
    ]


def test_the_results_of_experiments() -> None:
    # Of 1 to 5: mean 3, standard error sqrt(2.5 / 5), and 2.776 is the 97.5 % point of t with 4 degrees of freedom.
    assert rows(results_table({"ppo/X/default": [1.0, 2.0, 3.0, 4.0, 5.0], "mpo/[b]": [1234.5]}, "Last")) == [
        ["Last"],
        ["Runs", "Seeds", "Mean", "95%", "interval"],
        ["ppo/X/default", "5", "3.00", "1.04", "to", "4.96"],
        ["mpo/[b]", "1", "1,234.50", "unknown"],
    ]
