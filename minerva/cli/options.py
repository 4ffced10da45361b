"""The options of the command line as dataclasses, parsed with tyro.

The options of `train` and `bench` are generated from the algorithm's config, with the headings of its source.
"""

from __future__ import annotations

import ast
import contextlib
import dataclasses
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

from minerva.utils.ranges import shown
from minerva.utils.schedules import Schedule
from minerva.utils.suggestions import suggest

if TYPE_CHECKING:
    from minerva.trainers.config import RunConfig

Options = TypeVar("Options")
LONGEST_VALUE = 2_000
"""Characters of a value of --env-kwargs."""


class UsageError(ValueError):
    """The command line itself is wrong."""


@dataclass(frozen=True)
class EvaluateOptions:
    """Run episodes with a trained policy and summarize their returns.

    The table gives the mean with its 95% interval (Student's), the standard deviation, the median and the interquartile
    mean (IQM).
    """

    run: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
    """Folder of a run, or a checkpoint."""
    episodes: int = 15
    """Number of episodes."""
    stochastic: bool = False
    """Sample actions from the policy instead of taking its mean."""
    best: bool = False
    """Use the checkpoint with the best evaluation instead of the last one."""
    seed: int | None = None
    """Seed of the episodes; by default the run's. They are never the episodes of the run's own evaluations."""
    device: str = "cpu"
    """Device of the networks: auto, cpu, cuda, cuda:1, …"""
    trust_env: bool = False
    """Make the environment that the checkpoint names even if that imports a module which is neither Gymnasium's nor
    Minerva's, or is given text that may name a file. Use it for checkpoints whose origin you know."""
    make_encoder: Annotated[str | None, tyro.conf.arg(metavar="MODULE:FUNCTION")] = None
    """Builds the policy's encoder, if it was trained with one of your own. The module is imported."""


@dataclass(frozen=True)
class PlotOptions:
    """Plot the learning curves of runs.

    Runs of one algorithm on one environment with the same settings count as seeds of one experiment: the plot shows
    their mean with its 95% interval.
    """

    runs: Annotated[tuple[Path, ...], tyro.conf.Positional, tyro.conf.arg(metavar="RUN...")]
    """Folders of runs, or folders in which runs are looked for, such as runs/ppo."""
    out: Path | None = None
    """File to write: PNG, SVG or PDF, according to its suffix. By default learning_curve.png in the run's folder, or
    learning_curves.png in the current folder for several runs."""
    metric: str = "eval/return_mean"
    """Metric to plot: a name in metrics.csv."""
    group_by: tuple[str, ...] = ()
    """Settings that tell experiments apart. By default all that differ between the runs and change their result, which
    workers, console, tracking, checkpoints and the frequency of evaluations do not."""
    label: tuple[str, ...] = ()
    """A label for each of the given folders, in place of algorithm and settings; its runs count as one experiment."""


@dataclass(frozen=True)
class PresetsOptions:
    """List the presets: settings by environment, the steps they are for, and what their runs reached.

    `minerva train` applies the environment's preset unless --preset names another, and a general preset (default) to an
    environment that has none. With the id of an environment, print that preset's settings as TOML, which --preset reads
    from a file.
    """

    algo: Annotated[str | None, tyro.conf.Positional, tyro.conf.arg(metavar="ALGO")] = None
    """The algorithm; by default all."""
    env: Annotated[str | None, tyro.conf.Positional, tyro.conf.arg(metavar="ID")] = None
    """The environment whose preset is printed, or default.continuous or default.discrete."""


@dataclass(frozen=True)
class EnvsOptions:
    """List the ids of the installed environments. MPO needs continuous actions; PPO and V-MPO do not."""

    pattern: tyro.conf.Positional[str] = ""
    """Show only ids that contain this."""


@dataclass(frozen=True)
class AnnotateOptions:
    """Show the formulas in comments next to the code that computes them, and check them.

    A formula is a comment `# LaTeX: FORMULA` or `# LaTeX[PAPER, EQUATION]: FORMULA`, above its line of code or at the
    end of it. A test that covers it is marked with @pytest.mark.formula("module", r"FORMULA"), or with
    "module.function" if the formula occurs more than once in the module. The source is never imported.
    """

    path: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="PATH")]
    """A Python file, a package, or a folder of them."""
    out: Annotated[Path | None, tyro.conf.arg(metavar="DIR")] = None
    """Write Markdown pages for MkDocs, with their scripts and styles, into this folder."""
    single_file: Annotated[Path | None, tyro.conf.arg(metavar="FILE")] = None
    """Write one HTML file that works offline."""
    check: bool = False
    """Fail if a formula does not parse (needs Node), has no code below it, or is not covered by a test of --tests."""
    tests: Annotated[Path | None, tyro.conf.arg(metavar="DIR")] = None
    """Folder of the tests that cover the formulas."""
    source_url: Annotated[str | None, tyro.conf.arg(metavar="URL")] = None
    """URL of the repository's files, for links to tests, such as https://github.com/me/mine/blob/main/."""


