"""What may be written on the command line: options as dataclasses, and reading them with tyro.

The options of `train` and `bench` are made of the algorithm's config, under the headings of its source.
"""

from __future__ import annotations

import ast
import contextlib
import dataclasses
import difflib
import inspect
import io
import itertools
import re
import typing
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import tyro

from minerva.utils.schedules import Schedule

if TYPE_CHECKING:
    from minerva.trainers.config import RunConfig

Options = TypeVar("Options")


class UsageError(ValueError):
    """The command line itself is wrong."""


@dataclass(frozen=True)
class EvaluateOptions:
    """Run episodes with a trained policy and summarize their returns.

    The table gives the mean with its bootstrap 95% interval, the standard deviation, the median and the interquartile
    mean (IQM).
    """

    run: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
    """Folder of a run, or a checkpoint."""
    episodes: int = 15
    """How many episodes."""
    stochastic: bool = False
    """Sample the policy's actions instead of taking its mean."""
    best: bool = False
    """Take the checkpoint with the best evaluation instead of the last one."""
    seed: int | None = None
    """Seed of the episodes; by default those that the run itself was evaluated on."""
    device: str = "cpu"
    """Where the networks run: auto, cpu, cuda, cuda:1, …"""


@dataclass(frozen=True)
class PlotOptions:
    """Draw the learning curves of runs.

    Runs of one algorithm on one environment are taken as seeds of one experiment: their mean is drawn with its 95%
    interval.
    """

    runs: Annotated[tuple[Path, ...], tyro.conf.Positional, tyro.conf.arg(metavar="RUN...")]
    """Folders of runs."""
    out: Path | None = None
    """File to write: PNG, SVG or PDF by its suffix. By default learning_curve.png in the run's folder, or
    learning_curves.png here for several runs."""
    metric: str = "eval/return_mean"
    """What to draw: a name that metrics.csv holds."""


@dataclass(frozen=True)
class PresetsOptions:
    """List the presets: settings that are known to work, with the steps they are for.

    `minerva train` applies an environment's preset unless told otherwise with --preset.
    """

    algo: tyro.conf.Positional[str | None] = None
    """The algorithm; all of them by default."""


@dataclass(frozen=True)
class EnvsOptions:
    """List the ids of environments that are installed here. Minerva trains on those with continuous actions."""

    pattern: tyro.conf.Positional[str] = ""
    """Show only ids that contain this."""


@dataclass(frozen=True)
class AnnotateOptions:
    """Show the formulas in comments beside the code that computes them, and check them.

    A formula is a comment `# LaTeX: FORMULA` or `# LaTeX[PAPER, EQUATION]: FORMULA`, above its line of code or at the
    end of it. A test claims one with @pytest.mark.formula("module", r"FORMULA"), and one that stands more than once in
    its module with "module.function". The source is never imported.
    """

    path: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="PATH")]
    """A Python file, a package, or a folder of them."""
    out: Annotated[Path | None, tyro.conf.arg(metavar="DIR")] = None
    """Write Markdown pages for MkDocs, with what they need, into this folder."""
    single_file: Annotated[Path | None, tyro.conf.arg(metavar="FILE")] = None
    """Write one HTML file that opens offline."""
    check: bool = False
    """Fail where a formula does not parse (which needs Node), has no code under it, or no test of --tests covers it."""
    tests: Annotated[Path | None, tyro.conf.arg(metavar="DIR")] = None
    """Folder of the tests that cover the formulas."""
    source_url: Annotated[str | None, tyro.conf.arg(metavar="URL")] = None
    """Where the files can be read, for links to tests, such as https://github.com/me/mine/blob/main/."""


@dataclass(frozen=True)
class ResumeOptions:
    """Go on with a run, with the settings that it was started with."""

    resume: Path
    """Folder of the run, or one of its checkpoints."""
    total_steps: int | None = None
    """Environment steps at which the run ends, counted from its start; by default as before. With more than before, an
    annealed learning rate follows the line of the longer run."""
    device: str | None = None
    """Where the networks run: auto, cpu, cuda, cuda:1, …; by default as before."""


