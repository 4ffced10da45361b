"""Measure the time from `minerva train` to the first environment step, compared with bare imports of its packages.

    python -m benchmarks.startup --out benchmarks/results/speed/startup.json

Each measurement is a separate process; the two take turns, and the result is the median.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    from benchmarks.provenance import hardware
    from minerva.checkpointing import git_commit, versions

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
    description = {"seconds": found, "commit": git_commit(), "versions": versions(), "hardware": hardware()}
    print(json.dumps(description, indent=2))
    if arguments.out:
        arguments.out.write_text(json.dumps(description, indent=2) + "\n")


if __name__ == "__main__":
    main()
