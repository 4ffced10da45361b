"""Plot the learning curves of runs."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from minerva.report.groups import Group, group_runs
from minerva.report.runs import RunRecord, Series
from minerva.report.statistics import mean_interval

if TYPE_CHECKING:
    from matplotlib.axes import Axes

FloatArray = NDArray[np.float64]

_SUFFIXES = (".png", ".svg", ".pdf")
_GRID_POINTS = 200
_BAND_ROOM = 0.5
"""How far beyond the curves of the runs an axis shows their interval, as a share of the curves' range."""

# Okabe and Ito's palette, which is safe for color-blind readers; the strongest colors come first.
_COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
_GREY = "#8a8f98"
_INK = "#2b2f36"
STYLE: Any = {
    "font.family": "sans-serif",
    "font.size": 10,
    "axes.titlesize": 11,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.titlepad": 10,
    "axes.labelsize": 10,
    "axes.labelcolor": _INK,
    "axes.titlecolor": _INK,
    "axes.edgecolor": "#b5b9c0",
    "axes.linewidth": 0.8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#e6e8eb",
    "grid.linewidth": 0.8,
    "xtick.color": "#b5b9c0",
    "ytick.color": "#b5b9c0",
    "xtick.labelcolor": _INK,
    "ytick.labelcolor": _INK,
    "xtick.labelsize": 9,
    "ytick.labelsize": 9,
    "lines.solid_capstyle": "round",
    "lines.solid_joinstyle": "round",
    "legend.frameon": False,
    "legend.fontsize": 9,
    "legend.labelcolor": _INK,
    "figure.facecolor": "white",
    "savefig.dpi": 200,
    "svg.fonttype": "none",  # keeps text as text: it can be searched and set in the paper's font
    "svg.hashsalt": "minerva",  # the same runs give the same file
}
_LABELS = {
    "eval/return_mean": "Return",
    "eval/return_median": "Median return",
    "train/episode_return": "Return of training episodes",
    "eval/length_mean": "Episode length",
    "train/episode_length": "Length of training episodes",
}


def plot_curves(
    runs: Sequence[RunRecord],
    out: Path,
    metric: str = "eval/return_mean",
    title: str | None = None,
    group_by: Sequence[str] | None = None,
    labels: Sequence[str] | None = None,
) -> Path:
    """Plot the learning curves of runs, one panel per environment.

    Runs of one algorithm with the same settings are seeds of one experiment: a thin line each, their mean over the
    steps that all of them have reached, and a band for Student's 95% interval of the mean. Labels name the settings
    that differ. A single run is one line. If it is the only run in the figure, the plot also shows one standard
    deviation over evaluation episodes and the mean return of training episodes.

    Args:
        runs: The runs, as `read_run` returns them.
        out: The file to write: PNG, SVG or PDF, according to its suffix. Missing folders are created.
        metric: Name of the metric to plot.
        title: Title of the figure; by default only the environment ids are shown.
        group_by: Fields of the settings that tell experiments apart (default: all that differ and change the result).
        labels: A label for each run, in place of algorithm and settings: runs with the same label are one experiment.

    Returns:
        The path of the file.

    Raises:
        ValueError: No run has the metric, the suffix is none of the three, the file cannot be written, or matplotlib is
            not installed.
    """
    out = Path(out)
    if out.suffix.lower() not in _SUFFIXES:
        raise ValueError(f"out: the file name must end in {', '.join(_SUFFIXES)}, got {out}.")
    panels = group_runs(*_with_metric(runs, metric, labels), group_by)
    try:
        from matplotlib import rc_context
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ValueError(
            'matplotlib, which plots the curves, is not installed: pip install "minerva-rl[report]".'
        ) from error

    names = list(dict.fromkeys(group.label for groups in panels.values() for group in groups))
    colors = {name: _COLORS[k % len(_COLORS)] for k, name in enumerate(names)}
    columns = 2 if len(panels) == 4 else min(len(panels), 3)
    rows = math.ceil(len(panels) / columns)
    width, height = (6.4, 4.0) if len(panels) == 1 else (4.2 * columns, 3.2 * rows)
    # A Figure instead of pyplot: it opens no window and leaves the caller's figures and settings unchanged.
    with rc_context(), rc_context(STYLE):
        figure = Figure(figsize=(width, height), layout="constrained")
        figure.get_layout_engine().set(w_pad=0.1, h_pad=0.08)  # type: ignore[union-attr,call-arg]
        for k, (env_id, groups) in enumerate(panels.items()):
            axes = figure.add_subplot(rows, columns, k + 1)
            for group in groups:
                if len(group.runs) == 1:
                    _draw_run(axes, group, metric, colors[group.label], alone=len(runs) == 1)
                else:
                    _draw_seeds(axes, group, metric, colors[group.label])
            cut = _cut_bands(axes, groups, metric)
            _label(axes, groups, metric, bottom=k + columns >= len(panels), left=k % columns == 0, cut=cut)
            axes.set_title(title if title and len(panels) == 1 else env_id)
            facts = [env_id] if title and len(panels) == 1 else []
            if len(runs) == 1:
                facts.append(f"{groups[0].label}, seed {runs[0].seed}")
            axes.set_title(" · ".join(facts), loc="right", fontsize=9, fontweight="normal", color=_GREY)
        if title and len(panels) > 1:
            figure.suptitle(title, fontsize=12, fontweight="bold", color=_INK)
        with _replacing(out) as temporary:
            # No date, so that the same runs give the same file.
            metadata = {".svg": {"Date": None}, ".pdf": {"CreationDate": None}}.get(out.suffix.lower())
            figure.savefig(temporary, format=out.suffix.lower()[1:], metadata=metadata)
    return out


