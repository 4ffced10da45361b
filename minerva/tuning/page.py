"""The page of a tuning: one HTML file with history, importances and slices, which needs nothing from elsewhere."""

from __future__ import annotations

import base64
import html
import io
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

from minerva.report.curves import STYLE
from minerva.tuning.outcome import best_rows, count_outcomes
from minerva.tuning.space import Dimension
from minerva.tuning.spec import TuneSpec

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from minerva.tuning.study import Study, Trial

_BLUE, _ORANGE, _GREY = "#0072B2", "#D55E00", "#8a8f98"
_COLUMNS = 3
_CSS = """
body { font: 15px/1.5 system-ui, sans-serif; color: #2b2f36; max-width: 62rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.1rem; margin-top: 2rem; }
img { max-width: 100%; height: auto; }
div.wide { overflow-x: auto; }
table { border-collapse: collapse; } th, td { padding: .2rem .8rem; text-align: right; }
th, td { border-bottom: 1px solid #e6e8eb; }
p.warning { border-left: 4px solid #D55E00; padding-left: .8rem; }
"""


def write_page(path: Path, spec: TuneSpec, study: Study) -> None:
    """Write the page."""
    from matplotlib import rc_context

    with rc_context(), rc_context(STYLE):  # the caller's settings stay as they are
        text = _page(spec, study)
    temporary = path.with_name(f"{path.name}.part")
    temporary.write_text(text, encoding="utf-8")
    temporary.replace(path)


def _page(spec: TuneSpec, study: Study) -> str:
    from minerva.tuning.study import importances

    trials = study.trials()
    complete = [trial for trial in trials if trial.outcome == "complete"]
    title = f"{spec.sweep.name}: {spec.algorithm} on {spec.env}"
    parts = [
        f"<h1>{html.escape(title)}</h1>",
        f"<p>{len(trials)} of {spec.search.trials} trials of {spec.base.final_step:,} steps: "
        f"{', '.join(f'{count} {outcome}' for outcome, count in count_outcomes(trials).items())}. "
        f"A trial's return is the mean over seeds {spec.tuned_on} of the last evaluations "
        f"({spec.search.evaluations} of each run).</p>",
        f'<p class="warning">The settings were chosen on seeds {spec.tuned_on}. Do not report their results with these '
        "seeds; train with others.</p>",
    ]
    if complete:
        parts += ["<h2>Best trials</h2>", f'<div class="wide">{_table(best_rows(spec, trials))}</div>']
        parts += ["<h2>History</h2>", _image(_history(trials), "returns of the trials in order")]
        shares = importances(study.optuna)
        if shares:
            parts += [
                "<h2>Importance</h2>",
                "<p>How much each setting tells good trials from others (PED-ANOVA), as a share of all.</p>",
                _image(_importance(shares), "importance of each setting"),
            ]
        parts += ["<h2>Slices</h2>", _image(_slices(spec, complete), "returns by the value of each setting")]
    failed = [trial for trial in trials if trial.outcome == "failed"]
    if failed:
        items = "".join(f"<li>trial {trial.number}: {html.escape(str(trial.error))}</li>" for trial in failed)
        parts += ["<h2>Failed trials</h2>", f"<ul>{items}</ul>"]
    head = f'<meta charset="utf-8"><title>{html.escape(title)}</title><style>{_CSS}</style>'
    body = "\n".join(parts)
    return f'<!doctype html>\n<html lang="en"><head>{head}</head>\n<body>\n{body}\n</body></html>\n'


def _history(trials: list[Trial]) -> Figure:
    figure = _figure(7.2, 3.4)
    axes = figure.add_subplot()
    pruned = [(trial.number, trial.value) for trial in trials if trial.outcome == "pruned" and trial.value is not None]
    complete = [(trial.number, trial.value or 0.0) for trial in trials if trial.outcome == "complete"]
    if pruned:
        axes.plot(*zip(*pruned, strict=True), "x", color=_GREY, label="pruned, when it was", zorder=2)
    axes.plot(*zip(*complete, strict=True), "o", color=_BLUE, markersize=4, label="complete", zorder=3)
    best, line = -math.inf, []
    for number, value in complete:
        best = max(best, value)
        line.append((number, best))
    axes.plot(*zip(*line, strict=True), color=_ORANGE, drawstyle="steps-post", label="best so far", zorder=1)
    axes.set_xlabel("Trial")
    axes.set_ylabel("Return")
    axes.legend()
    return figure


def _importance(shares: dict[str, float]) -> Figure:
    figure = _figure(7.2, 0.8 + 0.35 * len(shares))
    axes = figure.add_subplot()
    names = list(reversed(shares))
    axes.barh(names, [shares[name] for name in names], color=_BLUE)
    axes.set_xlabel("Importance")
    axes.grid(visible=False, axis="y")
    return figure


def _slices(spec: TuneSpec, complete: list[Trial]) -> Figure:
    dimensions = spec.space.dimensions
    rows = math.ceil(len(dimensions) / _COLUMNS)
    columns = min(len(dimensions), _COLUMNS)
    figure = _figure(3.4 * columns, 2.9 * rows)
    for k, one in enumerate(dimensions):
        axes = figure.add_subplot(rows, columns, k + 1)
        _slice(axes, one, [trial for trial in complete if one.name in trial.values])
        if k % columns == 0:
            axes.set_ylabel("Return")
    return figure


def _slice(axes: Axes, one: Dimension, trials: list[Trial]) -> None:
    values: list[Any] = [trial.values[one.name] for trial in trials]
    if one.kind == "choices":
        places = list(one.choices)
        values = [places.index(value) for value in values]
        axes.set_xticks(range(len(places)), places)
        axes.set_xlim(-0.5, len(places) - 0.5)
    elif one.log:
        axes.set_xscale("log")
    # Later trials are darker: there the search has gone.
    colors = [trial.number for trial in trials]
    axes.scatter(
        values, [trial.value or 0.0 for trial in trials], c=colors, cmap="Blues", edgecolors=_BLUE, s=22, zorder=3
    )
    axes.set_xlabel(one.name)


def _figure(width: float, height: float) -> Figure:
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained")


def _image(figure: Figure, what: str) -> str:
    return f'<p><img alt="{html.escape(what)}" src="data:image/png;base64,{_png(figure)}"></p>'


def _png(figure: Figure) -> str:
    file = io.BytesIO()
    figure.savefig(file, format="png", dpi=160)
    return base64.b64encode(file.getvalue()).decode("ascii")


def _table(rows: list[list[str]]) -> str:
    lines = []
    for k, row in enumerate(rows):
        tag = "td" if k else "th"
        lines.append(f"<tr>{''.join(f'<{tag}>{html.escape(cell)}</{tag}>' for cell in row)}</tr>")
    return f"<table>{''.join(lines)}</table>"
