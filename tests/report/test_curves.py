from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from minerva.report import RunRecord, Series, plot_curves
from minerva.report.curves import common_curve, smooth


def series(steps: Sequence[int], values: Sequence[float]) -> Series:
    return Series(np.array(steps, dtype=np.int64), np.array(values, dtype=np.float64))


def record(
    seed: int, values: Sequence[float], algorithm: str = "ppo", env_id: str = "Pendulum-v1", **more: Series
) -> RunRecord:
    steps = [1000 * k for k in range(len(values))]
    metrics = {"eval/return_mean": series(steps, values)}
    metrics |= {name.replace("__", "/"): one for name, one in more.items()}
    return RunRecord(Path(f"runs/{seed}"), algorithm, env_id, seed, 100_000, {}, metrics)


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Figure]]:
    """Collect the figures that are written."""
    figures: list[Figure] = []
    savefig = Figure.savefig

    def keep(self: Figure, *arguments: Any, **keywords: Any) -> None:
        figures.append(self)
        savefig(self, *arguments, **keywords)

    monkeypatch.setattr(Figure, "savefig", keep)
    yield figures


def curves(axes: Axes) -> dict[str, list[tuple[float, float]]]:
    """Return the points of each labeled line."""
    return {
        str(line.get_label()): [(float(x), float(y)) for x, y in np.asarray(line.get_xydata())]
        for line in axes.get_lines()
        if not str(line.get_label()).startswith("_")
    }


def legend(axes: Axes) -> list[str]:
    box = axes.get_legend()
    assert box is not None
    return [text.get_text() for text in box.get_texts()]


# The arithmetic


def test_curves_on_their_own_steps() -> None:
    grid, values = common_curve([series([0, 10, 20], [1, 2, 3]), series([0, 10, 20], [5, 6, 7])])
    assert grid.tolist() == [0, 10, 20]
    assert values.tolist() == [[1, 2, 3], [5, 6, 7]]


def test_curves_on_different_steps_are_interpolated_and_never_extrapolated() -> None:
    grid, values = common_curve([series([0, 10, 30], [0, 10, 30]), series([5, 15, 20], [1, 3, 5])])
    assert grid.tolist() == [5, 10, 15, 20]
    assert values.tolist() == [[5, 10, 15, 20], [1, 2, 3, 5]]


def test_curves_without_a_common_step() -> None:
    grid, values = common_curve([series([0, 10], [0, 1]), series([20, 30], [2, 3])])
    assert grid.tolist() == []
    assert values.shape == (2, 0)


def test_values_of_one_step_are_averaged_and_nan_left_out() -> None:
    grid, values = common_curve([series([0, 10, 10, 20, 30], [1, 2, 4, np.nan, 5])])
    assert grid.tolist() == [0, 10, 30]
    assert values.tolist() == [[1, 3, 5]]


def test_a_long_series_is_put_on_a_coarser_grid() -> None:
    steps = list(range(0, 10_000, 7))
    grid, values = common_curve([series(steps, [2.0 * s for s in steps])])
    assert len(grid) == 200
    assert (grid[0], grid[-1]) == (steps[0], steps[-1])
    np.testing.assert_allclose(values[0], 2.0 * grid)


def test_smoothing_averages_spans_of_steps() -> None:
    steps, values = smooth(series([0, 1, 2, 10, 12, 40], [1, 2, 3, 10, 20, 7]), bins=4)  # edges 0 10 20 30 40
    assert steps.tolist() == [1, 11, 40]
    assert values.tolist() == [2, 15, 7]
    steps, values = smooth(series([5], [3]))
    assert (steps.tolist(), values.tolist()) == ([5], [3])
    assert smooth(series([5], [np.nan]))[0].tolist() == []


# The figure


def test_a_single_run_shows_spread_and_training(tmp_path: Path, drawn: list[Figure]) -> None:
    run = record(
        1,
        [-10.0, 0.0, 20.0],
        eval__return_std=series([0, 1000, 2000], [1.0, 2.0, 3.0]),
        train__episode_return=series([100, 900], [-9.0, -1.0]),
    )
    assert plot_curves([run], tmp_path / "new" / "curve.png") == tmp_path / "new" / "curve.png"
    assert (tmp_path / "new" / "curve.png").read_bytes().startswith(b"\x89PNG")
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["curve.png"]
    (axes,) = drawn[0].axes
    assert curves(axes) == {
        "evaluation: mean of the episodes": [(0, -10), (1000, 0), (2000, 20)],
        "training episodes, smoothed": [(100, -9), (900, -1)],
    }
    assert legend(axes) == ["evaluation: mean of the episodes", "± one std", "training episodes, smoothed"]
    (band,) = axes.collections
    corners = {(float(x), float(y)) for x, y in np.asarray(band.get_paths()[0].vertices)}
    assert corners == {(0, -11), (0, -9), (1000, -2), (1000, 2), (2000, 17), (2000, 23)}
    assert (axes.get_title("left"), axes.get_title("right")) == ("Pendulum-v1", "PPO, seed 1")
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("Environment steps", "Return")