def common_curve(series: Sequence[Series]) -> tuple[FloatArray, FloatArray]:
    """Interpolate the curves of several runs on a common grid of steps.

    Args:
        series: The series of one metric, one per run.

    Returns:
        Steps `[k]` within the range that every run has reached, and the interpolated values of the runs `[n, k]`.
        Nothing is extrapolated, so k may be 0.
    """
    curves = [_mean_per_step(one) for one in series]
    first = max(steps[0] for steps, _ in curves)
    last = min(steps[-1] for steps, _ in curves)
    grid = np.unique(np.concatenate([steps for steps, _ in curves]))
    grid = grid[(grid >= first) & (grid <= last)]
    if len(grid) > _GRID_POINTS:
        grid = np.linspace(first, last, _GRID_POINTS)
    return grid, np.stack([np.interp(grid, steps, values) for steps, values in curves])


def smooth(series: Series, bins: int = 60) -> tuple[FloatArray, FloatArray]:
    """Average a noisy series over equal intervals of steps.

    Returns:
        Mean step and mean value of each interval that is not empty.
    """
    keep = np.isfinite(series.values)
    steps, values = series.steps[keep].astype(np.float64), series.values[keep]
    if len(steps) == 0:
        return steps, values
    edges = np.linspace(steps.min(), steps.max(), bins + 1)
    _, index = np.unique(np.searchsorted(edges[1:-1], steps, side="right"), return_inverse=True)
    count = np.bincount(index)
    return np.bincount(index, steps) / count, np.bincount(index, values) / count


def _with_metric(
    runs: Sequence[RunRecord], metric: str, labels: Sequence[str] | None
) -> tuple[list[RunRecord], list[str] | None]:
    """Return the runs that have the metric, and their labels."""
    if not runs:
        raise ValueError("runs: must hold at least one run, got none; give the folder of a run.")
    if labels is not None and len(labels) != len(runs):
        raise ValueError(f"labels: must be one per run, {len(runs)}, got {len(labels)}.")
    kept = [k for k, run in enumerate(runs) if metric in run.metrics and np.isfinite(run.metrics[metric].values).any()]
    if not kept:
        known = ", ".join(sorted({name for run in runs for name in run.metrics})) or "none yet"
        raise ValueError(f"metric: {runs[0].folder} has no value of {metric!r}; its metrics are: {known}.")
    return [runs[k] for k in kept], None if labels is None else [labels[k] for k in kept]


def _mean_per_step(series: Series) -> tuple[FloatArray, FloatArray]:
    """Return the steps of a series and the mean of the finite values at each."""
    keep = np.isfinite(series.values)
    steps, index = np.unique(series.steps[keep], return_inverse=True)
    values = np.bincount(index, series.values[keep]) / np.bincount(index)
    return steps.astype(np.float64), values


