"""Measure learning: train tasks with their presets over several seeds, as a sweep, and store the results.

    python -m benchmarks.learn ppo HalfCheetah-v5 Hopper-v5 --seeds 101-103 --jobs 16 --out benchmarks/results

writes, for each task, ``OUT/<algo>/<task>/seed<k>.csv`` (every evaluation of the run: step, mean, std, min, max, median
and mean length of its episodes) and one row per seed in ``OUT/<algo>/<task>/runs.csv``: the evaluation at the end of
the budget with the last weights, the steps per second without evaluation, and command, commit, hardware and versions.
``OUT/<algo>/<task>/settings.json`` holds the settings of the runs. Other options are those of `minerva train`. With
`--runs DIR` the runs stay in that folder, and the same command goes on after a stop. `benchmarks/summary.py` makes the
table, and `benchmarks/promises.py` what the presets promise.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.promises import keep_settings
from benchmarks.provenance import gpu, hardware
from minerva import api
from minerva.checkpointing import git_commit, versions
from minerva.cli.options import value_of
from minerva.sweeps.display import Display
from minerva.sweeps.expansion import PlannedRun
from minerva.sweeps.local import LocalExecutor
from minerva.sweeps.seeds import parse_seeds
from minerva.sweeps.spec import Resources
from minerva.sweeps.status import RunStatus, SweepStatus
from minerva.sweeps.sweep import Sweep

VERSIONS = ("python", "torch", "gymnasium", "mujoco", "dm-control")
EVALUATION = ("return_mean", "return_std", "return_min", "return_max", "return_median", "length_mean")


def read_metrics(folder: Path) -> dict[int, dict[str, float]]:
    """Read a run's log: the metrics of each step."""
    table: dict[int, dict[str, float]] = {}
    with (folder / "metrics.csv").open() as file:
        for row in csv.DictReader(file):
            table.setdefault(int(row["step"]), {})[row["name"]] = float(row["value"])
    return table


def keep(folder: Path, out: Path, row: dict[str, Any]) -> dict[str, Any]:
    """Store the evaluations of a finished run as a curve, and the last one as a row."""
    table = read_metrics(folder)
    evaluations = {step: metrics for step, metrics in table.items() if "eval/return_mean" in metrics}
    out.mkdir(parents=True, exist_ok=True)
    with (out / f"seed{row['seed']}.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(("step", *EVALUATION))
        for step, metrics in sorted(evaluations.items()):
            writer.writerow((step, *(metrics[f"eval/{name}"] for name in EVALUATION)))
    last = max(evaluations)
    speeds = [metrics["charts/SPS_training"] for metrics in table.values() if "charts/SPS_training" in metrics]
    description = json.loads((folder / "config.json").read_text())
    keep_settings(out, row["seed"], {"total_steps": description["total_steps"], **description["config"]})
    row |= {"steps": last, **{name: evaluations[last][f"eval/{name}"] for name in EVALUATION}, "sps": round(speeds[-1])}
    rows_file = out / "runs.csv"
    rows: dict[str, dict[str, Any]] = {}
    if rows_file.exists():
        with rows_file.open() as file:
            rows = {old["seed"]: old for old in csv.DictReader(file)}
    rows[str(row["seed"])] = row
    with rows_file.open("w", newline="") as file:
        table_writer = csv.DictWriter(file, fieldnames=list(row))
        table_writer.writeheader()
        table_writer.writerows(rows[seed] for seed in sorted(rows, key=int))
    return row


class Keeper(Display):
    """Stores the results of each run when it ends."""

    def __init__(self, runs: Path, out: Path, about: dict[str, dict[str, Any]]) -> None:
        super().__init__()
        self._runs, self._out, self._about = runs, out, about

    def ended(self, run: RunStatus, status: SweepStatus) -> None:
        """Say it, and keep what a finished run has learned."""
        super().ended(run, status)
        if run.state == "done":
            name = run.env.replace("/", "-")
            keep(self._runs / run.folder, self._out / run.algorithm / name, self._about[run.folder])


def planned(algo: str, env_id: str, seed: int, device: str, overrides: list[str]) -> PlannedRun:
    """Return the run of a task and a seed."""
    words = ["train", algo, "--env", env_id, "--seed", str(seed), "--device", device, *overrides]
    steps = value_of("--total-steps", overrides)
    length = int(steps) if steps else api.preset_settings(algo, env_id, value_of("--preset", overrides)).total_steps
    settings = {"command": " ".join(overrides)}  # for the check that a folder is gone on with as it was started
    folder = f"{env_id.replace('/', '-')}/seed{seed}"
    return PlannedRun(folder, algo, env_id, "", seed, length, length, settings, tuple(words))


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("algo")
    parser.add_argument("envs", nargs="+")
    parser.add_argument("--seeds", nargs="+", default=["101-105"], help="such as 101-105, or 101 103")
    parser.add_argument("--jobs", type=int, default=max(1, (os.cpu_count() or 1)))
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results"))
    parser.add_argument("--runs", type=Path, help="folder of the runs; by default they are removed")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--commit", default=None, help="commit of the code, if git is not available")
    arguments, overrides = parser.parse_known_args(argv)
    found = versions()
    provenance = {
        "commit": arguments.commit or git_commit(),
        "hardware": f"{hardware()}, one core per run"
        + (f", {gpu()} for {arguments.jobs} runs at a time" if arguments.device != "cpu" else ""),
        "versions": " ".join(f"{name}={found[name]}" for name in VERSIONS if name in found),
    }
    runs = [
        planned(arguments.algo, env_id, seed, arguments.device, overrides)
        for seed in parse_seeds(",".join(arguments.seeds))
        for env_id in arguments.envs
    ]
    about = {
        run.folder: {
            "algorithm": run.algorithm, "env": run.env, "seed": run.seed,
            "command": f"minerva {' '.join(run.words)}", **provenance,
        }
        for run in runs
    }  # fmt: skip
    folder = arguments.runs or Path(tempfile.mkdtemp(prefix="minerva-learn-"))
    executor, keeper = LocalExecutor(arguments.jobs, Resources()), Keeper(folder, arguments.out, about)
    result = Sweep("learn", runs, folder, executor, Resources(), display=keeper).run()
    if arguments.runs is None and result.stopped_by is None:
        shutil.rmtree(folder)
    return 128 + result.stopped_by if result.stopped_by is not None else 1 if result.failed else 0


if __name__ == "__main__":
    sys.exit(main())