class Setting(typing.NamedTuple):
    """A field of a config, as the command line shows it."""

    name: str
    kind: Any
    help: str


def setting_groups(config: type[RunConfig]) -> dict[str, list[Setting]]:
    """Read a config's fields and their docstrings from its source, by the headings that they stand under."""
    kinds = typing.get_type_hints(config)
    groups: dict[str, list[Setting]] = {}
    for owner in config.__mro__:  # what is the algorithm's own comes first
        if not dataclasses.is_dataclass(owner):
            continue
        source = inspect.getsource(owner)
        headings = {k: m[1] for k, line in enumerate(source.splitlines()) if (m := re.fullmatch(r"    # (.+)", line))}
        (tree,) = ast.parse(source).body
        assert isinstance(tree, ast.ClassDef)
        for field, below in zip(tree.body, tree.body[1:], strict=False):
            if not isinstance(field, ast.AnnAssign) or not isinstance(field.target, ast.Name):
                continue
            heading = next((headings[k] for k in range(field.lineno - 1, -1, -1) if k in headings), "Settings")
            text = ""
            if isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant):
                text = " ".join(str(below.value.value).split())
            groups.setdefault(heading.lower(), []).append(Setting(field.target.id, kinds[field.target.id], text))
    return groups


def train_options(groups: dict[str, list[Setting]], defaults: RunConfig, total_steps: int) -> type[Any]:
    """Make the options of `train`: those of a run, then each group of settings under its heading."""
    out_dir = ("out_dir", Path | None, None, "The run's folder; by default runs/ALGO/ENV/TIME-seedN.", "DIR")
    steps = ("total_steps", int, total_steps, "Environment steps to train for, of all environments together.", "INT")
    return _with_settings("TrainOptions", [*_run_options(steps), out_dir], groups, defaults)


def bench_options(groups: dict[str, list[Setting]], defaults: RunConfig, total_steps: int) -> type[Any]:
    """Make the options of `bench`: those of a run and how long to measure, then the settings as for `train`."""
    about_steps = "Steps of the run that this would be the beginning of: by them it is decided what is compiled."
    own: list[RunOption] = [
        ("seconds", float | None, None, "How long to measure, after a warm-up; None for 20.", "FLOAT"),
        ("steps", int | None, None, "Environment steps to measure in place of seconds, or a few more.", "INT"),
        ("json", Path | None, None, "Write the numbers with versions, hardware, commit and settings.", "FILE"),
    ]
    steps = ("total_steps", int, total_steps, about_steps, "INT")
    return _with_settings("BenchOptions", [*_run_options(steps), *own], groups, defaults)


RunOption = tuple[str, Any, Any, str, str]
"""Name, type, default, help and metavar."""


def _run_options(total_steps: RunOption) -> list[RunOption]:
    return [
        ("env", str, "", "A Gymnasium id, or dm_control/DOMAIN/TASK; `minerva envs` lists them.", "ID"),
        ("preset", str | None, None, "Preset to use: another environment's id, or none for no preset.", "ID"),
        total_steps,
        ("seed", int, 42, "Every generator of the run is spawned from it; environment i gets seed + i.", "INT"),
        ("device", str, "auto", "Where the networks run: auto, cpu, cuda, cuda:1, …", "NAME"),
        ("init_from", Path | None, None, "Start with the policy of another run (a folder or a checkpoint).", "RUN"),
    ]


