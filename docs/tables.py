"""Make tables and sentences about settings, warnings, results and presets from code and data."""

from __future__ import annotations

import dataclasses
import html
import math
import re
import tomllib
import types
import typing
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks import summary
from docs import figures
from minerva import api, presets
from minerva.cli.options import setting_groups
from minerva.report.statistics import summarize
from minerva.trainers.mpo.health import MPO_RULES
from minerva.trainers.vmpo.config import VMPOConfig
from minerva.trainers.vmpo.health import vmpo_rules
from minerva.utils.schedules import Schedule

ROOT = Path(__file__).parent.parent
ACTION_DIM = 6
"""Action dimensions of the task for which V-MPO's warnings are shown (HalfCheetah); the thresholds depend on it."""
_INTERVAL = re.compile(r"(\[-?[\d.]+,) (-?[\d.]+\])")


# Settings and warnings


def hyperparameters(algo: str, uri: str) -> str:
    """Make tables of an algorithm's settings from its config, grouped under the config's headings."""
    config = api.config_class(algo)
    fields = {field.name: field for field in dataclasses.fields(config)}
    kinds = typing.get_type_hints(config)

    def row(name: str, text: str) -> str:
        return f"| `{name}` | `{_kind(kinds[name])}` | `{_default(fields[name])}` | {cell(text)} |"

    parts = []
    for heading, settings in setting_groups(config).items():
        rows = [row(setting.name, setting.help) for setting in settings]
        table = "\n".join([*_table("setting", "type", "default", "what it does"), *rows])
        parts += [f"### {heading.capitalize()}", table]
    return "\n\n".join(parts)


def _kind(kind: Any) -> str:
    if typing.get_origin(kind) is typing.Literal:
        return ", ".join(map(repr, typing.get_args(kind)))  # the choices are enough
    if types.NoneType in typing.get_args(kind):
        (*others,) = (one for one in typing.get_args(kind) if one is not types.NoneType)
        return f"{_kind(typing.Union[tuple(others)])} | None"  # noqa: UP007
    if kind == Schedule:
        return "Schedule"
    return kind.__name__ if isinstance(kind, type) and not typing.get_args(kind) else str(kind).replace("typing.", "")


def _default(field: dataclasses.Field[Any]) -> str:
    return repr(field.default if field.default_factory is dataclasses.MISSING else field.default_factory())


def health_rules(algo: str, uri: str) -> str:
    """Make a table of the health warnings."""
    config = VMPOConfig()
    of_vmpo = vmpo_rules(config.topk_fraction, config.batch_size, ACTION_DIM)
    rules = {"mpo": MPO_RULES, "vmpo": of_vmpo}[algo]
    rows = []
    for rule in rules:
        bounds = [f"below {rule.below:.3g}"] if math.isfinite(rule.below) else []
        bounds += [f"above {rule.above:.3g}"] if math.isfinite(rule.above) else []
        when = "growing" if rule.growth else " or ".join(bounds)
        said = rule.warning.format(value="…")
        rows.append(f"| `{rule.metric}` | {when} | {rule.checks} | {cell(said[0].upper() + said[1:])} |")
    return "\n".join([*_table("metric", "warns when", "checks in a row", "message"), *rows])


# Results


def results(algo: str, uri: str) -> str:
    """Return the README's result table, with intervals that do not break on a phone, and what its speeds are."""
    table = _INTERVAL.sub(r"\1&nbsp;\2", summary.table(algo))
    return f"{table}\n\n{summary.hardware_note(algo)}"


def results_in_short(algo: str, uri: str) -> str:
    """Make a table of the most important columns, and whether the target was reached."""
    kept = ("task", "steps", "seeds", "mean of seeds [95% interval]", "target")
    rows = [
        f"| {' | '.join(row.cells[name] for name in kept)} | {'yes' if row.reached else '**no**'} |"
        for row in _rows(algo)
    ]
    return "\n".join([*_table(*kept, "reached"), *rows])


def shortfalls(algo: str, uri: str) -> str:
    """Return a sentence on which targets were not reached."""
    rows = _rows(algo)
    missed = [f"{row.cells['task']} at {row.cells['steps']} steps" for row in rows if not row.reached]
    if not missed:
        return f"All {len(rows)} targets were reached."
    return f"**Targets not reached, {len(missed)} of {len(rows)}:** {listed(missed)}."


class _Row(NamedTuple):
    cells: dict[str, str]  # column -> text
    reached: bool


def _rows(algo: str) -> list[_Row]:
    head, _, *body = (
        [cell.strip() for cell in line.strip("|").split("|")] for line in summary.table(algo).splitlines()
    )
    return [
        _Row(dict(zip(head, cells, strict=True)), reached) for cells, reached in zip(body, _reached(algo), strict=True)
    ]


def _reached(algo: str) -> list[bool]:
    """Compare unrounded means with targets, one per row of the table."""
    reached = []
    for env_id, budgets in _published(algo).items():
        for budget in budgets:
            found = summary.results(_folder(algo) / env_id.replace("/", "-"), budget.get("steps"))
            if found:
                reached.append(summarize([result.mean_return for result in found]).mean >= budget["goal"])
    return reached


