"""Compare the speed of the backends on MuJoCo's tasks: Gymnasium, EnvPool and MuJoCo, which take turns.

    python -m benchmarks.mujoco_speed --out benchmarks/results/speed/mujoco.json

For each task and number of environments, all backends take random actions, one short turn after the other, with the
same number of threads (Gymnasium: in process, so one). A ratio is one of speeds, the median over the rounds: above 1,
MuJoCo is faster. It is given by the clock, and by the processor's time, which a machine that is shared disturbs less,
but which also counts threads that wait busily.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import numpy as np

from benchmarks.provenance import hardware
from minerva import checkpointing, environments
from minerva.environments import BatchedEnvironment
from minerva.utils.cores import usable_cores

TASKS = (
    "HalfCheetah-v5", "Hopper-v5", "Walker2d-v5", "Ant-v5", "Humanoid-v5", "dm_control/cheetah/run",
    "dm_control/humanoid/walk",
)  # fmt: skip
BACKENDS = ("gymnasium", "envpool", "mujoco")
MOST_OF_GYMNASIUM = 64
"""It steps one environment after the other, so with more of them it is as fast, and takes long to start."""
SEED = 1


class Turn(NamedTuple):
    """How long a turn took, per step of one environment."""

    seconds: float
    processor: float


class Contender:
    """A backend, and how many steps fill its turn."""

    def __init__(self, env: BatchedEnvironment, seconds: float) -> None:
        self._env = env
        generator = np.random.default_rng(SEED)
        shape = (16, env.num_envs, *(env.action_space.shape or ()))
        self._actions = generator.uniform(-1, 1, shape).astype(np.float32)
        env.reset()
        self._steps = 4
        first = self.turn().seconds * env.num_envs
        self._steps = max(4, int(seconds / first))

    def turn(self) -> Turn:
        """Take a turn."""
        begin, processor = time.perf_counter(), time.process_time()
        for step in range(self._steps):
            self._env.step(self._actions[step % len(self._actions)])
        count = self._steps * self._env.num_envs
        return Turn((time.perf_counter() - begin) / count, (time.process_time() - processor) / count)

    def close(self) -> None:
        """Close the environments."""
        self._env.close()


def contest(name: str, num_envs: int, threads: int, rounds: int, seconds: float) -> dict[str, Any]:
    """Let the backends take turns and compare them."""
    contenders: dict[str, Contender] = {}
    turns: dict[str, list[Turn]] = {backend: [] for backend in BACKENDS}
    try:
        for backend in BACKENDS:
            count = min(num_envs, MOST_OF_GYMNASIUM) if backend == "gymnasium" else num_envs
            env = environments.make(name, count, SEED, backend=backend, pool_threads=threads)  # type: ignore[arg-type]
            contenders[backend] = Contender(env, seconds)
        for number in range(rounds):
            for backend in BACKENDS[:: -1 if number % 2 else 1]:
                turns[backend].append(contenders[backend].turn())
    finally:
        for contender in contenders.values():
            contender.close()

    def ratio(other: str, part: Callable[[Turn], float]) -> float:
        pairs = zip(turns[other], turns["mujoco"], strict=True)
        return round(median(part(theirs) / part(ours) for theirs, ours in pairs), 3)

    return {
        "steps_per_second": {name: round(1 / median(turn.seconds for turn in turns[name])) for name in BACKENDS},
        "ratio": {other: ratio(other, lambda turn: turn.seconds) for other in BACKENDS[:2]},
        "ratio_of_processor_time": {other: ratio(other, lambda turn: turn.processor) for other in BACKENDS[:2]},
    }


def main() -> None:
    """Compare the backends and write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="file for the table (JSON)")
    parser.add_argument("--tasks", nargs="+", default=list(TASKS), help="environments")
    parser.add_argument("--num-envs", nargs="+", type=int, default=[8, 64, 512])
    parser.add_argument("--threads", type=int, default=usable_cores(), help="of EnvPool and MuJoCo")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=0.2, help="of a turn")
    options = parser.parse_args()
    table: dict[str, Any] = {
        "command": checkpointing.command_line(),
        "commit": checkpointing.git_commit(),
        "versions": checkpointing.versions(),
        "hardware": hardware(),
        "threads": options.threads,
        "load": [list(os.getloadavg())],  # of the last 1, 5 and 15 minutes, at the start and after each task
        "tasks": {},
    }
    for name in options.tasks:
        rows = table["tasks"].setdefault(name, {})
        for num_envs in options.num_envs:
            rows[num_envs] = row = contest(name, num_envs, options.threads, options.rounds, options.seconds)
            speeds = "  ".join(f"{backend} {speed:>7,}" for backend, speed in row["steps_per_second"].items())
            ratios = "  ".join(f"{row[kind]['envpool']:.2f} {row[kind]['gymnasium']:.2f}" for kind in list(row)[1:])
            print(f"{name:26} {num_envs:4}  {speeds}  to EnvPool, Gymnasium: {ratios}", flush=True)
        table["load"].append(list(os.getloadavg()))
        options.out.write_text(json.dumps(table, indent=1) + "\n")  # after each task, so that no result is lost


if __name__ == "__main__":
    main()
