"""The commands `minerva train`, `sweep`, `tune`, `status`, `bench`, `evaluate`, `plot`, `presets`, `envs`, `annotate`.

Heavy packages are imported only by the commands that need them, so that help and error messages appear at once.
"""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
import json
import os
import shlex
import sys
import time
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from minerva import __version__, api
from minerva.cli import sweep, tune
from minerva.cli.encoders import encoder_argument, find_function, repeated
from minerva.cli.manual import BENCH_MANUAL, MANUAL, TRAIN_MANUAL
from minerva.cli.options import (
    AnnotateOptions,
    EnvsOptions,
    EvaluateOptions,
    PlotOptions,
    PresetsOptions,
    ResumeOptions,
    UsageError,
    bench_options,
    given_names,
    key_values,
    near_matches,
    parse,
    setting_groups,
    train_options,
    value_of,
    values_of,
)
from minerva.cli.trust import refuse_custom, require_trust, trust_needed
from minerva.trainers.config import DEFAULT_TOTAL_STEPS, MAX_ENVS
from minerva.utils.parent import end_with_parent
from minerva.utils.ranges import LARGEST_INT, SMALLEST_FLOAT, Range, number, whole_number
from minerva.utils.ranks import is_silent

if TYPE_CHECKING:
    from minerva.trainers.config import RunConfig
    from minerva.trainers.trainer import Trainer

__all__ = ["main"]

EPISODES_LISTED = 20
"""Up to this number of episodes, `evaluate` lists each one; above it, only the summary."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command and return its exit status.

    Args:
        argv: Arguments after the name of the program; by default those of this process.
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    if is_silent():
        with Path(os.devnull).open("w") as nowhere, contextlib.redirect_stdout(nowhere):
            return _run_command(arguments)
    return _run_command(arguments)


def _run_command(arguments: list[str]) -> int:
    with warnings.catch_warnings():
        warnings.showwarning = lambda message, *_, **__: _print_line(f"warning: {message}")
        try:
            return _dispatch(arguments)
        except BrokenPipeError:  # the reader closed the pipe, as in `minerva envs | head`
            with contextlib.suppress(OSError, ValueError):
                os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return 1
        except ValueError as error:
            _print_error(error)
            return 2
        except (OSError, FloatingPointError) as error:
            _print_error(error)
            return 1
        except (RuntimeError, MemoryError) as error:
            from minerva.utils.hardware import is_out_of_memory

            if is_out_of_memory(error):
                error = MemoryError(f"memory: there is not enough ({error}); choose smaller settings.")
            elif not _is_environment_failure(error):
                raise
            _print_error(error)
            return 1
        except KeyboardInterrupt:
            return 130
        except SystemExit as end:
            return end.code if isinstance(end.code, int) else 0


def _dispatch(arguments: list[str]) -> int:
    algorithms = " or ".join(api.ALGORITHMS)
    command, *rest = arguments or ["--help"]
    if command in ("-h", "--help", "help"):
        print(MANUAL.format(algorithms=algorithms), end="")
    elif command in ("-V", "--version"):
        print(f"minerva {__version__}")
    elif command in ("train", "bench"):
        manual, run = (TRAIN_MANUAL, _train_or_resume) if command == "train" else (BENCH_MANUAL, _bench)
        if rest and rest[0] not in ("-h", "--help"):
            return run(rest)
        print(manual.format(algorithms=algorithms), end="")
        return 0 if rest else 2
    elif command in _COMMANDS:
        options, action = _COMMANDS[command]
        return action(parse(options, f"minerva {command}", rest)) or 0
    else:
        near = near_matches(command, ["train", "bench", *_COMMANDS])
        raise UsageError(f"{command!r} is not a command.{near} See `minerva --help`.")
    return 0


# train


def _train_or_resume(arguments: list[str]) -> int:
    algo = None if arguments[0].startswith("-") else arguments[0]
    rest = arguments if algo is None else arguments[1:]
    if algo is not None:
        api.config_class(algo)
    if any(word == "--resume" or word.startswith("--resume=") for word in rest):
        return _resume(algo, parse(ResumeOptions, "minerva train", rest))
    if algo is None:
        raise UsageError(f"train: give an algorithm ({', '.join(api.ALGORITHMS)}) first, or a run to --resume.")
    return _train(algo, rest)


def _train(algo: str, arguments: list[str]) -> int:
    run = _parse_run("train", algo, arguments)
    if run.options.seeds is not None:
        if run.encoder:
            raise UsageError("--make-encoder: cannot be combined with --seeds, got both; train one seed at a time.")
        return sweep.train_seeds(algo, run.options, run.given, arguments)
    if run.options.jobs is not None:
        raise UsageError(f"--jobs: is for several runs, got {run.options.jobs} for one; add --seeds 1-5.")
    end_with_parent()
    options, start = run.options, Path.cwd()  # an environment may change the current folder
    found = sweep.find_run(algo, options, run.config) if options.resume_or_start else None
    if found is not None and found.finished:
        print(f"Run        {options.out_dir} is finished: it has taken all its {found.env_steps:,} steps.")
        return 0
    trainer = api.make_trainer(algo, options.env, options.seed, options.device, run.config, **run.encoder)
    trainer.notes.extend(api.notes_of(run.settings, options.seed))
    try:
        if found is not None:
            trainer.load(_seen_from(start, options.out_dir))
        elif options.init_from is not None:
            trainer.init_from(_seen_from(start, options.init_from))
        folder = options.out_dir or trainer.default_folder()
        return _run(trainer, options.total_steps, folder, start, repeated(options.make_encoder))
    finally:
        trainer.close()


class _RunSpec(NamedTuple):
    options: Any
    config: RunConfig
    given: dict[str, Any]  # the settings that the command line has
    settings: api.Settings
    encoder: dict[str, Any]  # the argument that builds the user's own


def _parse_run(command: str, algo: str, arguments: list[str]) -> _RunSpec:
    """Parse the options of `train` or `bench`, with the preset's values as defaults."""
    config_class = api.config_class(algo)
    env, preset = value_of("--env", arguments) or "", value_of("--preset", arguments)
    settings = api.preset_settings(algo, env, preset, key_values(values_of("--env-kwargs", arguments)))
    groups = setting_groups(config_class)
    options_of = train_options if command == "train" else bench_options
    options = parse(
        options_of(groups, config_class.from_fields(None, settings.fields), settings.total_steps),
        f"minerva {command} {algo}",
        arguments,
        description=f"{inspect.getdoc(config_class)}\n\nThe defaults shown are those of the environment's "
        "preset, or of the general preset of tasks that have none. If --num-envs is given without --rollout-steps, "
        "rollouts keep about the size that they have in the preset.",
    )
    if not options.env:
        raise UsageError("--env: give an environment id, such as --env HalfCheetah-v5; `minerva envs` lists them.")
    fields = {s.name: getattr(getattr(options, group), s.name) for group, members in groups.items() for s in members}
    fields["env_kwargs"] = key_values(fields["env_kwargs"])
    given = {name: fields[name] for name in given_names(arguments) if name in fields}
    settings = settings.fitted(config_class, given)
    config = config_class.from_fields(None, {**fields, **settings.fields})
    encoder = encoder_argument(options.make_encoder, config)
    if encoder:
        config = config_class.from_fields(config, {"encoder": "custom"})
    return _RunSpec(options, config, given, settings, encoder)