def _draw_run(axes: Axes, group: Group, metric: str, color: str, alone: bool) -> None:
    """Plot one run; if it is alone in the figure, with all that is known about its returns."""
    (run,) = group.runs
    steps, values = _mean_per_step(run.metrics[metric])
    of_returns = alone and metric == "eval/return_mean"
    label = "evaluation: mean of the episodes" if of_returns else f"{group.label}, seed {run.seed}"
    marker = "o" if alone and len(steps) <= 60 else _marker(steps)
    axes.plot(steps, values, color=color, linewidth=2.0, marker=marker, markersize=3.2, label=label, zorder=3)
    if of_returns and "eval/return_std" in run.metrics:
        std_steps, std = _mean_per_step(run.metrics["eval/return_std"])
        if len(std_steps):
            spread = np.interp(steps, std_steps, std)
            below, above = values - spread, values + spread
            axes.fill_between(steps, below, above, color=color, alpha=0.16, linewidth=0, label="± one std", zorder=1)
    if of_returns and "train/episode_return" in run.metrics:
        steps, values = smooth(run.metrics["train/episode_return"])
        axes.plot(steps, values, color=_GREY, alpha=0.75, linewidth=1.0, label="training episodes, smoothed", zorder=2)


def _draw_seeds(axes: Axes, group: Group, metric: str, color: str) -> None:
    """Plot the seeds of one experiment."""
    for run in group.runs:
        steps, values = _mean_per_step(run.metrics[metric])
        axes.plot(steps, values, color=color, linewidth=0.7, alpha=0.35, marker=_marker(steps), zorder=2)
    label = f"{group.label}, {len(group.runs)} seeds"
    grid, values = common_curve([run.metrics[metric] for run in group.runs])
    if len(grid) == 0:  # the runs have no step in common
        axes.plot([], [], color=color, linewidth=0.7, label=label)
        return
    low, high = mean_interval(values)
    axes.fill_between(grid, low, high, color=color, alpha=0.18, linewidth=0, zorder=1)
    mean = values.mean(axis=0)
    axes.plot(grid, mean, color=color, linewidth=2.2, marker=_marker(grid), label=label, zorder=3)


def _cut_bands(axes: Axes, groups: Sequence[Group], metric: str) -> bool:
    """Let the runs decide what the axis shows, not an interval of two seeds, which is many times as wide.

    Returns:
        Whether intervals are cut.
    """
    if all(len(group.runs) == 1 for group in groups):
        return False
    curves = [_mean_per_step(run.metrics[metric])[1] for group in groups for run in group.runs]
    low, high = min(curve.min() for curve in curves), max(curve.max() for curve in curves)
    room = _BAND_ROOM * (high - low)
    bottom, top = axes.get_ylim()
    if low == high or (bottom >= low - room and top <= high + room):
        return False
    axes.set_ylim(max(bottom, low - room), min(top, high + room))
    return True


def _label(axes: Axes, groups: Sequence[Group], metric: str, *, bottom: bool, left: bool, cut: bool) -> None:
    """Label a panel's axes and lines."""
    from matplotlib.ticker import EngFormatter, MaxNLocator, StrMethodFormatter

    if bottom:
        axes.set_xlabel("Environment steps")
    if left:
        axes.set_ylabel(_LABELS.get(metric, metric))
    axes.xaxis.set_major_locator(MaxNLocator(nbins=6, steps=[1, 2, 2.5, 5, 10], integer=True))
    axes.xaxis.set_major_formatter(EngFormatter(sep=""))  # 500, 20k, 1.5M
    axes.yaxis.set_major_formatter(StrMethodFormatter("{x:,.10g}"))
    axes.tick_params(length=0)
    axes.margins(x=0.015)
    of_seeds = any(len(group.runs) > 1 for group in groups)
    head = f"mean and 95% interval{' (cut)' * cut}" if of_seeds else None
    # Where the band fills the panel, no place in it is free.
    place: Any = {"loc": "upper left", "bbox_to_anchor": (0, -0.16)} if cut else {"loc": "best"}
    legend = axes.legend(**place, handlelength=1.6, alignment="left", title=head, title_fontsize=8)
    legend.get_title().set_color(_GREY)


def _marker(steps: FloatArray) -> str | None:
    """Return the marker that makes a curve of one point visible."""
    return "o" if len(steps) == 1 else None


@contextmanager
def _replacing(out: Path) -> Iterator[Path]:
    """Yield a temporary file that replaces `out` on success, so that a failure keeps the previous figure."""
    temporary = out.with_name(f".{out.name}.partial")
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        yield temporary
        temporary.replace(out)
    except OSError as error:
        raise ValueError(
            f"out: the figure cannot be written to {out} ({error.strerror or error}); choose another file."
        ) from error
    finally:
        with suppress(OSError):  # if the folder could not be created, there is no file either
            temporary.unlink(missing_ok=True)
