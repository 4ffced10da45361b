"""Measure what a sweep adds to the time of its runs.

    python -m benchmarks.sweep_overhead --out benchmarks/results/sweep_overhead.json

Short runs are trained by `minerva sweep`, and by `xargs -P`, which starts the same commands and nothing else; the two
take turns. Other programs on the machine change the time on the clock by more than a sweep does. So the processor time
that the sweep's own process takes, from its start to its end, is counted too, as a share of that of the bare runs.
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


OWN = "import sys, time; from minerva.cli import main; main(sys.argv[1:]); print(time.process_time(), file=sys.stderr)"
"""A sweep that says how much processor time its own process took."""


def measured(command: list[str], environment: dict[str, str], text: str | None = None) -> tuple[float, float, str]:
    """Run a command; return seconds on the clock, of the processor with its children, and what it said of errors."""
    before, begin = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    done = subprocess.run(
        command, env=environment, input=text, text=True, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    )
    seconds, after = time.perf_counter() - begin, resource.getrusage(resource.RUSAGE_CHILDREN)
    return seconds, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, done.stderr


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
        words = ["sweep", str(spec), "--out", str(out["sweep"]), "--jobs", str(options.jobs)]
        contenders = {
            "sweep": ([sys.executable, "-c", OWN, *words], None),
            "bare": (bare, commands),
        }
        row: dict[str, float] = {}
        for name in sorted(contenders, reverse=number % 2 == 1):
            command, text = contenders[name]
            row[name], row[f"{name}_cpu"], said = measured(command, environment, text)
            row |= {"own_cpu": float(said)} if name == "sweep" else {}
        row = {name: round(value, 3) for name, value in row.items()}
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
        "share": round(median(row["own_cpu"] / row["bare_cpu"] for row in rounds), 4),
        "time_ratio": round(median(row["sweep"] / row["bare"] for row in rounds), 3),
    }  # fmt: skip
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(table, indent=1) + "\n")
    print(f"A sweep takes {table['share']:.1%} of the processor time of its runs, {table['time_ratio']} of their time.")


if __name__ == "__main__":
    main()