def _resume(algo: str | None, options: ResumeOptions) -> int:
    from minerva import checkpointing
    from minerva.trainers.saved import SavedRun

    path, checkpoint, _ = checkpointing.look_up(options.resume)
    made_by: str = checkpoint["algorithm"]
    if (algo or made_by) != made_by or made_by not in api.ALGORITHMS:
        raise checkpointing.CheckpointError(
            f"checkpoint: {path} was written by {made_by}, not by {algo or ' or '.join(api.ALGORITHMS)}; "
            + (f"use `minerva train --resume {path}`." if made_by in api.ALGORITHMS else "update Minerva to use it.")
        )
    env_id: str = checkpoint["env_id"]
    refuse_custom(env_id, f'{api.trainer_class(made_by).__name__}(your_factory, …).load("{options.resume}")')
    saved = SavedRun.read(path, checkpoint, api.config_class(made_by))
    require_trust(saved.env_id, saved.config, options.trust_env)
    total_steps = options.total_steps or saved.run.total_steps or DEFAULT_TOTAL_STEPS
    taken = saved.run.env_steps
    if total_steps < taken:
        raise UsageError(f"--total-steps: must be at least {taken}, the steps taken so far, got {total_steps}.")
    config = saved.config
    if options.address is not None:
        config = dataclasses.replace(config, address=options.address)
    encoder = encoder_argument(options.make_encoder, config, saved=True)
    api.Policy(path, checkpoint, **encoder)  # refuses settings of far larger networks than the weights are of
    start = Path.cwd()  # an environment may change it
    trainer = api.make_trainer(made_by, env_id, saved.seed, options.device or saved.device, config, **encoder)
    try:
        trainer.load(_seen_from(start, options.resume))
        return _run(trainer, total_steps, path.parent, start, repeated(options.make_encoder))
    finally:
        trainer.close()


