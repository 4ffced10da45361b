"""Measure rollout workers on Ray: their overhead, and how steps per second grow with their number.

    python -m benchmarks.rollout_workers --out benchmarks/results/rollout_workers.json

Overhead: PPO's collectors fill rollouts of 8 environments, without learning from them: in this process, with local
worker processes, and with Ray workers. Growth: whole training with an environment that sleeps 10 ms per step, one
environment per worker, compared with one environment in this process; also the collecting alone. All contenders exist
at once and take turns, so that other programs disturb all of them alike; the load of the machine is noted.
"""

from __future__ import annotations

import argparse
import json
import os
import pickle
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.provenance import commit_of, hardware
from benchmarks.slow_task import ENV as SLOW
from minerva.checkpointing import command_line, versions
from minerva.trainers.ppo.trainer import PPOTrainer
from minerva.trainers.segment_collectors import acting_weights
from minerva.utils import ray_cluster

QUIET: dict[str, Any] = {"eval_episodes": 0, "checkpoint_minutes": 0.0, "console": False, "compile": False}
OVERHEAD_ENVS = ("Pendulum-v1", "HalfCheetah-v5")
SEGMENTS = (32, 512)
NUM_ENVS = 8
WORKERS = (1, 2, 4, 8)
SLOW_STEPS = 256
LOCAL = "in this process"


def collect(trainer: PPOTrainer) -> float:
    """Fill a rollout and return the seconds."""
    collector = trainer.collector
    begin = time.perf_counter()
    while not collector.rollout.full:
        collector.wait(lambda: False)
        collector.step()
    collector.merge()
    seconds = time.perf_counter() - begin
    collector.rollout.carry_over()
    return seconds


def take_turns(trainers: dict[str, Any], turn: Any, rounds: int) -> tuple[dict[str, list[float]], list[float]]:
    """Let each contender take a turn in each round, in changing order; the first round does not count."""
    seconds: dict[str, list[float]] = {name: [] for name in trainers}
    loads = []
    for number in range(rounds + 1):
        for name in list(trainers) if number % 2 else reversed(trainers):
            took = turn(trainers[name])
            if number:
                seconds[name].append(took)
                loads.append(os.getloadavg()[0])
    return seconds, loads


def measure_overhead(env: str, steps: int, rounds: int) -> dict[str, Any]:
    """Compare where eight environments are stepped, for segments of so many steps."""
    places: dict[str, dict[str, Any]] = {LOCAL: {}}
    for count in (1, 2):
        places[f"{count} local worker processes"] = {"vectorization": "subprocess", "num_workers": count}
        places[f"{count} Ray workers"] = {"rollout_workers": count}
    trainers = {
        name: PPOTrainer(env, 1, "cpu", num_envs=NUM_ENVS, rollout_steps=steps, **QUIET, **fields)
        for name, fields in places.items()
    }
    try:
        for trainer in trainers.values():
            trainer.begin()
        seconds, loads = take_turns(trainers, collect, rounds)
        workers: Any = trainers["2 Ray workers"].env
        segment = workers.collect(lambda: False)
        bytes_of = {
            "weights": len(pickle.dumps(acting_weights(trainers[LOCAL].agent))),
            "segments": len(pickle.dumps(segment)),
        }
    finally:
        for trainer in trainers.values():
            trainer.close()
    microseconds = {name: 1e6 * median(times) / (steps * NUM_ENVS) for name, times in seconds.items()}
    return {
        "env": env,
        "segment_steps": steps,
        "us_per_step": {name: round(value, 2) for name, value in microseconds.items()},
        "ray_to_local_workers": {
            str(count): round(microseconds[f"{count} Ray workers"] / microseconds[f"{count} local worker processes"], 3)
            for count in (1, 2)
        },
        "bytes_per_round": bytes_of,
        "load": [round(min(loads), 1), round(max(loads), 1)],
        "seconds": {name: [round(value, 5) for value in times] for name, times in seconds.items()},
    }


class Training:
    """A run that is trained a rollout at a time.

    Args:
        workers: W, with an environment each; None for one environment in this process.
        folder: Of the run.
    """

    def __init__(self, workers: int | None, folder: Path) -> None:
        self.count = workers or 1
        fields: dict[str, Any] = {
            "num_envs": self.count,
            "rollout_workers": workers,
            "rollout_steps": SLOW_STEPS,
            "update_epochs": 4,
        }
        self.trainer = PPOTrainer(SLOW, 1, "cpu", **QUIET, **fields)
        self._folder = folder

    def turn(self) -> float:
        """Collect a rollout, learn from it, and return the seconds."""
        trainer = self.trainer
        begin = time.perf_counter()
        trainer.train(trainer.env_steps + trainer.config.batch_size, out_dir=self._folder)
        return time.perf_counter() - begin


def measure_growth(rounds: int) -> dict[str, Any]:
    """Compare numbers of workers for an environment that sleeps."""
    with tempfile.TemporaryDirectory(prefix="rollout-workers-") as folder:
        runs = {LOCAL: Training(None, Path(folder) / "local")}
        runs |= {str(count): Training(count, Path(folder) / str(count)) for count in WORKERS}
        try:
            training, loads = take_turns(runs, Training.turn, rounds)
            collecting, more = take_turns({name: run.trainer for name, run in runs.items()}, collect, rounds)
        finally:
            for run in runs.values():
                run.trainer.close()
    table: dict[str, Any] = {"env": SLOW, "seconds_per_step": 0.01, "rollout_steps": SLOW_STEPS}
    for what, seconds in (("training", training), ("collecting", collecting)):
        speeds = {name: runs[name].count * SLOW_STEPS / median(times) for name, times in seconds.items()}
        table[what] = {
            "steps_per_second": {name: round(speed, 1) for name, speed in speeds.items()},
            "of_w_times_one_process": {str(w): round(speeds[str(w)] / (w * speeds[LOCAL]), 3) for w in WORKERS},
            "of_w_times_one_worker": {str(w): round(speeds[str(w)] / (w * speeds["1"]), 3) for w in WORKERS},
            "seconds": {name: [round(value, 4) for value in times] for name, times in seconds.items()},
        }
    return {**table, "load": [round(min(loads + more), 1), round(max(loads + more), 1)]}


def main() -> None:
    """Measure and write the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="file for the tables (JSON)")
    parser.add_argument("--rounds", type=int, default=15, help="turns of each contender, for the overhead")
    parser.add_argument("--slow-rounds", type=int, default=5, help="the same for the environment that sleeps")
    options = parser.parse_args()
    table: dict[str, Any] = {
        "command": command_line(),
        "commit": commit_of(Path(__file__).parents[1]),
        "versions": versions(),
        "hardware": hardware(),
    }

    def keep(name: str, part: Any) -> None:
        table[name] = part
        options.out.write_text(json.dumps(table, indent=1) + "\n")  # after each part, so that no result is lost
        print(json.dumps(part, indent=1), flush=True)

    ray_cluster.connect(None, local_cores=max(WORKERS))
    try:
        keep("growth", measure_growth(options.slow_rounds))
        overhead: list[dict[str, Any]] = []
        for env in OVERHEAD_ENVS:
            for steps in SEGMENTS:
                overhead.append(measure_overhead(env, steps, options.rounds))
                keep("overhead", overhead)
    finally:
        ray_cluster.disconnect()


if __name__ == "__main__":
    main()
