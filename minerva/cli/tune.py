"""`minerva tune`: search for settings."""

from __future__ import annotations

import shlex
import signal
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro

from minerva import api


@dataclass(frozen=True)
class TuneOptions:
    """Search for the settings of an algorithm on an environment, as a TOML file says.

    Optuna chooses the settings of each trial; its runs, one for each seed, are in OUT/trials/NNNN/seedK. Started again,
    also after a kill, a tuning takes up the trials that were running, and repeats none. At the end, OUT/best.toml is a
    preset for `minerva train --preset`. Ctrl-C saves and stops all. Exit code 1 if a trial failed.
    """

    spec: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="SPEC.toml")]
    """The specification: a sweep's, for one algorithm and one environment, with [search] (what varies) and [tune]
    (trials, sampler, pruner, …)."""
    out: Annotated[Path | None, tyro.conf.arg(metavar="DIR")] = None
    """The tuning's folder; by default runs/NAME."""
    on: Literal["local", "ray"] = "local"
    """Where the runs are: processes of this machine, or tasks of a Ray cluster."""
    jobs: int | None = None
    """Runs at once; by default as many as there are cores for."""
    address: str | None = None
    """Address of the Ray cluster, HOST:PORT; by default the one that this machine belongs to."""
    retries: int = 2
    """How often a run is resumed that has failed without getting further."""


def tune(options: TuneOptions) -> int:
    """Run `minerva tune`."""
    from rich.console import Console

    from minerva.tuning.launch import prepare
    from minerva.tuning.outcome import best_table

    prepared = prepare(
        options.spec, api.algorithms(), options.out, options.on, options.jobs, options.address, options.retries
    )
    result = prepared.tune()
    if result.best is not None:
        Console().print(best_table(prepared.spec, result.trials))
        print(f"Best       trial {result.best.number}, return {result.best.value:,.4g} with seeds {result.tuned_on}")
        spec = prepared.spec
        words = ["minerva", "train", spec.algorithm, "--env", spec.env, "--preset", str(result.preset)]
        print(f"Train      {shlex.join(words)} --seeds …  (other seeds than {result.tuned_on})")
    if result.page is not None:
        print(f"Page       {result.page}")
    if result.stopped_by is not None:
        print(f"Go on with: {shlex.join(['minerva', *sys.argv[1:]])}")
        return 130 if result.stopped_by == signal.SIGINT else 128 + result.stopped_by
    failed = [trial for trial in result.trials if trial.outcome == "failed"]
    for trial in failed:
        print(f"minerva: trial {trial.number} failed: {trial.error}", file=sys.stderr)
    return 1 if failed else 0
