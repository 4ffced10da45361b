"""Measure how two runs on one machine slow each other down: steps per second of one run alone, and of two at once.

    python -m benchmarks.two_runs --out benchmarks/results/speed/two_runs.json

Each run is a separate process, measured by `minerva bench`: with Minerva's default number of threads, with one thread,
and with threads that spin as long as they do by default in OpenMP.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median
from typing import Any

HALF_CHEETAH = ("--env", "HalfCheetah-v5", "--device", "cpu")
POOL = ("--backend", "envpool", "--num-envs", "64", "--rollout-steps", "64")
ONE = ("--num-envs", "1", "--rollout-steps", "2048")
RUNS = {
    "PPO, minibatches of 64": ("ppo", *HALF_CHEETAH, *ONE, "--minibatch-size", "64"),
    "PPO, 64 environments, minibatches of 1024": ("ppo", *HALF_CHEETAH, *POOL, "--minibatch-size", "1024"),
    "V-MPO": ("vmpo", *HALF_CHEETAH, "--backend", "envpool"),
    "MPO": ("mpo", *HALF_CHEETAH),
    "MPO, not compiled": ("mpo", *HALF_CHEETAH),
}
SETTINGS: dict[str, dict[str, str]] = {
    "by itself": {},
    "OMP_NUM_THREADS=1": {"OMP_NUM_THREADS": "1"},
    "GOMP_SPINCOUNT=300000": {"GOMP_SPINCOUNT": "300000"},  # three milliseconds
}


def measure(arguments: tuple[str, ...], compiled: bool, seconds: float, setting: dict[str, str]) -> float:
    """Return the environment steps per second of one run."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "bench.json"
        command = ["bench", *arguments, "--compile", str(compiled), "--seconds", str(seconds), "--json", str(file)]
        subprocess.run(
            [sys.executable, "-W", "ignore", "-m", "minerva.cli", *command],
            check=True, capture_output=True, env={**os.environ, **setting},
        )  # fmt: skip
        rate: float = json.loads(file.read_text())["steps_per_second"]
        return rate


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=8.0, help="seconds per measurement")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    from benchmarks.provenance import hardware
    from minerva.checkpointing import command_line, git_commit, versions

    found: dict[str, dict[str, Any]] = {}
    for name, arguments in RUNS.items():
        samples: dict[str, tuple[list[float], list[float]]] = {setting: ([], []) for setting in SETTINGS}
        for _ in range(options.repeats):
            for setting, (alone, together) in samples.items():
                given = (arguments, "not compiled" not in name, options.seconds, SETTINGS[setting])
                alone.append(measure(*given))
                with ThreadPoolExecutor(2) as pool:
                    together += [run.result() for run in [pool.submit(measure, *given) for _ in range(2)]]
        found[name] = {
            setting: {"alone": median(alone), "each of two": median(together)}
            for setting, (alone, together) in samples.items()
        }
        print(name, found[name], flush=True)
    description = {
        "steps/s": found, "command": command_line(), "commit": git_commit(), "versions": versions(),
        "hardware": hardware(),
    }  # fmt: skip
    if options.out:
        options.out.write_text(json.dumps(description, indent=2) + "\n")


if __name__ == "__main__":
    main()
