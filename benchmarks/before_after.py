"""Compare the speed of two versions of the code, each a checkout of the project.

    python -m benchmarks.before_after --before PATH --after PATH --rounds 5 --seconds 12

Each measurement is `minerva bench` in a process of its own. In every round each case is measured with both versions, in
an order that alternates, so that a machine that slows down slows both. Medians of the rounds are compared: a ratio of 1
means as fast as before, above 1 faster. All cases take roughly seven minutes per round; leave the machine alone
meanwhile. The first updates of a compiled case compile, or load what another process compiled: their time says nothing.
The results go to ``benchmarks/results/speed/before_after.json``, where cases that were not measured keep theirs.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from benchmarks.provenance import commit_of, hardware, import_from
from minerva.checkpointing import command_line, versions

OUT = Path(__file__).parent / "results" / "speed" / "before_after.json"
BAR = 0.97
"""The ratio that a version must reach."""
Sample = dict[str, Any]


class Case(NamedTuple):
    """Options of `minerva bench`, and which of its numbers counts."""

    options: str
    metric: str = "steps_per_second"


CHEETAH = "--env HalfCheetah-v5 --preset none --target-kl 0 --minibatch-size 64 --update-epochs 10"
SMALL = "--policy-layer-sizes 256 256 --critic-layer-sizes 256 256 --batch-size 256 --action-samples 20"
FAMILIES = {  # measured compiled and not compiled
    "ppo-1": Case(f"ppo {CHEETAH} --num-envs 1 --rollout-steps 2048"),
    "ppo-8": Case(f"ppo {CHEETAH} --num-envs 8 --rollout-steps 256"),
    "vmpo": Case("vmpo --env HalfCheetah-v5"),
    "mpo-update": Case(f"mpo --env Pendulum-v1 {SMALL}", "update_ms"),
}
CASES = {
    **{
        f"{name}-{way}": case._replace(options=f"{case.options} --compile {way == 'compiled'}")
        for name, case in FAMILIES.items()
        for way in ("compiled", "plain")
    },
    "ppo-recurrent-8-plain": Case("ppo --env minerva/CartPoleNoVelocity-v1 --num-envs 8 --compile False"),
}


def measure(tree: Path, case: Case, seconds: float) -> Sample:
    """Measure a case once with a checkout's code."""
    load = os.getloadavg()[0]
    with tempfile.TemporaryDirectory(prefix="minerva-before-after-") as folder:
        file = Path(folder) / "bench.json"
        options = [*case.options.split(), "--device", "cpu", "--seconds", str(seconds), "--json", str(file)]
        command = [sys.executable, "-W", "ignore", "-m", "minerva.cli", "bench", *options]
        done = subprocess.run(command, capture_output=True, text=True, cwd=tree, env=import_from(tree))
        if done.returncode != 0:
            raise RuntimeError(f"minerva bench {case.options} failed in {tree}:\n{done.stdout}{done.stderr}"[-3000:])
        found = json.loads(file.read_text())
    names = ("steps_per_second", "update_ms", "first_updates_ms", "path")
    return {**{name: found[name] for name in names}, "updates": found["measured"]["updates"], "load_before": load}


def summarize(metric: str, before: list[Sample], after: list[Sample]) -> dict[str, Any]:
    """Compare the medians of two lists of samples; the ratio is one of speeds, also where the metric is a time."""
    old, new = (median(sample[metric] for sample in samples) for samples in (before, after))
    ratio = old / new if metric.endswith("_ms") else new / old
    paths = {sample["path"] for sample in [*before, *after]}
    return {
        "metric": metric, "before": old, "after": new, "speed_ratio": ratio, "holds": ratio >= BAR,
        "same_path": len(paths) == 1, "rounds": len(before), "samples": {"before": before, "after": after},
    }  # fmt: skip


def table(results: dict[str, dict[str, Any]]) -> str:
    """Return the results as lines of text."""
    lines = [f"{'case':24}{'metric':18}{'before':>10}{'after':>10}{'ratio':>8}"]
    for name, result in results.items():
        remarks = [f"below {BAR}"] * (not result["holds"]) + ["paths differ"] * (not result["same_path"])
        numbers = f"{result['before']:10.4g}{result['after']:10.4g}{result['speed_ratio']:8.3f}"
        lines.append(f"{name:24}{result['metric']:18}{numbers}  {', '.join(remarks)}".rstrip())
    return "\n".join(lines)


def write(file: Path, results: dict[str, dict[str, Any]]) -> None:
    """Write results into a file and keep its other cases."""
    others = json.loads(file.read_text())["cases"] if file.exists() else {}
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps({"bar": BAR, "cases": {**others, **results}}, indent=2) + "\n")


def main(words: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--before", type=Path, required=True, help="checkout of the older code")
    parser.add_argument("--after", type=Path, required=True, help="checkout of the newer code")
    parser.add_argument("--cases", nargs="+", choices=list(CASES), default=list(CASES), metavar="CASE")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=12.0, help="per measurement, without its warm-up")
    parser.add_argument("--out", type=Path, default=OUT)
    options = parser.parse_args(words)
    trees = {"before": options.before.resolve(), "after": options.after.resolve()}
    places = {str(options.before): "BEFORE", str(options.after): "AFTER"}  # paths that mean nothing elsewhere
    command = " ".join(places.get(word, word) for word in command_line().split())
    about = {
        "commits": {name: commit_of(tree) for name, tree in trees.items()}, "seconds": options.seconds,
        "hardware": hardware(), "versions": versions(), "command": command,
    }  # fmt: skip
    if os.getloadavg()[0] > 0.5:
        print(f"This machine is busy already (load {os.getloadavg()[0]:.1f}): expect noise.", flush=True)
    samples: dict[str, dict[str, list[Sample]]] = {name: {"before": [], "after": []} for name in options.cases}
    results: dict[str, dict[str, Any]] = {}
    for number in range(options.rounds):
        for name in options.cases:
            for version in list(trees)[:: -1 if number % 2 else 1]:
                samples[name][version].append(measure(trees[version], CASES[name], options.seconds))
            case = CASES[name]
            results[name] = {"options": case.options, **about, **summarize(case.metric, **samples[name])}
            write(options.out, results)
            print(f"round {number + 1}, {name}: {results[name]['speed_ratio']:.3f}", flush=True)
    print(table(results))


if __name__ == "__main__":
    main()
