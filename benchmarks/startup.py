"""Measure the time from `minerva train` to the first environment step, compared with bare imports of its packages.

    python -m benchmarks.startup --out benchmarks/results/speed/startup.json
    python -m benchmarks.startup --before PATH --after PATH --out benchmarks/results/speed/startup_edges.json

Each measurement is a separate process; the two take turns, and the result is the median. With `--before`, two versions
of the code take turns at a run of 256 steps, evaluation left out, and what is compared is the processor's time.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median, quantiles
from typing import Any

BARE = {
    "CartPole-v1": "import torch, gymnasium; gymnasium.make('CartPole-v1')",
    "HalfCheetah-v5": "import torch, gymnasium, mujoco; gymnasium.make('HalfCheetah-v5')",
}
# The first call of a batch's `step` is its reset; the second is a step. Without evaluation.
TRAIN = """
import os, sys
from minerva.environments import gymnasium_backend as backend

step, seen = backend.GymnasiumBatch.step, set()

def first_step(self, actions):
    if id(self) in seen:
        os._exit(0)
    seen.add(id(self))
    return step(self, actions)

backend.GymnasiumBatch.step = first_step
from minerva.cli import main
main(["train", *sys.argv[1:]])
"""


def seconds(*command: str) -> float:
    """Return the duration of a process in seconds."""
    begin = time.perf_counter()
    subprocess.run([sys.executable, "-W", "ignore", *command], check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - begin


def processor_seconds(tree: Path, *command: str) -> float:
    """Return the processor's time, of all threads, of a process that imports `minerva` from a checkout."""
    command = (sys.executable, "-W", "ignore", *command)
    environment = {**os.environ, "PYTHONPATH": str(tree), "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(command, cwd=tree, env=environment, stdout=subprocess.DEVNULL)
    _, status, used = os.wait4(process.pid, 0)
    if status:
        raise RuntimeError(f"{' '.join(command)} ended with the status {status} in {tree}.")
    return used.ru_utime + used.ru_stime


def compare(trees: dict[str, Path], repeats: int) -> dict[str, Any]:
    """Let two versions of the code start in turn; return the processor's seconds and their ratio."""
    found: dict[str, Any] = {}
    for env, algo in itertools.product(BARE, ("ppo", "vmpo")):
        seconds: dict[str, list[float]] = {name: [] for name in trees}
        for number in range(-1, repeats):  # the first writes the bytecode
            for name in list(trees)[:: -1 if number % 2 else 1]:
                with tempfile.TemporaryDirectory() as folder:
                    steps = ("--preset", "none", "--num-envs", "1", "--rollout-steps", "256", "--total-steps", "256")
                    run = ("train", algo, "--env", env, *steps, "--eval-episodes", "0", "--out-dir", f"{folder}/run")
                    used = processor_seconds(trees[name], "-m", "minerva.cli", *run)
                seconds[name] += [used] * (number >= 0)
        ratios = [new / old for old, new in zip(seconds["before"], seconds["after"], strict=True)]
        low, middle, high = quantiles(ratios, n=4)
        found[f"{algo}, {env}"] = {"ratio": middle, "quartiles": [low, high], "seconds": seconds}
        print(f"{algo}, {env}: {middle:.3f} ({low:.3f} to {high:.3f})", flush=True)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--before", type=Path, help="checkout of the older code")
    parser.add_argument("--after", type=Path, default=Path(), help="checkout of the newer code (default: this one)")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    from benchmarks.provenance import commit_of, hardware
    from minerva.checkpointing import git_commit, versions

    about: dict[str, Any] = {"versions": versions(), "hardware": hardware()}
    if arguments.before:
        trees = {"before": arguments.before.resolve(), "after": arguments.after.resolve()}
        commits = {name: commit_of(tree) for name, tree in trees.items()}
        publish({"processor's seconds": compare(trees, arguments.repeats), "commits": commits, **about}, arguments.out)
        return
    found: dict[str, Any] = {}
    for env, imports in BARE.items():
        for algo in ("ppo", "mpo", "vmpo"):
            if algo == "mpo" and env == "CartPole-v1":  # MPO has no discrete actions
                continue
            bare, train = [], []
            for _ in range(arguments.repeats):
                bare.append(seconds("-c", imports))
                with tempfile.TemporaryDirectory() as folder:
                    run = ("--env", env, "--device", "cpu", "--eval-episodes", "0", "--out-dir", f"{folder}/run")
                    train.append(seconds("-c", TRAIN, algo, *run))
            found[f"{algo}, {env}"] = {
                "bare imports": median(bare), "to the first step": median(train), "more": median(train) - median(bare),
            }  # fmt: skip
    publish({"seconds": found, "commit": git_commit(), **about}, arguments.out)


def publish(description: dict[str, Any], out: Path | None) -> None:
    """Print a result, and write it to a file."""
    text = json.dumps(description, indent=2)
    print(text)
    if out:
        out.write_text(text + "\n")


if __name__ == "__main__":
    main()