def _published(algo: str) -> dict[str, list[dict[str, Any]]]:
    found: dict[str, list[dict[str, Any]]] = tomllib.loads((summary.HERE / "published.toml").read_text())[algo]
    return found


def _folder(algo: str) -> Path:
    return summary.HERE / "results" / algo


def curves(algo: str, uri: str) -> str:
    """Draw the learning curves of the results."""
    goals = {env_id: [one["goal"] for one in budgets] for env_id, budgets in _published(algo).items()}
    return figures.panels(_folder(algo), goals)


GENERAL = """
Five tasks on which nothing was tuned, returns of three seeds (401 to 403): with the config's defaults (`--preset none`)
and as `minerva train` trains a task that has no preset. PPO's general preset is its defaults. MPO's is not measured
yet: its updates need a GPU or many cores.
""".strip()


def results_page() -> str:
    """Make the results page: the tables, then the text of benchmarks/results/README.md."""
    text = (summary.HERE / "results" / "README.md").read_text(encoding="utf-8")
    title, _, rest = text.partition("\n")
    if not title.startswith("# "):
        raise ValueError("benchmarks/results/README.md: must begin with a title")
    parts = ["# Results", "These tables are made from the data in `benchmarks/results/` when this site is built."]
    for algo, name in summary.ALGORITHMS.items():
        parts += [f"## {name}: results {{ #{algo}-table }}", results(algo, ""), shortfalls(algo, "")]
    parts += ["## Tasks without a preset", GENERAL, summary.general_table()]
    return "\n\n".join([*parts, rest.strip()]) + "\n"


# Presets


SECTIONS = {
    "Gymnasium": "",
    "Without velocities": "minerva/",
    "Atari": "ALE/",
    "DeepMind Control Suite": "dm_control/",
}
"""Headings, and how the ids of their tasks begin."""


def presets_page(algo: str) -> str:
    """Make the page of an algorithm's presets."""
    common = presets.common_fields(algo)
    parts = [
        f"# Presets of {summary.ALGORITHMS[algo]}",
        presets.about(algo),
        f"`minerva train {algo} --env ID` applies them. An option of the same name overrides a setting; with another "
        "`--num-envs`, rollouts keep about their size. `--preset default` takes the general preset, `--preset none` "
        "the defaults of the algorithm, `--preset FILE.toml` settings of your own. "
        f"[What the settings mean](../algorithms/{algo}.md#settings).",
        "The return is the mean over seeds at the end of the run, with its 95% interval. A preset that was not tried "
        "may work or not.",
    ]
    rows = [_preset_row(f"{kind} actions", preset, common) for kind, preset in presets.load_defaults(algo).items()]
    parts.append("\n".join(["## Tasks without a preset of their own", "", *_table(*_PRESET_COLUMNS), *rows]))
    if common:
        shared = [f"| `{field}` | `{_toml(value)}` |" for field, value in common.items()]
        parts.append("\n".join(["## All tasks", "", *_table("setting", "value"), *shared]))
    known = presets.load_presets(algo)
    sections: dict[str, list[str]] = {heading: [] for heading in SECTIONS}
    for name, preset in known.items():
        heading = next((h for h, prefix in SECTIONS.items() if prefix and name.startswith(prefix)), "Gymnasium")
        sections[heading].append(_preset_row(f"`{name}`", preset, common))
    for heading, rows in sections.items():
        if rows:
            parts.append("\n".join([f"## {heading}", "", *_table(*_PRESET_COLUMNS), *rows]))
    return "\n\n".join(parts) + "\n"


_PRESET_COLUMNS = ("task", "steps", "mean return", "settings")


def _preset_row(title: str, preset: presets.Preset, common: dict[str, Any]) -> str:
    own = {field: value for field, value in preset.fields.items() if common.get(field) != value}
    settings = "<br>".join(f"`{field} = {_toml(value)}`" for field, value in own.items())
    if preset.base is not None:
        settings = f"all those of `{preset.base}`"
    elif not own:
        settings = "only those of all tasks"
    status = "<br>".join(
        [preset.status.partition(": settings of")[0], *([] if preset.note is None else [cell(preset.note)])]
    )
    steps = "" if preset.total_steps is None else f"{preset.total_steps:,}"
    return f"| {title} | {steps} | {status} | {settings} |"


def _toml(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


# Helpers


def _table(*heads: str) -> list[str]:
    return [f"| {' | '.join(heads)} |", f"|{' --- |' * len(heads)}"]


def cell(value: Any) -> str:
    """Return a value as the text of a cell."""
    return html.escape(str(value), quote=False).replace("|", "\\|")


def listed(items: list[str]) -> str:
    """Join items with commas and "and"."""
    return items[0] if len(items) == 1 else f"{', '.join(items[:-1])} and {items[-1]}"