@dataclass(frozen=True)
class ResumeOptions:
    """Resume a run, with the settings that it was started with."""

    resume: Path
    """Folder of the run, or one of its checkpoints."""
    total_steps: int | None = None
    """Environment steps at which the run ends, counted from its start; by default as before. With more than before, an
    annealed learning rate follows the schedule of the longer run."""
    device: str | None = None
    """Device of the networks: auto, cpu, cuda, cuda:1, …; by default as before."""
    address: str | None = None
    """Address of the Ray cluster for a run with rollout workers, HOST:PORT; by default as before."""
    trust_env: bool = False
    """Make the environment that the checkpoint names even if that imports a module which is neither Gymnasium's nor
    Minerva's, or is given text that may name a file. Use it for checkpoints whose origin you know."""
    make_encoder: Annotated[str | None, tyro.conf.arg(metavar="MODULE:FUNCTION")] = None
    """Builds the policy's encoder, if it was trained with one of your own. The module is imported."""


class Setting(typing.NamedTuple):
    """The name, type and help text of a config field."""

    name: str
    kind: Any
    help: str


def setting_groups(config: type[RunConfig]) -> dict[str, list[Setting]]:
    """Read a config's fields and their docstrings from its source, grouped by heading."""
    kinds = typing.get_type_hints(config)
    groups: dict[str, list[Setting]] = {}
    for owner in config.__mro__:  # the fields of the algorithm itself come first
        if not dataclasses.is_dataclass(owner):
            continue
        source = inspect.getsource(owner)
        headings = {k: m[1] for k, line in enumerate(source.splitlines()) if (m := re.fullmatch(r"    # (.+)", line))}
        (tree,) = ast.parse(source).body
        assert isinstance(tree, ast.ClassDef)
        for field, below in zip(tree.body, tree.body[1:], strict=False):
            if not isinstance(field, ast.AnnAssign) or not isinstance(field.target, ast.Name):
                continue
            if any(field.target.id == setting.name for settings in groups.values() for setting in settings):
                continue  # the algorithm has a default of its own
            heading = next((headings[k] for k in range(field.lineno - 1, -1, -1) if k in headings), "Settings")
            text = ""
            if isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant):
                text = " ".join(str(below.value.value).split())
            groups.setdefault(heading.lower(), []).append(Setting(field.target.id, kinds[field.target.id], text))
    return groups


def train_options(groups: dict[str, list[Setting]], defaults: RunConfig, total_steps: int) -> type[Any]:
    """Build the options of `train`: those of a run, then each group of settings under its heading."""
    own: list[RunOption] = [
        ("out_dir", Path | None, None, "The run's folder; by default runs/ALGO/ENV/TIME-seedN.", "DIR"),
        ("seeds", str | None, None, "Train one run for each of these seeds, such as 1-5 or 1,3,7-9.", "SEEDS"),
        ("jobs", int | None, None, "With --seeds: runs at once; by default as many as there are cores.", "INT"),
        (
            "resume_or_start",
            bool,
            False,
            "Resume the run that --out-dir holds, or start it where there is none. Its algorithm, environment, seed "
            "and settings must be these, and --total-steps may be larger; a finished run is done at once.",
            None,
        ),
    ]
    steps = ("total_steps", int, total_steps, "Environment steps to train for, summed over all environments.", "INT")
    return _with_settings("TrainOptions", [*_run_options(steps), *own], groups, defaults)


def bench_options(groups: dict[str, list[Setting]], defaults: RunConfig, total_steps: int) -> type[Any]:
    """Build the options of `bench`: those of a run and of the measurement, then the settings as for `train`."""
    about_steps = "Length of the run to measure for; it decides whether updates are compiled."
    own: list[RunOption] = [
        ("seconds", float | None, None, "Seconds to measure, after a warm-up; 20 by default.", "FLOAT"),
        ("steps", int | None, None, "Environment steps to measure instead of seconds, rounded up to rollouts.", "INT"),
        ("json", Path | None, None, "Write the results, versions, hardware, commit and settings to this file.", "FILE"),
    ]
    steps = ("total_steps", int, total_steps, about_steps, "INT")
    return _with_settings("BenchOptions", [*_run_options(steps), *own], groups, defaults)


