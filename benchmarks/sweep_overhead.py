"""Measure what a sweep adds to the time of its runs.

    python -m benchmarks.sweep_overhead --out benchmarks/results/sweep_overhead.json

Short runs are trained by `minerva sweep`, and by `xargs -P`, which starts the same commands and nothing else; the two
take turns. Besides the time on the clock, which other programs on the machine change, it counts the processor's time.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

from benchmarks.provenance import commit_of, hardware
from minerva.checkpointing import command_line, versions

SPEC = """
algorithms = ["ppo"]
envs = ["Pendulum-v1"]
seeds = "1-{runs}"
total_steps = {steps}
preset = "none"
device = "cpu"
[settings]
eval_episodes = 5
"""


def measured(command: list[str], environment: dict[str, str], text: str | None = None) -> tuple[float, float]:
    """Run a command; return seconds on the clock, and of the processor for it and its children."""
    before, begin = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run(command, env=environment, input=text, text=True, check=True, stdout=subprocess.DEVNULL)
    seconds, after = time.perf_counter() - begin, resource.getrusage(resource.RUSAGE_CHILDREN)
    return seconds, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main() -> None:
    """Measure and write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="file for the table (JSON)")
    parser.add_argument("--runs", type=int, default=4, help="runs of each round")
    parser.add_argument("--steps", type=int, default=8192, help="steps of each run")
    parser.add_argument("--jobs", type=int, default=2, help="runs at once")
    parser.add_argument("--rounds", type=int, default=5, help="rounds")
    options = parser.parse_args()
    minerva = [sys.executable, "-m", "minerva.cli"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "MINERVA_CORES": "1"}
    root = Path(tempfile.mkdtemp(prefix="sweep-overhead-"))
    spec = root / "spec.toml"
    spec.write_text(SPEC.format(runs=options.runs, steps=options.steps))
    rounds = []
    for number in range(options.rounds):
        out = {name: root / f"{number}-{name}" for name in ("sweep", "bare")}
        listed = [*minerva, "sweep", str(spec), "--out", str(out["bare"]), "--list"]
        lines = subprocess.run(listed, capture_output=True, text=True, check=True).stdout
        program = f"{sys.executable} -m minerva.cli"
        commands = "".join(f"{line.replace('minerva', program, 1)}\n" for line in lines.splitlines())
        # Each in a session of its own, as a sweep starts them: Linux shares the processor among sessions.
        bare = ["xargs", "-d", "\n", "-P", str(options.jobs), "-I", "{}", "setsid", "--wait", "sh", "-c", "{}"]
        contenders = {
            "sweep": ([*minerva, "sweep", str(spec), "--out", str(out["sweep"]), "--jobs", str(options.jobs)], None),
            "bare": (bare, commands),
        }
        row: dict[str, float] = {}
        for name in sorted(contenders, reverse=number % 2 == 1):
            command, text = contenders[name]
            row[name], row[f"{name}_cpu"] = (round(value, 3) for value in measured(command, environment, text))
        rounds.append(row)
        print(f"round {number + 1}: {row}", flush=True)
    shutil.rmtree(root)
    table = {
        "command": command_line(),
        "commit": commit_of(Path(__file__).parent),
        "versions": versions(),
        "hardware": hardware(),
        "runs": options.runs, "steps": options.steps, "jobs": options.jobs,
        "rounds": rounds,
        "added_time": round(median(row["sweep"] / row["bare"] for row in rounds) - 1, 4),
        "added_cpu_time": round(median(row["sweep_cpu"] / row["bare_cpu"] for row in rounds) - 1, 4),
    }  # fmt: skip
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(table, indent=1) + "\n")
    print(f"A sweep adds {table['added_time']:.1%} to the time, and {table['added_cpu_time']:.1%} to the processor's.")


if __name__ == "__main__":
    main()