def test_a_single_run_with_nothing_but_the_metric(tmp_path: Path, drawn: list[Figure]) -> None:
    plot_curves([record(1, [1.0])], tmp_path / "curve.svg", title="Mine")
    plot_curves([record(1, [1.0], losses__entropy=series([0, 5], [1, 2]))], tmp_path / "e.pdf", "losses/entropy")
    assert legend(drawn[0].axes[0]) == ["evaluation: mean of the episodes"]
    assert (drawn[0].axes[0].get_title("left"), drawn[0].axes[0].get_title("right")) == (
        "Mine",
        "Pendulum-v1 · PPO, seed 1",
    )
    assert curves(drawn[1].axes[0]) == {"PPO, seed 1": [(0, 1), (5, 2)]}
    assert drawn[1].axes[0].get_ylabel() == "losses/entropy"
    assert (tmp_path / "e.pdf").read_bytes().startswith(b"%PDF")


def test_numbers_at_the_axes(tmp_path: Path, drawn: list[Figure]) -> None:
    plot_curves([record(1, [1.0])], tmp_path / "curve.png")
    steps, returns = (axis.get_major_formatter() for axis in (drawn[0].axes[0].xaxis, drawn[0].axes[0].yaxis))
    labels = {0: "0", 500: "500", 1000: "1k", 2500: "2.5k", 200_000: "200k", 1_500_000: "1.5M", 2e9: "2G"}
    assert {step: steps(step) for step in labels} == labels
    assert [returns(value) for value in (-1000, 0.1, 1_234_567)] == ["−1,000", "0.1", "1,234,567"]


def test_seeds_are_grouped(tmp_path: Path, drawn: list[Figure]) -> None:
    runs = [record(1, [0.0, 10.0, 20.0]), record(2, [2.0, 14.0]), record(7, [1.0, 1.0, 1.0], "vmpo")]
    plot_curves(runs, tmp_path / "curve.png")
    (axes,) = drawn[0].axes
    # The mean ends where the shorter seed ends; the thin line of each seed continues.
    assert curves(axes) == {"PPO, 2 seeds": [(0, 1), (1000, 12)], "V-MPO, seed 7": [(0, 1), (1000, 1), (2000, 1)]}
    thin = [line for line in axes.get_lines() if str(line.get_label()).startswith("_")]
    assert [len(np.asarray(line.get_xdata())) for line in thin] == [3, 2]
    (band,) = axes.collections
    vertices = np.asarray(band.get_paths()[0].vertices)
    # Of two values, Student's interval reaches t(0.975) = 12.70620 half distances to each side of their mean.
    ends = sorted({(float(x), float(y)) for x, y in vertices})
    half = np.array([12.706205, 2 * 12.706205])
    expected = [(0, 1 - half[0]), (0, 1 + half[0]), (1000, 12 - half[1]), (1000, 12 + half[1])]
    np.testing.assert_allclose(ends, expected, atol=1e-4)
    mean, thin_color = axes.get_lines()[2], axes.get_lines()[0].get_color()
    assert mean.get_color() == thin_color != axes.get_lines()[3].get_color()


def test_an_interval_that_is_many_times_as_wide_as_the_runs_are_apart_does_not_set_the_scale(
    tmp_path: Path, drawn: list[Figure]
) -> None:
    plot_curves([record(1, [0, 100, 300]), record(2, [0, 200, 500])], tmp_path / "two.png")  # 12.7 standard errors
    (axes,) = drawn[0].axes
    assert axes.get_ylim() == (-250.0, 750.0)
    box = axes.get_legend()
    assert box is not None and box.get_title().get_text() == "mean and 95% interval (cut)"
    assert box.get_window_extent().y1 < axes.get_window_extent().y0  # beside the curves, not over them
    plot_curves([record(k, [0, 100 + k, 300 - k]) for k in range(5)], tmp_path / "five.png")
    (axes,) = drawn[1].axes
    box = axes.get_legend()
    assert box is not None and box.get_title().get_text() == "mean and 95% interval"
    low, high = axes.get_ylim()
    assert low < 0 and high > 300  # nothing is cut
    plot_curves([record(1, [5, 5]), record(2, [5, 5])], tmp_path / "same.png")  # without a range