def _run(trainer: Trainer, total_steps: int, folder: Path, start: Path, encoder: str) -> int:
    from minerva.utils.folder_lock import FolderLostError

    last, taken = folder / f"{trainer.algorithm}_last.pt", trainer.env_steps
    try:
        result = trainer.train(total_steps, out_dir=_seen_from(start, folder))
    except BaseException as error:
        started = trainer.env_steps > taken or not isinstance(error, ValueError)  # otherwise: a user's mistake
        if started and not isinstance(error, FolderLostError) and (start / last).exists():
            consent = " --trust-env" if trust_needed(trainer.env_name, trainer.config, ()) is not None else ""
            count = trainer.ranks.count
            program = "minerva" if count == 1 else f"torchrun --nproc-per-node {count} -m minerva"
            print(f"Resume with: {program} train --resume {shlex.quote(str(folder))}{consent}{encoder}", flush=True)
        raise
    if (start / last).exists():
        print(f"\n{dataclasses.replace(result, out_dir=folder).summary()}")  # the folder as it was given
    if result.env_steps == taken > 0:
        print("The run has already taken all its steps; give a larger --total-steps to continue.")
    return 0


def _seen_from(start: Path, path: Path) -> Path:
    """Return a path that was given in one folder so that it is valid in the current one; as it was given, if it is."""
    return path if Path.cwd() == start else start / path


# bench


def _bench(arguments: list[str]) -> int:
    begin = time.perf_counter()
    algo, *rest = arguments
    if algo.startswith("-"):
        raise UsageError(f"bench: give an algorithm ({', '.join(api.ALGORITHMS)}) first, got {algo}.")
    run = _parse_run("bench", algo, rest)
    options = run.options
    _check_bench(options)

    from rich.console import Console

    from minerva.bench import SECONDS, bench

    api.trainer_class(algo)  # imports its modules now, so that this does not count as set-up time

    def make_trainer(config: RunConfig) -> Trainer:
        trainer = api.make_trainer(algo, options.env, options.seed, options.device, config, **run.encoder)
        trainer.notes.extend(run.settings.notes)
        if options.init_from is not None:
            with trainer.close_envs_on_error():
                trainer.init_from(options.init_from)
        return trainer

    console = Console()
    with console.status("Measuring, after a warm-up to the first update (compiling may take a minute)"):
        result = bench(
            make_trainer, run.config, options.total_steps, options.seconds or SECONDS, options.steps, begin=begin
        )
    console.print(result.table())
    for note in result.notes:
        console.print(note, style="dim", highlight=False, markup=False)
    if options.json is not None:
        options.json.write_text(json.dumps(result.to_plain(), indent=2, default=str) + "\n")
    return 0


def _check_bench(options: Any) -> None:
    if options.seconds is not None:
        number("--seconds", options.seconds, Range(SMALLEST_FLOAT, 86_400, "be greater than 0"))  # at most a day
    if options.steps is not None:
        whole_number("--steps", options.steps, Range(1, LARGEST_INT))
    if options.steps is not None and options.seconds is not None:
        raise UsageError("--steps: cannot be combined with --seconds, got both; give one of them.")
    if options.json is not None and (options.json.is_dir() or not options.json.parent.is_dir()):
        raise UsageError(f"--json: must be a file in an existing folder, got {options.json}.")


# The other commands


def _evaluate(options: EvaluateOptions) -> None:
    whole_number("--episodes", options.episodes, Range(1, MAX_ENVS))  # an environment for each
    which: Literal["best", "last"] = "best" if options.best else "last"
    policy = api.load(options.run, options.device, which, find_function(options.make_encoder))
    encoder_argument(options.make_encoder, policy.config, saved=True)  # a policy without one ignores it
    refuse_custom(policy.env_id, f'minerva.load("{options.run}").act(observation) in your environment')
    require_trust(policy.env_id, policy.config, options.trust_env)

    from rich.console import Console

    from minerva import environments
    from minerva.evaluation import Evaluator
    from minerva.report.statistics import summarize
    from minerva.report.tables import episodes_table, evaluation_table

    config, seed = policy.config, policy.seed if options.seed is None else options.seed
    factory = environments.resolve(policy.env_id, config.env_kwargs)
    tolerant = api.trainer_class(policy.algorithm).drops_non_finite
    # Other episodes than those of the run's own evaluations, on which the best checkpoint was chosen.
    evaluator = Evaluator(factory, options.episodes, seed, config.eval_max_steps, tolerant, stream="evaluate")
    try:
        evaluation = evaluator.run(lambda obs: policy.act_flat(obs, deterministic=not options.stochastic))
    finally:
        evaluator.close()
    how = "sampled actions" if options.stochastic else "mean actions"
    title = f"{policy.algorithm} on {policy.env_id}, {policy.path.name} at step {policy.env_steps:,}, {how}"
    console = Console()
    if options.episodes <= EPISODES_LISTED:
        console.print(episodes_table(evaluation.returns.tolist(), evaluation.lengths.tolist()))
    console.print(evaluation_table(summarize(evaluation.returns), title))


