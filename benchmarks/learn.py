"""Measure learning: train tasks with their presets over several seeds, one process per run, and store the results.

    python -m benchmarks.learn ppo HalfCheetah-v5 Hopper-v5 --seeds 101 102 103 --jobs 16 --out benchmarks/results

writes, for each task, ``OUT/<algo>/<task>/seed<k>.csv`` (every evaluation of the run: step, mean, std, min, max, median
and mean length of its episodes) and one row per seed in ``OUT/<algo>/<task>/runs.csv``: the evaluation at the end of
the budget with the last weights, the steps per second without evaluation, and command, commit, hardware and versions.
``OUT/<algo>/<task>/settings.json`` holds the settings of the runs. `benchmarks/summary.py` makes the table, and
`benchmarks/promises.py` what the presets promise.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from benchmarks.promises import keep_settings
from benchmarks.provenance import gpu, hardware, import_from

VERSIONS = ("python", "torch", "gymnasium", "mujoco", "dm-control")
EVALUATION = ("return_mean", "return_std", "return_min", "return_max", "return_median", "length_mean")


def train_one(
    algo: str, env_id: str, seed: int, device: str, overrides: Sequence[str], folder: Path, tree: Path | None = None
) -> float:
    """Train one run in a process of its own, with the code of `tree`; returns the seconds it took."""
    begin = time.perf_counter()
    command = [sys.executable, "-m", "minerva.cli", "train", algo, "--env", env_id, "--seed", str(seed)]
    command += ["--device", device, "--out-dir", str(folder), *overrides]
    # One thread per process: parallel runs use the other cores.
    environment = {**(import_from(tree) if tree else os.environ), "OMP_NUM_THREADS": "1"}
    log = folder.with_suffix(".log")
    with log.open("w") as file:
        subprocess.run(command, check=True, stdout=file, stderr=subprocess.STDOUT, env=environment, cwd=tree)
    return time.perf_counter() - begin


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
    speeds = [metrics["charts/SPS"] for metrics in table.values() if "charts/SPS" in metrics]
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("algo")
    parser.add_argument("envs", nargs="+")
    parser.add_argument("--seeds", type=int, nargs="+", default=[101, 102, 103, 104, 105])
    parser.add_argument("--jobs", type=int, default=max(1, (os.cpu_count() or 1)))
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results"))
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--commit", default=None, help="commit of the code, if git is not available")
    arguments, overrides = parser.parse_known_args()
    from minerva.checkpointing import git_commit, versions

    found = versions()
    provenance = {
        "commit": arguments.commit or git_commit(),
        "hardware": f"{hardware()}, one core per run"
        + (f", {gpu()} for {arguments.jobs} runs at a time" if arguments.device != "cpu" else ""),
        "versions": " ".join(f"{name}={found[name]}" for name in VERSIONS if name in found),
    }
    one_at_a_time = threading.Lock()  # runs of a task share its table
    scratch = Path(tempfile.mkdtemp(prefix="minerva-learn-"))

    def one(job: tuple[str, int]) -> None:
        env_id, seed = job
        name = env_id.replace("/", "-")
        folder = scratch / f"{name}-seed{seed}"
        try:
            seconds = train_one(arguments.algo, env_id, seed, arguments.device, overrides, folder)
        except subprocess.CalledProcessError:
            print(f"{env_id} seed {seed} FAILED:\n{folder.with_suffix('.log').read_text()[-2000:]}", flush=True)
            return
        words = [
            "minerva train",
            arguments.algo,
            "--env",
            env_id,
            "--seed",
            seed,
            "--device",
            arguments.device,
            *overrides,
        ]
        command = " ".join(map(str, words))
        about = {"algorithm": arguments.algo, "env": env_id, "seed": seed, "command": command, **provenance}
        with one_at_a_time:
            row = keep(folder, arguments.out / arguments.algo / name, about)
        result = f"{row['return_mean']:.1f} at {row['steps']:,} steps"
        print(f"{env_id} seed {seed}: {result}, {row['sps']} steps/s, {seconds:.0f} s", flush=True)

    jobs = [(env_id, seed) for seed in arguments.seeds for env_id in arguments.envs]
    with ThreadPoolExecutor(arguments.jobs) as pool:
        list(pool.map(one, jobs))
    shutil.rmtree(scratch)


if __name__ == "__main__":
    main()
