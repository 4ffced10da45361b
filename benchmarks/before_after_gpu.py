"""Compare two versions of the code on a GPU: updates of MPO and V-MPO, and PPO with 256 environments.

    python -m benchmarks.before_after_gpu --before PATH --after PATH --rounds 4 --commits OLD NEW

Each version runs its own `benchmarks.updates`, in a process of its own; the two take turns, and the one that begins
alternates. Medians of the rounds are compared: a ratio of 1 means as fast as before, above 1 faster. The results go to
``benchmarks/results/speed/before_after_gpu.json``.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.before_after import BAR
from benchmarks.provenance import gpu, hardware, import_from
from minerva.checkpointing import versions

OUT = Path(__file__).parent / "results" / "speed" / "before_after_gpu.json"
# What neither version changed, or what takes long, is left out.
CHILD = """
import benchmarks.updates as updates
updates.mpo_steps_per_second = lambda *arguments: {}
updates.pool_steps_per_second = lambda *arguments: 0.0
updates.main()
"""


def measure(tree: Path, repeats: int) -> dict[str, list[float]]:
    """Run a checkout's `benchmarks.updates` once; returns times in ms and rates in steps/s."""
    with tempfile.TemporaryDirectory(prefix="minerva-before-after-") as folder:
        file = Path(folder) / "updates.json"
        options = ["--device", "cuda", "--repeats", str(repeats), "--commit", "none", "--out", str(file)]
        command = [sys.executable, "-W", "ignore", "-c", CHILD, *options]
        done = subprocess.run(command, capture_output=True, text=True, cwd=tree, env=import_from_all(tree))
        if done.returncode != 0:
            raise RuntimeError(f"benchmarks.updates failed in {tree}:\n{done.stdout}{done.stderr}"[-3000:])
        results = json.loads(file.read_text())["results"]
    found: dict[str, list[float]] = {}
    for name, result in results.items():
        if isinstance(result, list):
            found[name] = result
        elif isinstance(result, dict):
            found |= {f"{name}: {form}": [value] for form, value in result.items()}
    return found


def import_from_all(tree: Path) -> dict[str, str]:
    """Return the environment of a child process: the checkout first, then what this process imports from."""
    return {**import_from(tree), "PYTHONPATH": ":".join([str(tree), *(path for path in sys.path if path)])}


def compare(samples: dict[str, list[dict[str, list[float]]]]) -> dict[str, Any]:
    """Compare the medians of what both versions measured."""
    compared = {}
    for name in samples["before"][0]:
        if any(name not in round_ for rounds in samples.values() for round_ in rounds):
            continue
        every = {version: [value for round_ in rounds for value in round_[name]] for version, rounds in samples.items()}
        old, new = median(every["before"]), median(every["after"])
        ratio = old / new if ", ms" in name else new / old
        compared[name] = {"before": old, "after": new, "speed_ratio": ratio, "holds": ratio >= BAR, "samples": every}
    return compared


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--before", type=Path, required=True, help="checkout of the older code")
    parser.add_argument("--after", type=Path, required=True, help="checkout of the newer code")
    parser.add_argument("--commits", nargs=2, required=True, metavar=("BEFORE", "AFTER"))
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--repeats", type=int, default=50)
    parser.add_argument("--out", type=Path, default=OUT)
    options = parser.parse_args()
    trees = {"before": options.before.resolve(), "after": options.after.resolve()}
    samples: dict[str, list[dict[str, list[float]]]] = {version: [] for version in trees}
    for number in range(options.rounds):
        for version in list(trees)[:: -1 if number % 2 else 1]:
            samples[version].append(measure(trees[version], options.repeats))
        compared = compare(samples)
        found = {
            "bar": BAR, "commits": dict(zip(trees, options.commits, strict=True)), "rounds": number + 1,
            "results": compared, "hardware": f"{hardware()}, {gpu()}", "versions": versions(),
            "command": "python -m benchmarks.before_after_gpu --before BEFORE --after AFTER "
            f"--rounds {options.rounds} --repeats {options.repeats}",
        }  # fmt: skip
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(json.dumps(found, indent=2) + "\n")
        print(f"round {number + 1}", flush=True)
    for name, result in compared.items():
        print(f"{name:90}{result['before']:10.4g}{result['after']:10.4g}{result['speed_ratio']:8.3f}")


if __name__ == "__main__":
    main()