def _plot(options: PlotOptions) -> None:
    if not options.runs:
        raise UsageError("plot: give the folder of at least one run, such as runs/ppo/HalfCheetah-v5/*.")
    if options.label and len(options.label) != len(options.runs):
        raise UsageError(f"label: must be one per folder, {len(options.runs)}, got {len(options.label)}.")
    from minerva.report.curves import plot_curves
    from minerva.report.runs import find_runs, read_run

    found = {run.resolve(): (run, k) for k, folder in enumerate(options.runs) for run in find_runs(folder)}
    records = [read_run(run) for run, _ in found.values()]
    labels = [options.label[k] for _, k in found.values()] if options.label else None
    default = records[0].folder / "learning_curve.png" if len(records) == 1 else Path("learning_curves.png")
    out = options.out or default
    print(plot_curves(records, out, options.metric, group_by=options.group_by or None, labels=labels))


def _presets(options: PresetsOptions) -> None:
    from minerva.presets import algorithms_with_presets, find_preset, load_defaults, load_presets, to_toml

    if options.env is not None:
        print(to_toml(find_preset(str(options.algo), options.env)), end="")
        return
    names = [options.algo] if options.algo is not None else algorithms_with_presets()
    for k, algo in enumerate(names):
        rows = [*load_presets(algo).values(), *load_defaults(algo).values()]
        width = max(len(preset.name) for preset in rows)
        print(f"{algo:<{width}}  {'steps':>10}  mean return after them [95% interval]")
        for preset in rows:
            steps = "" if preset.total_steps is None else f"{preset.total_steps:,}"
            print(f"{preset.name:<{width}}  {steps:>10}  {preset.status}")
        print("" if k < len(names) - 1 else "\n`minerva presets ALGO ID` prints the settings of one.")


def _envs(options: EnvsOptions) -> None:
    from minerva.environments import known_ids, unlisted_ids

    ids, unlisted = known_ids(options.pattern), unlisted_ids()
    note = f"Not listed, because a package is not installed: {'; '.join(unlisted)}." if unlisted else ""
    if not ids:
        raise UsageError(f"envs: no id contains {options.pattern!r}; `minerva envs` lists all ids. {note}".rstrip())
    print("\n".join(ids))
    if note:
        print(note, file=sys.stderr)


def _annotate(options: AnnotateOptions) -> int:
    from minerva import annotate

    if options.out is None and options.single_file is None and not options.check:
        raise UsageError("annotate: give --out DIR, --single-file FILE or --check.")
    if options.check and annotate.find_node() is None:
        raise UsageError("--check: needs Node to run KaTeX, but Node was not found; install nodejs.")
    report = annotate.examine(options.path, options.tests)
    annotate.refuse_places(report, options.out, options.single_file)
    if options.out is not None:
        annotate.write_pages(report, options.out, options.source_url)
        print(f"Pages      {options.out}")
        print(f"           extra_css in mkdocs.yml: {', '.join(annotate.STYLESHEETS)} (in that folder)")
        print(f"           extra_javascript: {', '.join(annotate.SCRIPTS)}")
    if options.single_file is not None:
        annotate.write_single_file(report, options.single_file, options.source_url)
        print(f"Page       {options.single_file}")
    problems = [*report.problems, *(report.uncovered if options.check else ())]
    for problem in problems:
        print(problem, file=sys.stderr)
    print(report.summary)
    return 1 if problems else 0


_COMMANDS: dict[str, tuple[type[Any], Callable[[Any], int | None]]] = {
    "sweep": (sweep.SweepOptions, sweep.sweep),
    "tune": (tune.TuneOptions, tune.tune),
    "status": (sweep.StatusOptions, sweep.status),
    "evaluate": (EvaluateOptions, _evaluate),
    "plot": (PlotOptions, _plot),
    "presets": (PresetsOptions, _presets),
    "envs": (EnvsOptions, _envs),
    "annotate": (AnnotateOptions, _annotate),
}


# Helpers


def _is_environment_failure(error: Exception) -> bool:
    # Not imported here: if the module is not loaded, nothing can have raised this error.
    module = sys.modules.get("minerva.environments.base")
    return module is not None and isinstance(error, module.EnvironmentFailureError)


def _print_error(error: BaseException) -> None:
    text = str(error)
    if isinstance(error, OSError) and error.strerror:  # leaves out the error number
        text = f"{error.strerror}: {error.filename}" if error.filename else error.strerror
    _print_line(text)


def _print_line(text: str) -> None:
    if not is_silent():
        print(f"minerva: {' '.join(text.split())}", file=sys.stderr)
