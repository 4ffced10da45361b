from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import matplotlib
import numpy as np
import pytest

from minerva.compat.stable_baselines import results_plotter
from minerva.compat.stable_baselines.bench import load_results
from minerva.compat.stable_baselines.results_plotter import ts2xy, window_func

matplotlib.use("Agg")
from matplotlib import pyplot


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    rows = [f"{k},10,{36.0 * (k + 1)}" for k in range(150)]
    (tmp_path / "monitor.csv").write_text("\n".join(['#{"t_start": 5.0, "env_id": null}', "r,l,t", *rows]) + "\n")
    yield tmp_path
    pyplot.close("all")


def test_axes_of_plots(folder: Path) -> None:
    episodes = load_results(folder)
    x, y = ts2xy(episodes, "timesteps")
    assert x[:3].tolist() == [10, 20, 30]
    assert y[:3].tolist() == [0, 1, 2]
    assert ts2xy(episodes, results_plotter.X_EPISODES)[0][:2].tolist() == [0, 1]
    assert np.allclose(ts2xy(episodes, results_plotter.X_WALLTIME)[0][:2], [0.01, 0.02])
    with pytest.raises(
        NotImplementedError, match="xaxis: must be one of timesteps, episodes, walltime_hrs, got 'hours'"
    ):
        ts2xy(episodes, "hours")


def test_windows() -> None:
    x, means = window_func(np.arange(4), np.array([1.0, 3.0, 5.0, 9.0]), 2, np.mean)
    assert x.tolist() == [1, 2, 3]
    assert means.tolist() == [2.0, 4.0, 7.0]


def test_a_plot_has_the_points_and_the_mean(folder: Path) -> None:
    results_plotter.plot_results([str(folder)], 1200, results_plotter.X_TIMESTEPS, "Task")
    axes = pyplot.gca()
    assert len(axes.collections[0].get_offsets()) == 120  # type: ignore[arg-type]
    assert axes.lines[0].get_xdata()[-1] == 1200  # type: ignore[index]
    assert axes.lines[0].get_ydata()[0] == np.mean(np.arange(100))  # type: ignore[index]
    assert (axes.get_title(), axes.get_xlabel(), axes.get_ylabel()) == ("Task", "timesteps", "Episode Rewards")


def test_the_command_plots_folders(folder: Path) -> None:
    command = ["--dirs", str(folder), str(folder), "--num_timesteps", "500", "--xaxis", "episodes", "--task_name", "A"]
    results_plotter.main(command)
    axes = pyplot.gca()
    assert [len(points.get_offsets()) for points in axes.collections] == [50, 50]  # type: ignore[arg-type]
    assert (axes.get_title(), axes.get_xlabel()) == ("A", "episodes")