def test_one_panel_per_environment(tmp_path: Path, drawn: list[Figure]) -> None:
    ids = ["A-v1", "B-v1", "C-v1", "D-v1"]
    runs = [record(k, [1.0, 2.0], algorithm, i) for i in ids for algorithm in ("ppo", "mpo") for k in (1, 2)]
    plot_curves(runs, tmp_path / "curve.png", title="Four")
    assert [axes.get_title("left") for axes in drawn[0].axes] == ids
    for axes in drawn[0].axes:
        assert legend(axes) == ["PPO, 2 seeds", "MPO, 2 seeds"]
    assert [axes.get_xlabel() != "" for axes in drawn[0].axes] == [False, False, True, True]
    assert [axes.get_ylabel() != "" for axes in drawn[0].axes] == [True, False, True, False]
    assert drawn[0].get_suptitle() == "Four"


def test_seeds_without_a_common_step_are_still_plotted(tmp_path: Path, drawn: list[Figure]) -> None:
    late = record(2, [])
    late.metrics["eval/return_mean"] = series([50_000, 60_000], [1, 2])
    plot_curves([record(1, [1.0, 2.0]), late], tmp_path / "curve.png")
    assert curves(drawn[0].axes[0]) == {"PPO, 2 seeds": []}


def test_a_run_without_metrics_does_not_prevent_the_plot(tmp_path: Path, drawn: list[Figure]) -> None:
    new = RunRecord(Path("runs/new"), "ppo", "Pendulum-v1", 9, 100, {}, {})
    plot_curves([new, record(1, [1.0, 2.0])], tmp_path / "curve.png")
    assert curves(drawn[0].axes[0]) == {"PPO, seed 1": [(0, 1), (1000, 2)]}


def test_svg_keeps_its_text_and_is_the_same_twice(tmp_path: Path) -> None:
    runs = [record(k, list(np.random.default_rng(k).normal(size=20))) for k in range(5)]
    first = plot_curves(runs, tmp_path / "1.svg").read_text()
    assert first == plot_curves(runs, tmp_path / "2.svg").read_text()
    text = "".join(ElementTree.fromstring(first).itertext())
    for word in ("Pendulum-v1", "Environment steps", "5 seeds", "10k", "Return"):
        assert word in text


def test_the_callers_matplotlib_settings_are_unchanged(tmp_path: Path) -> None:
    import matplotlib

    before = dict(matplotlib.rcParams)
    pyplot = sys.modules.get("matplotlib.pyplot")
    plot_curves([record(1, [1.0, 2.0])], tmp_path / "curve.png")
    assert dict(matplotlib.rcParams) == before
    assert sys.modules.get("matplotlib.pyplot") is pyplot


# Errors


def test_no_such_metric(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"runs/1 has no value of 'eval/x'; its metrics are: eval/return_mean\."):
        plot_curves([record(1, [1.0])], tmp_path / "curve.png", "eval/x")
    with pytest.raises(ValueError, match="runs: must hold at least one run"):
        plot_curves([], tmp_path / "curve.png")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["curve", "curve.jpg"])
def test_an_unknown_format(tmp_path: Path, name: str) -> None:
    with pytest.raises(ValueError, match=re.escape(f"must end in .png, .svg, .pdf, got {tmp_path / name}")):
        plot_curves([record(1, [1.0])], tmp_path / name)


def test_a_file_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match=r"cannot be written to .*curve\.png \(.*\); choose another file"):
        plot_curves([record(1, [1.0])], tmp_path / "file" / "curve.png")


def test_an_older_figure_survives_a_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = plot_curves([record(1, [1.0])], tmp_path / "curve.png")
    before = out.read_bytes()

    def full(self: Figure, file: Path, **_: Any) -> None:
        file.write_bytes(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Figure, "savefig", full)
    with pytest.raises(ValueError, match="No space left on device"):
        plot_curves([record(1, [2.0])], out)
    assert out.read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == ["curve.png"]


def test_without_matplotlib(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ValueError, match=r'not installed: pip install "minerva-rl\[report\]"'):
        plot_curves([record(1, [1.0])], tmp_path / "curve.png")
