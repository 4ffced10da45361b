"""Check that two versions of the code learn alike: train short tasks with each, over the same seeds.

    python -m benchmarks.learned_alike --tree PATH --label before --seeds 301-305
    python -m benchmarks.learned_alike --tree PATH --label after --seeds 301-305
    python -m benchmarks.learned_alike --summary

A run is a process of its own on one core, one at a time. It ends with a deterministic evaluation of 30 episodes, which
becomes a row of ``benchmarks/results/alike/before_after.csv``. A run of the same label, task and seed replaces its row.
"""

from __future__ import annotations

import argparse
import csv
import math
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.learn import VERSIONS, read_metrics
from benchmarks.provenance import commit_of, hardware, import_from
from minerva.checkpointing import versions
from minerva.sweeps.seeds import parse_seeds

OUT = Path(__file__).parent / "results" / "alike" / "before_after.csv"
COMMON = ("--compile", "False", "--eval-episodes", "30", "--no-console")
SMALL = ("--policy-layer-sizes", "64", "64", "--critic-layer-sizes", "64", "64", "--batch-size", "64")
QUICK = ("--q-lr", "1e-3", "--policy-lr", "1e-3", "--mstep-kl-epsilon", "1e-2", "--mstep-kl-epsilon-stddev", "1e-4")
# About half a minute each. MPO stops while it still learns: there a difference shows best.
TASKS = {
    "ppo": ("Pendulum-v1", "--total-steps", "50000", "--eval-interval", "10000"),
    "vmpo": (
        "Pendulum-v1", "--total-steps", "150000", "--eval-interval", "20000", "--gamma", "0.95", "--epsilon-mu", "0.03",
    ),
    "mpo": ("Pendulum-v1", "--total-steps", "6000", "--eval-interval", "1500", "--gamma", "0.95", *SMALL, *QUICK),
}  # fmt: skip
KEY = ("algorithm", "env", "seed", "label")


def train_one(
    algo: str, env_id: str, seed: int, device: str, overrides: Sequence[str], folder: Path, tree: Path
) -> float:
    """Train one run in a process of its own, with the code of `tree`; return the seconds it took."""
    begin = time.perf_counter()
    command = [sys.executable, "-m", "minerva.cli", "train", algo, "--env", env_id, "--seed", str(seed)]
    command += ["--device", device, "--out-dir", str(folder), *overrides]
    # One thread per process: parallel runs use the other cores.
    environment = {**import_from(tree), "OMP_NUM_THREADS": "1"}
    with folder.with_suffix(".log").open("w") as file:
        subprocess.run(command, check=True, stdout=file, stderr=subprocess.STDOUT, env=environment, cwd=tree)
    return time.perf_counter() - begin


def train(tree: Path, algo: str, seed: int) -> dict[str, Any]:
    """Train one run with a checkout's code and return its row."""
    env_id, *options = TASKS[algo]
    options += COMMON
    with tempfile.TemporaryDirectory(prefix="minerva-alike-") as scratch:
        folder = Path(scratch) / "run"
        try:
            seconds = train_one(algo, env_id, seed, "cpu", options, folder, tree)
        except subprocess.CalledProcessError as error:
            raise SystemExit(f"{algo} seed {seed} failed:\n{folder.with_suffix('.log').read_text()[-2000:]}") from error
        table = read_metrics(folder)
    curve = {step: table[step]["eval/return_mean"] for step in sorted(table) if "eval/return_mean" in table[step]}
    found = versions()
    command = f"minerva train {algo} --env {env_id} --seed {seed} --device cpu {' '.join(options)}"
    return {
        "algorithm": algo, "env": env_id, "seed": seed, "steps": max(curve), "return_mean": curve[max(curve)],
        "curve": " ".join(f"{step}:{value:.6f}" for step, value in curve.items()), "seconds": round(seconds),
        "commit": commit_of(tree), "command": command, "hardware": f"{hardware()}, one core per run",
        "versions": " ".join(f"{name}={found[name]}" for name in VERSIONS if name in found),
    }  # fmt: skip