PRESET_HELP = (
    "By default the environment's own preset or, without one, the algorithm's general preset. Otherwise another "
    "environment's id, default for the general preset, none for no preset, or a TOML file with fields "
    "and total_steps, at its top level or in one table."
)

RunOption = tuple[str, Any, Any, str, str | None]
"""Name, type, default, help and metavar."""


def _run_options(total_steps: RunOption) -> list[RunOption]:
    return [
        ("env", str, "", "A Gymnasium id, or dm_control/DOMAIN/TASK; `minerva envs` lists them.", "ID"),
        ("preset", str | None, None, PRESET_HELP, "{ID,default,none,FILE.toml}"),
        total_steps,
        ("seed", int, 42, "Seed from which all random generators of the run are spawned.", "INT"),
        ("device", str, "auto", "Device of the networks: auto, cpu, cuda, cuda:1, …", "NAME"),
        (
            "make_encoder", str | None, None,
            "Function that builds your own encoder, for PPO and V-MPO. The module is imported.", "MODULE:FUNCTION",
        ),
        ("init_from", Path | None, None, "Start with the policy of another run (a folder or a checkpoint).", "RUN"),
    ]  # fmt: skip


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
    elif kind in (Schedule, Schedule | None):  # functions cannot be written on a command line
        kind = float | str if kind == Schedule else float | str | None
        metavar = "FLOAT|{lin,cos,exp,const}_FLOAT" + "|None" * (kind == float | str | None)
    return name, Annotated[kind, tyro.conf.arg(help=text, metavar=metavar)], default


def parse(options: type[Options], prog: str, arguments: list[str], description: str | None = None) -> Options:
    """Parse options with tyro and turn its errors (a box of several lines) into one line.

    Raises:
        UsageError: The options are invalid.
        SystemExit: The help text was requested and has been printed.
    """
    stderr = io.StringIO()
    try:
        with contextlib.redirect_stderr(stderr):
            parsed, unknown = tyro.cli(
                options, prog=prog, args=arguments, description=description, return_unknown_args=True
            )
    except SystemExit as end:
        if not end.code:
            raise
        raise UsageError(f"{_text_of_box(stderr.getvalue())} See `{prog} --help`.") from None
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
    """Return a question that suggests the known options or commands that were meant, or an empty string."""
    names = {option.lstrip("-").replace("-", "_"): option for option in known}
    near = [names[name] for name in suggest(word.split("=")[0].lstrip("-").replace("-", "_"), list(names))]
    return f" Did you mean {' or '.join(near)}?" if near else ""


def value_of(flag: str, arguments: list[str]) -> str | None:
    """Return the value of a flag before parsing, because the preset that it names gives the defaults."""
    return next(iter(values_of(flag, arguments)), None)


def values_of(flag: str, arguments: list[str]) -> list[str]:
    """Return the values of a flag before parsing; none if it is not there."""
    for k, word in enumerate(arguments):
        if word.startswith(f"{flag}="):
            return [word.removeprefix(f"{flag}=")]
        if word == flag:
            return list(itertools.takewhile(lambda value: not value.startswith("--"), arguments[k + 1 :]))
    return []


def given_names(arguments: list[str]) -> list[str]:
    """Return the names of the fields that the arguments set, and of some that are none."""
    flags = [word.removeprefix("--").partition("=")[0].replace("-", "_") for word in arguments if word.startswith("--")]
    return [name for flag in flags for name in (flag, flag.removeprefix("no_"))]


def key_values(pairs: Sequence[str]) -> dict[str, Any]:
    """Parse KEY=VALUE pairs; values are Python literals (numbers, True, lists) or text.

    Raises:
        UsageError: An argument is not such a pair.
    """
    values: dict[str, Any] = {}
    for pair in pairs:
        key, equals, text = pair.partition("=")
        if not (key and equals):
            raise UsageError(f"--env-kwargs: must be KEY=VALUE, such as frame_skip=2; got {shown(pair)}.")
        try:
            if len(text) > LONGEST_VALUE:  # Python's own parser may crash on a long text of brackets or signs
                raise MemoryError
            values[key] = ast.literal_eval({"true": "True", "false": "False"}.get(text, text))
        except (ValueError, SyntaxError):
            values[key] = text
        except (TypeError, MemoryError, RecursionError):
            raise UsageError(f"--env-kwargs: {key}: must be a value that Python can read, got {shown(text)}.") from None
    return values
