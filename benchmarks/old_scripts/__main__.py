"""Run scripts for stable-baselines in up to three ways, and count how many reach their end.

    python -m benchmarks.old_scripts [--ways unchanged renamed] [--only 07 21] [--jobs N] [--out FILE]

unchanged: as they are, by the launcher. renamed: after replacing stable_baselines and gym in their imports. prefix:
after replacing stable_baselines only, for scripts that do not import gym. The exit code is 1 if a script failed that is
not bound to TensorFlow.
"""

from __future__ import annotations

import argparse
import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from benchmarks.learn import VERSIONS
from benchmarks.old_scripts import ROOT, SCRIPTS, WAYS, is_bound, run, uses_gym
from benchmarks.provenance import commit_of, gpu, hardware
from minerva.checkpointing import command_line, versions


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=list(WAYS))
    parser.add_argument("--only", nargs="+", help="beginnings of the names of scripts")
    parser.add_argument("--jobs", type=int, default=1, help="scripts at once")
    parser.add_argument("--timeout", type=float, default=120.0, help="seconds per script")
    parser.add_argument("--out", type=Path, help="where the table is written as JSON")
    arguments = parser.parse_args()
    scripts = [script for script in SCRIPTS if not arguments.only or script.name.startswith(tuple(arguments.only))]
    tasks = [(script, way) for script in scripts for way in arguments.ways if way != "prefix" or not uses_gym(script)]
    results = []
    with ThreadPoolExecutor(arguments.jobs) as pool:
        for result in pool.map(lambda task: run(task[0], task[1], arguments.timeout), tasks):
            results.append(result)
            said = "ok" if result.passed else result.error
            print(f"{result.script:28} {result.way:10} {result.seconds:6.1f} s  {said}", flush=True)
    bound = {script.stem for script in scripts if is_bound(script)}
    counts = {}
    print()
    for way in arguments.ways:
        of_way = [result for result in results if result.way == way]
        free = [result for result in of_way if result.script not in bound]
        counts[way] = {
            "how": WAYS[way],
            "scripts": len(of_way),
            "passed": sum(result.passed for result in of_way),
            "not bound to TensorFlow": len(free),
            "of these passed": sum(result.passed for result in free),
            "longest, seconds": max((result.seconds for result in of_way), default=0.0),
        }
        passed, passed_free = (sum(result.passed for result in some) for some in (of_way, free))
        print(f"{way:10} {passed} of {len(of_way)}; not bound to TensorFlow: {passed_free} of {len(free)}")
    failed = [result for result in results if not result.passed]
    if arguments.out:
        found = versions()
        table = {
            "commit": commit_of(ROOT),
            "command": command_line(),
            "hardware": " + ".join(filter(None, [hardware(), gpu()])),
            "versions": {name: found[name] for name in VERSIONS if name in found},
            "ways": counts,
            "failed": [{"script": one.script, "way": one.way, "error": one.error} for one in failed],
            "scripts": {
                script.stem: {
                    "bound to TensorFlow": script.stem in bound,
                    **{result.way: result.passed for result in results if result.script == script.stem},
                }
                for script in scripts
            },
        }
        arguments.out.parent.mkdir(parents=True, exist_ok=True)
        arguments.out.write_text(json.dumps(table, indent=1) + "\n")
    return int(any(result.script not in bound for result in failed))


if __name__ == "__main__":
    raise SystemExit(main())