def _with_settings(
    name: str, options: list[RunOption], groups: dict[str, list[Setting]], defaults: RunConfig
) -> type[Any]:
    fields: list[tuple[str, Any, Any]] = [_option(*option) for option in options]
    for heading, settings in groups.items():
        members = [_option(s.name, s.kind, getattr(defaults, s.name), s.help) for s in settings]
        group = dataclasses.make_dataclass(heading, members, frozen=True, kw_only=True)
        group.__doc__ = None
        fields.append((heading, Annotated[group, tyro.conf.OmitArgPrefixes], dataclasses.field(default_factory=group)))
    return dataclasses.make_dataclass(name, fields, frozen=True, kw_only=True)


def _option(name: str, kind: Any, default: Any, text: str, metavar: str | None = None) -> tuple[str, Any, Any]:
    if typing.get_origin(kind) is dict:
        kind, default = tuple[str, ...], tuple(f"{key}={value}" for key, value in default.items())
        metavar = "KEY=VALUE ..."
    elif kind in (Schedule, Schedule | None):  # all but the functions, which cannot be written here
        kind = float | str if kind == Schedule else float | str | None
        metavar = "FLOAT|{lin,cos,exp,const}_FLOAT" + "|None" * (kind == float | str | None)
    return name, Annotated[kind, tyro.conf.arg(help=text, metavar=metavar)], default


def parse(options: type[Options], prog: str, arguments: list[str], description: str | None = None) -> Options:
    """Read options with tyro, whose errors (a box of several lines) become one line.

    Raises:
        UsageError: They cannot be read.
        SystemExit: Help was asked for, and has been printed.
    """
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said):
            parsed, unknown = tyro.cli(
                options, prog=prog, args=arguments, description=description, return_unknown_args=True
            )
    except SystemExit as end:
        if not end.code:
            raise
        raise UsageError(f"{_text_of_box(said.getvalue())} See `{prog} --help`.") from None
    if unknown:
        near = near_matches(unknown[0], _flags(options)) if unknown[0].startswith("-") else ""
        raise UsageError(f"{unknown[0]}: not an option of `{prog}`.{near} See `{prog} --help`.")
    return parsed


def _text_of_box(box: str) -> str:
    lines = [line.strip("│ ") for line in box.splitlines()[1:]]
    above_rule = lines[: next((k for k, line in enumerate(lines) if line.startswith("──")), -1)]
    return " ".join(line for line in above_rule if line).rstrip(".") + "."


def _flags(options: type[Any]) -> list[str]:
    flags: list[str] = []
    for field in dataclasses.fields(options):
        kind = typing.get_args(field.type)[0] if typing.get_origin(field.type) is Annotated else field.type
        flags += (
            _flags(kind)
            if isinstance(kind, type) and dataclasses.is_dataclass(kind)
            else [f"--{field.name.replace('_', '-')}"]
        )
    return flags


def near_matches(word: str, known: Sequence[str]) -> str:
    """Ask whether a word close to the one given was meant; empty where none is."""
    near = difflib.get_close_matches(word.split("=")[0], known, n=3)
    return f" Did you mean {' or '.join(near)}?" if near else ""


def value_of(flag: str, arguments: list[str]) -> str | None:
    """Look a flag's value up before parsing: the preset that it names gives the defaults to parse with."""
    for word, following in itertools.pairwise([*arguments, ""]):
        if word == flag:
            return following or None
        if word.startswith(f"{flag}="):
            return word.removeprefix(f"{flag}=")
    return None


def key_values(pairs: Sequence[str]) -> dict[str, Any]:
    """Read KEY=VALUE pairs; values are Python's (numbers, True, lists), or else text.

    Raises:
        UsageError: One is not such a pair.
    """
    values: dict[str, Any] = {}
    for pair in pairs:
        key, equals, text = pair.partition("=")
        if not (key and equals):
            raise UsageError(f"--env-kwargs: must be KEY=VALUE, such as frame_skip=2; got {pair!r}.")
        try:
            values[key] = ast.literal_eval({"true": "True", "false": "False"}.get(text, text))
        except (ValueError, SyntaxError):
            values[key] = text  # a plain word needs no quotes
    return values