def read(file: Path) -> list[dict[str, Any]]:
    """Return the rows of a table, none where there is no file."""
    if not file.exists():
        return []
    with file.open() as handle:
        return list(csv.DictReader(handle))


def store(file: Path, row: dict[str, Any]) -> None:
    """Add a row to a table, or replace the one of the same label, task and seed."""
    rows = {tuple(str(old[name]) for name in KEY): old for old in [*read(file), row]}
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("w", newline="") as handle:
        writer = csv.DictWriter(handle, fieldnames=list(row), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows[key] for key in sorted(rows))


def t_interval(values: list[float], confidence: float = 0.95) -> tuple[float, float]:
    """Return the t-interval of a mean; NaN for a single value."""
    from scipy.stats import t

    if len(values) < 2:
        return math.nan, math.nan
    error = float(np.std(values, ddof=1)) / math.sqrt(len(values))
    half = float(t.ppf((1 + confidence) / 2, len(values) - 1)) * error
    return float(np.mean(values)) - half, float(np.mean(values)) + half


def summarize(rows: list[dict[str, Any]]) -> list[str]:
    """Describe each task and label in a line, and how each label compares with the first one, "before" if there."""
    from scipy.stats import ttest_ind

    lines = []
    for algo, env_id in dict.fromkeys((row["algorithm"], row["env"]) for row in rows):
        of_task = [row for row in rows if (row["algorithm"], row["env"]) == (algo, env_id)]
        # "before" first, whatever the order of the rows
        labels = sorted({row["label"] for row in of_task}, key=lambda label: (label != "before", label))
        runs = {label: {row["seed"]: row for row in of_task if row["label"] == label} for label in labels}
        returns = {label: [float(row["return_mean"]) for row in runs[label].values()] for label in labels}
        for label in labels:
            low, high = t_interval(returns[label])
            seeds = f"{len(returns[label])} seeds: " + " ".join(f"{value:.1f}" for value in returns[label])
            mean = np.mean(returns[label])
            lines.append(f"{algo} {env_id}, {label}: mean {mean:.1f} [{low:.1f}, {high:.1f}], {seeds}")
        for label in labels[1:]:
            shared = runs[labels[0]].keys() & runs[label].keys()
            same = sum(runs[labels[0]][seed]["curve"] == runs[label][seed]["curve"] for seed in shared)
            interval = ttest_ind(returns[label], returns[labels[0]], equal_var=False).confidence_interval()
            lines.append(
                f"  {label} - {labels[0]}: {np.mean(returns[label]) - np.mean(returns[labels[0]]):+.1f} "
                f"[{interval.low:+.1f}, {interval.high:+.1f}]; {same} of {len(shared)} seeds have the same curve"
            )
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tree", type=Path, help="checkout of the project to train with")
    parser.add_argument("--label", help="name of that version in the table: before or after")
    parser.add_argument("--seeds", nargs="+", type=parse_seeds, default=[parse_seeds("301-305")], metavar="N-M")
    parser.add_argument("--tasks", nargs="+", choices=list(TASKS), default=list(TASKS))
    parser.add_argument("--out", type=Path, default=OUT)
    parser.add_argument("--summary", action="store_true", help="print what the table says and train nothing")
    options = parser.parse_args()
    if not options.summary:
        if options.tree is None or options.label is None:
            parser.error("give --tree and --label, or --summary")
        for seed in (seed for seeds in options.seeds for seed in seeds):
            for algo in options.tasks:
                row = {"label": options.label, **train(options.tree.resolve(), algo, seed)}
                store(options.out, row)
                print(f"{algo} seed {seed}: {row['return_mean']:.1f}, {row['seconds']} s", flush=True)
    print("\n".join(summarize(read(options.out))))


if __name__ == "__main__":
    main()
