"""Plot the episodes that monitors recorded."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from minerva.compat.stable_baselines.bench.monitor import load_results

X_TIMESTEPS = "timesteps"
X_EPISODES = "episodes"
X_WALLTIME = "walltime_hrs"
POSSIBLE_X_AXES = [X_TIMESTEPS, X_EPISODES, X_WALLTIME]
EPISODES_WINDOW = 100
"""Number of episodes that a plotted mean is taken over."""

Array = NDArray[Any]


def rolling_window(array: Array, window: int) -> Array:
    """Return all runs of consecutive elements along the last axis, ``[..., n - window + 1, window]``."""
    return np.lib.stride_tricks.sliding_window_view(array, window, axis=-1)


def window_func(var_1: Array, var_2: Array, window: int, func: Callable[..., Any]) -> tuple[Array, Any]:
    """Apply a function to the windows of an array.

    Args:
        var_1: Positions.
        var_2: Values.
        window: Elements per window.
        func: Function with an argument `axis`, such as `numpy.mean`.

    Returns:
        The position at which each window ends, and the result for it.
    """
    return var_1[window - 1 :], func(rolling_window(var_2, window), axis=-1)


def ts2xy(timesteps: Any, xaxis: str) -> tuple[Array, Array]:
    """Return what to plot of the episodes that `load_results` read: positions and returns.

    Args:
        timesteps: The episodes.
        xaxis: `X_TIMESTEPS`, `X_EPISODES` or `X_WALLTIME`.
    """
    positions: Any
    if xaxis == X_TIMESTEPS:
        positions = np.cumsum(timesteps.l.values)
    elif xaxis == X_EPISODES:
        positions = np.arange(len(timesteps))
    elif xaxis == X_WALLTIME:
        positions = timesteps.t.values / 3600.0
    else:
        raise NotImplementedError(f"xaxis: must be one of {', '.join(POSSIBLE_X_AXES)}, got {xaxis!r}.")
    return positions, timesteps.r.values


def plot_curves(xy_list: Sequence[tuple[Array, Array]], xaxis: str, title: str) -> None:
    """Plot curves: each return as a point, and the mean over the newest episodes as a line.

    Args:
        xy_list: Positions and returns of each curve.
        xaxis: Name of the horizontal axis.
        title: Title of the figure.
    """
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(8, 2))
    axes.set_xlim(0, max(x[-1] for x, _ in xy_list))
    for number, (x, y) in enumerate(xy_list):
        axes.scatter(x, y, s=2, color=f"C{number}")
        if len(x) >= EPISODES_WINDOW:
            axes.plot(*window_func(x, y, EPISODES_WINDOW, np.mean), color=f"C{number}")
    axes.set_title(title)
    axes.set_xlabel(xaxis)
    axes.set_ylabel("Episode Rewards")
    figure.tight_layout()


def plot_results(dirs: Sequence[str | os.PathLike[str]], num_timesteps: int | None, xaxis: str, task_name: str) -> None:
    """Plot the episodes in folders with files of monitors, one curve per folder.

    Args:
        dirs: The folders.
        num_timesteps: Only episodes that ended within this number of steps; None for all.
        xaxis: `X_TIMESTEPS`, `X_EPISODES` or `X_WALLTIME`.
        task_name: Title of the figure.
    """
    curves = []
    for folder in dirs:
        episodes = load_results(folder)
        if num_timesteps is not None:
            episodes = episodes[episodes.l.cumsum() <= num_timesteps]
        curves.append(ts2xy(episodes, xaxis))
    plot_curves(curves, xaxis, task_name)


def main(arguments: Sequence[str] | None = None) -> None:
    """Plot what the command line names, and show it: ``--dirs``, ``--num_timesteps``, ``--xaxis``, ``--task_name``."""
    from matplotlib import pyplot

    parser = argparse.ArgumentParser(formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--dirs", nargs="*", default=["./log"], help="folders with files of monitors")
    parser.add_argument("--num_timesteps", type=int, default=int(10e6), help="steps up to which episodes are plotted")
    parser.add_argument("--xaxis", default=X_TIMESTEPS, choices=POSSIBLE_X_AXES, help="horizontal axis")
    parser.add_argument("--task_name", default="Breakout", help="title of the figure")
    options = parser.parse_args(arguments)
    plot_results(options.dirs, options.num_timesteps, options.xaxis, options.task_name)
    pyplot.show()


if __name__ == "__main__":
    main()
