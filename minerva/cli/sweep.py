"""`minerva sweep`, `minerva status`, and `minerva train --seeds`: many runs from one command."""

from __future__ import annotations

import json
import re
import shlex
import signal
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro

from minerva import api
from minerva.cli.options import UsageError, value_of

if TYPE_CHECKING:
    from minerva.sweeps.sweep import Sweep, SweepResult
    from minerva.trainers.config import RunConfig
    from minerva.trainers.resuming import FoundRun


@dataclass(frozen=True)
class SweepOptions:
    """Train many runs: algorithms, environments, seeds, and a grid or a list of settings, from a TOML file.

    Each run has a folder OUT/ALGO/ENV/VARIANT/seedK, in which it is started or resumed: started twice, a sweep trains
    only what is missing. Ctrl-C saves and stops all. Exit code 1 if a run failed.
    """

    spec: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="SPEC.toml")]
    """The specification: algorithms, envs, seeds, total_steps, preset, [settings], [grid] or [[variants]],
    [resources]."""
    out: Annotated[Path | None, tyro.conf.arg(metavar="DIR")] = None
    """The sweep's folder; by default runs/NAME."""
    on: Literal["local", "ray"] = "local"
    """Where the runs are: processes of this machine, or tasks of a Ray cluster."""
    jobs: int | None = None
    """Runs at once; by default as many as there are cores for."""
    address: str | None = None
    """Address of the Ray cluster, HOST:PORT; by default the one that this machine belongs to."""
    retries: int = 2
    """How often a run is resumed that has failed without getting further."""
    list: bool = False
    """Print the command of each run instead of starting it, for the job scripts of a cluster."""


@dataclass(frozen=True)
class StatusOptions:
    """Show how far the runs of a sweep are, while it runs or afterwards."""

    folder: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="FOLDER")]
    """The sweep's folder."""
    state: tuple[Literal["done", "running", "failed", "pruned", "stopped", "waiting"], ...] = ()
    """List only the runs in these states."""
    json: bool = False
    """Print it as JSON."""


def sweep(options: SweepOptions) -> int:
    """Run `minerva sweep`."""
    from minerva.sweeps.expansion import expand
    from minerva.sweeps.launch import prepare
    from minerva.sweeps.spec import read_spec

    spec = read_spec(options.spec)
    if options.list:
        folder = options.out or Path("runs") / spec.name
        for run in expand(spec, api.algorithms()):
            words = ["minerva", *run.words, "--out-dir", str(folder / run.folder), "--resume-or-start"]
            print(shlex.join(words))
        return 0
    prepared = prepare(spec, api.algorithms(), options.out, options.on, options.jobs, options.address, options.retries)
    return _run(prepared, None)


def status(options: StatusOptions) -> int:
    """Run `minerva status`."""
    from minerva.sweeps.status import SweepStatus, lines_of

    found = SweepStatus.read(options.folder).settled()
    if options.json:
        runs = [run for run in found.runs if not options.state or run.state in options.state]
        print(json.dumps(found.to_plain(runs)))
        return 0
    for line in lines_of(found, options.state):
        print(line)
    counts = found.counts()
    if not found.is_alive() and counts["done"] + counts["failed"] + counts["pruned"] < len(found.runs):
        print("The sweep is not running; start it again to go on.")
    return 0


def train_seeds(algo: str, options: Any, given: dict[str, Any], arguments: list[str]) -> int:
    """Run `minerva train --seeds`: a sweep over the seeds of one run.

    Args:
        algo: The algorithm.
        options: The options of `train`.
        given: The settings that the command line has.
        arguments: The command line after the algorithm, to print how to go on.
    """
    from minerva.sweeps.launch import prepare
    from minerva.sweeps.seeds import parse_seeds
    from minerva.sweeps.spec import read_spec

    if value_of("--seed", arguments) is not None:
        raise UsageError(f"--seed: cannot be combined with --seeds, got both; leave out --seed {options.seed}.")
    seeds = parse_seeds(options.seeds)
    env = options.env.replace("/", "-").replace(":", "-")
    out = options.out_dir or Path("runs") / algo / env / time.strftime("%Y%m%d-%H%M%S")
    table: dict[str, Any] = {
        "name": re.sub(r"[^\w=,+@.-]", "-", f"{algo}-{env}-{out.name}", flags=re.ASCII),
        "algorithms": [algo], "envs": [options.env], "seeds": list(seeds), "total_steps": options.total_steps,
        "device": options.device, "keep_replay": True,
        "settings": given,
    }  # fmt: skip
    table |= {} if options.preset is None else {"preset": options.preset}
    table |= {} if options.init_from is None else {"init_from": str(options.init_from)}
    go_on = ["minerva", "train", algo, *arguments]
    go_on += [] if options.out_dir is not None else ["--out-dir", str(out)]
    prepared = prepare(read_spec(table), api.algorithms(), out, jobs=options.jobs, flat=True)
    return _run(prepared, shlex.join(go_on))


def find_run(algo: str, options: Any, config: RunConfig) -> FoundRun | None:
    """Find the run that `minerva train --resume-or-start` is to resume; None where it is to start."""
    from minerva.trainers import resuming

    if options.out_dir is None:
        raise UsageError("--resume-or-start: needs --out-dir, the folder of the run; give one.")
    return resuming.find_run(options.out_dir, algo, options.env, options.seed, config, options.total_steps)


def _run(prepared: Sweep, go_on: str | None) -> int:
    result = prepared.run()
    _print_results(result)
    if result.stopped_by is not None:
        print(f"Go on with: {go_on or shlex.join(['minerva', *sys.argv[1:]])}")
        return 130 if result.stopped_by == signal.SIGINT else 128 + result.stopped_by
    for run in result.failed:
        print(f"minerva: {run.folder} failed: {run.error}", file=sys.stderr)
    return 1 if result.failed else 0


def _print_results(result: SweepResult) -> None:
    from rich.console import Console

    from minerva.report.tables import results_table

    returns: dict[str, list[float]] = {}
    for run in result.runs:
        if run.state == "done" and run.evaluation is not None:
            returns.setdefault(run.cell, []).append(run.evaluation)
    if returns:
        Console().print(results_table(returns, "Last evaluations"))
    print(f"Folder     {result.out_dir}")
    if returns:
        print(f"Plot       minerva plot {shlex.quote(str(result.out_dir))}")
