"""Compare the speed of two versions of the code on one core, where both take turns.

    python -m benchmarks.turns --before PATH --after PATH --turns 40

Each version trains in a process of its own, on the same core. A turn is one rollout and its updates; while one version
takes its turn, the other waits, and the order alternates. What is compared is the processor's time, not the clock, so
that a machine that is shared disturbs little: two equal versions come out within a percent or two. A ratio is one of
speeds: above 1 is faster than before. The first three turns do not count: they load, and compile.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from statistics import median, quantiles
from typing import Any

from benchmarks.before_after import write
from benchmarks.provenance import commit_of, hardware, import_from
from minerva.checkpointing import command_line, versions

OUT = Path(__file__).parent / "results" / "speed" / "turns.json"
WORKER = Path(__file__).with_name("turns_worker.py")
WARM_UP = 3
ENV = "HalfCheetah-v5"
_PPO = {"rollout_steps": 256, "num_envs": 8, "minibatch_size": 64, "update_epochs": 10, "target_kl": 0.0}
CASES: dict[str, dict[str, Any]] = {
    f"{name}-{'compiled' if compiled else 'plain'}": {"algorithm": algorithm, "compile": compiled, **fields}
    for name, algorithm, fields in (
        ("ppo-1", "ppo", {**_PPO, "rollout_steps": 2048, "num_envs": 1}),
        ("ppo-8", "ppo", _PPO),
        ("vmpo", "vmpo", {}),
    )
    for compiled in (True, False)
}


class Side:
    """One of the two versions, in its process."""

    def __init__(self, tree: Path, env: str, fields: dict[str, Any], core: int) -> None:
        self._tree = tree
        command = [sys.executable, "-W", "ignore", str(WORKER), json.dumps([env, fields])]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=tree,
            env={**import_from(tree), "OMP_NUM_THREADS": "1"},
        )  # fmt: skip
        if hasattr(os, "sched_setaffinity"):
            os.sched_setaffinity(self._process.pid, {core})
        self._answer()

    def turn(self) -> float:
        """Let the version take its turn; return the processor's seconds."""
        assert self._process.stdin is not None
        self._process.stdin.write("go\n")
        self._process.stdin.flush()
        return float(self._answer())

    def _answer(self) -> str:
        assert self._process.stdout is not None
        for line in self._process.stdout:  # what the run prints itself is passed over
            if line.startswith("turn "):
                return line.split()[1]
        raise RuntimeError(f"The process of {self._tree} ended, with the code {self._process.wait()}.")

    def close(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.communicate()


def duel(trees: dict[str, Path], env: str, fields: dict[str, Any], turns: int, core: int) -> dict[str, Any]:
    """Let two versions take turns and compare them."""
    sides: dict[str, Side] = {}
    seconds: dict[str, list[float]] = {name: [] for name in trees}
    try:
        for name, tree in trees.items():
            sides[name] = Side(tree, env, fields, core)
        for number in range(WARM_UP + turns):
            for name in list(trees)[:: -1 if number % 2 else 1]:
                took = sides[name].turn()
                if number >= WARM_UP:
                    seconds[name].append(took)
    finally:
        for side in sides.values():
            side.close()
    ratios = [old / new for old, new in zip(seconds["before"], seconds["after"], strict=True)]
    low, _, high = quantiles(ratios, n=4)
    return {"speed_ratio": median(ratios), "quartiles": [low, high], "turns": turns, "seconds": seconds}


def main(words: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--before", type=Path, required=True, help="checkout of the older code")
    parser.add_argument("--after", type=Path, required=True, help="checkout of the newer code")
    parser.add_argument("--cases", nargs="+", choices=list(CASES), default=list(CASES), metavar="CASE")
    parser.add_argument("--turns", type=int, default=40)
    parser.add_argument("--core", type=int, default=0)
    parser.add_argument("--out", type=Path, default=OUT)
    options = parser.parse_args(words)
    trees = {"before": options.before.resolve(), "after": options.after.resolve()}
    places = {str(options.before): "BEFORE", str(options.after): "AFTER"}  # paths that mean nothing elsewhere
    about = {
        "commits": {name: commit_of(tree) for name, tree in trees.items()}, "env": ENV, "hardware": hardware(),
        "versions": versions(), "command": " ".join(places.get(word, word) for word in command_line().split()),
    }  # fmt: skip
    for name in options.cases:
        result = duel(trees, ENV, dict(CASES[name]), options.turns, options.core)
        write(options.out, {name: {"settings": CASES[name], **about, **result}})
        low, high = result["quartiles"]
        print(f"{name}: {result['speed_ratio']:.3f} ({low:.3f} to {high:.3f})", flush=True)


if __name__ == "__main__":
    main()
