"""Run sweeps and rollout workers on a simulated cluster, and compare what they took with a model's prediction.

    python -m benchmarks.simulated_cluster --out benchmarks/results/simulated_cluster.json

A Ray cluster of a head and ten nodes with ten slots each is started on this machine. Sweep, executor, run folders,
locks and status are the real ones; the runs (`benchmarks/sleeping_trainer.py`) and the rollout workers sleep where they
would compute, for as long as that would take, and write files and pass arrays of real size. One node in ten is killed
while 2,000 runs are on their way.

The constants of the model (`benchmarks/cluster_model.py`) are measured by calibrations of their own, before and after
the runs that are compared, because other programs use the machine too.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import random
import shutil
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from statistics import fmean, median
from typing import Any, NamedTuple

os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
import ray
from ray import exceptions
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from benchmarks import cluster_model as model
from benchmarks import sleeping_trainer
from benchmarks.cluster_model import Loss, RolloutCosts, Round, Runs, SweepCosts, Task, sweep_seconds
from benchmarks.provenance import commit_of, hardware
from benchmarks.ray_nodes import Cluster, Node
from benchmarks.simulated_rollouts import CONTROL, IMAGES, Played, Worker, play_rounds
from minerva.sweeps.expansion import PlannedRun
from minerva.sweeps.ray_tasks import RayExecutor
from minerva.sweeps.spec import Resources
from minerva.sweeps.status import SweepStatus
from minerva.sweeps.sweep import Sweep
from minerva.utils.folder_lock import FILE_NAME

PROGRAM = (sys.executable, str(sleeping_trainer.__file__))
STEPS = 20
STORE = 1_500_000_000
_CROWD = 5  # runs per slot where the machine is busy with nothing else
_NONE = Runs(0, 0.0, 0.0)


class Size(NamedTuple):
    """How large the simulation is."""

    nodes: int = 10
    slots: int = 10
    """Of each node."""
    sweeps: tuple[tuple[int, Runs], ...] = (
        (10, Runs(60, 2.0, 6.0)),
        (30, Runs(300, 2.0, 6.0)),
        (100, Runs(400, 0.0, 1.0)),
    )
    """Slots that are used, and runs."""
    killed: Runs = Runs(2000, 8.0, 16.0)
    """The runs during which one node in ten is killed."""
    workers: tuple[int, ...] = (1, 10, 30, 100)
    tasks: tuple[Task, ...] = (CONTROL, IMAGES)
    rounds: int = 3


@contextmanager
def connected(cluster: Cluster) -> Iterator[None]:
    """Connect this process with a cluster."""
    ray.init(address=cluster.address, log_to_driver=False, logging_level=logging.ERROR)
    try:
        yield
    finally:
        ray.shutdown()


@ray.remote(num_cpus=1, max_retries=0)
def _rest(seconds: float) -> None:
    time.sleep(seconds)


def warm_up(slots: int) -> float:
    """Start the worker processes of all nodes, one node after the other; return the seconds per process."""
    begin, count = time.monotonic(), 0
    for node in nodes_with_slots():
        there = NodeAffinitySchedulingStrategy(node, soft=False)
        ray.get([_rest.options(scheduling_strategy=there).remote(1.0) for _ in range(slots)])
        begin += 1.0
        count += slots
    return (time.monotonic() - begin) / count


def nodes_with_slots() -> list[str]:
    """Return the ids of the living nodes on which runs can be."""
    nodes = ray.nodes()  # type: ignore[no-untyped-call]
    return [node["NodeID"] for node in nodes if node["Alive"] and node["Resources"].get("CPU")]


# Sweeps


def play_sweep(out: Path, runs: Runs, slots: int, kill: tuple[float, Sequence[Node]] | None = None) -> dict[str, Any]:
    """Run a sweep and return what it took.

    Args:
        out: Its folder, which is deleted.
        runs: Its runs; the times of each are drawn with a seed.
        slots: How many run at once.
        kill: After how many seconds nodes are killed, and which.
    """
    draw = random.Random(runs.count)
    planned = [
        PlannedRun(
            folder=f"ppo/Sleep-v0/v{k // 10}/seed{k % 10}", algorithm="ppo", env="Sleep-v0", variant=f"v{k // 10}",
            seed=k % 10, total_steps=STEPS, final_step=STEPS, settings={},
            words=(str(STEPS), f"{draw.uniform(runs.shortest, runs.longest):.4f}"),
        )
        for k in range(runs.count)
    ]  # fmt: skip
    executor = RayExecutor(None, slots, Resources(), PROGRAM)
    sweep = Sweep("simulated", planned, out, executor, Resources())
    timer = threading.Timer(kill[0], _kill, (kill[1],)) if kill else None
    if timer is not None:
        timer.start()
    begin, processor = time.monotonic(), time.process_time()
    result = sweep.run()
    seconds, processor = time.monotonic() - begin, time.process_time() - processor
    if timer is not None:
        timer.join()
    status = SweepStatus.read(out)
    steps = Counter(
        json.loads((out / run.folder / sleeping_trainer.CHECKPOINT).read_text())["steps"] for run in planned
    )
    found = {
        "slots": slots,
        "runs": asdict(runs),
        "done": status.counts()["done"],
        "failed": len(result.failed),
        "attempts": sum(run.attempts for run in status.runs),
        "with_all_steps": steps[STEPS],
        "locks_left": sum(1 for _ in out.rglob(FILE_NAME)),
        "seconds": round(seconds, 2),
        "processor_seconds_of_the_sweep": round(processor, 2),
    }
    shutil.rmtree(out)
    return found


def _kill(nodes: Sequence[Node]) -> None:
    for node in nodes:
        node.kill()


def calibrate_sweep(root: Path, slots: int) -> dict[str, float]:
    """Measure what a sweep's run costs: alone in one slot, and where the machine is busy with nothing else."""
    opening = play_sweep(root / "none", _NONE, 1)["seconds"]
    alone = play_sweep(root / "alone", Runs(15, 0.2, 0.2), 1)
    crowd = play_sweep(root / "crowd", Runs(_CROWD * slots, 0.0, 0.0), slots)
    return {
        "opening": opening,
        "run": round((alone["seconds"] - opening) / 15 - 0.2, 4),
        "central": round(crowd["processor_seconds_of_the_sweep"] / (_CROWD * slots), 5),
        "simulator": round((crowd["seconds"] - opening) / (_CROWD * slots), 4),
    }


def calibrate_loss(cluster: Cluster) -> float:
    """Measure how long it takes until a sweep knows that a task's node was killed."""
    known = set(nodes_with_slots())
    node = cluster.add()
    (there,) = set(nodes_with_slots()) - known
    strategy = NodeAffinitySchedulingStrategy(there, soft=False)
    ray.get(_rest.options(scheduling_strategy=strategy).remote(0.0))
    task = _rest.options(scheduling_strategy=strategy).remote(600.0)
    time.sleep(2.0)
    begin = time.monotonic()
    node.kill()
    with suppress(exceptions.RayError):
        ray.get(task)
    noticed = time.monotonic() - begin
    while there in nodes_with_slots():  # until then, Ray would give it tasks
        time.sleep(0.2)
    return noticed


# Rollout workers


def start_workers(count: int, nodes: Sequence[str]) -> list[Any]:
    """Start workers, spread over the nodes, a node's share after the other."""
    workers: list[Any] = []
    for k in range(count):
        there = NodeAffinitySchedulingStrategy(nodes[k % len(nodes)], soft=False)
        workers.append(Worker.options(scheduling_strategy=there).remote())  # type: ignore[attr-defined]
        if k % 10 == 9:
            ray.get([worker.ready.remote() for worker in workers[-10:]])
    ray.get([worker.ready.remote() for worker in workers])
    return workers


def calibrate_rollouts(workers: list[Any], nodes: int) -> dict[str, float]:
    """Measure a message's cost and the bytes per second: workers that do not work, and small and large messages.

    No size here is one of those that are predicted. What begins with `learner` is the processor's time in the learner's
    process alone: on a real cluster, the rest is done by other machines.
    """
    count = len(workers)
    small, large, heavy = 1 << 18, 1 << 22, 1 << 24

    def play(segment: int, weights: int) -> Played:
        played = play_rounds(workers, Round(segment, 0.0, 0.0, weights), 5)
        return Played(median(one.seconds for one in played), median(one.processor for one in played))

    base, more, heavier = play(small, 4), play(large, 4), play(small, heavy)
    found = {}
    for name, before, after in (("", base.seconds, more.seconds), ("learner_", base.processor, more.processor)):
        per_byte = max(after - before, 1e-9) / count / (large - small)
        found[f"{name}call"] = round(before / count - small * per_byte, 6)
        found[f"{name}bytes_per_second"] = round(1 / per_byte)
    return found | {"weights_bytes_per_second": round(nodes * heavy / max(heavier.seconds - base.seconds, 1e-9))}


def simulate(root: Path, size: Size = Size()) -> dict[str, Any]:  # noqa: B008
    """Run the simulation and return its table.

    Args:
        root: An empty folder.
        size: How large it is.
    """
    (root / "nodes").mkdir()
    cluster = Cluster(root / "nodes", cores=size.slots, head_cores=0, store=STORE)
    begin = time.monotonic()
    try:
        nodes = [cluster.add() for _ in range(size.nodes)]
        with connected(cluster):
            table: dict[str, Any] = {"worker_process_seconds": round(warm_up(size.slots), 3)}
            print(f"{time.monotonic() - begin:.0f} s: {size.nodes} nodes, {table}", flush=True)
            table |= simulate_sweeps(root, size, cluster, nodes)
            print(json.dumps(table), flush=True)
            for _ in range(size.nodes - len(nodes_with_slots())):
                cluster.add()
            table |= simulate_rollouts(size)
    finally:
        cluster.close()
    table = {"nodes": size.nodes, "slots_per_node": size.slots, **table, "seconds": round(time.monotonic() - begin)}
    predict(table)
    return table


def simulate_sweeps(root: Path, size: Size, cluster: Cluster, nodes: Sequence[Node]) -> dict[str, Any]:
    """Run the sweeps, with a calibration before each and after the last."""
    lost = nodes[: max(1, size.nodes // 10)]
    rows, calibrations = [], [calibrate_sweep(root, 2 * size.slots)]
    noticed = calibrate_loss(cluster)
    for slots, runs in (*size.sweeps, (size.nodes * size.slots, size.killed)):
        load = os.getloadavg()[0]
        at = 0.4 * sweep_seconds(_sweep_costs(calibrations[-1:]), runs, slots) if runs is size.killed else None
        row = play_sweep(root / "sweep", runs, slots, None if at is None else (at, lost))
        row |= {"load_before": round(load, 1), "killed_after": at, "nodes_killed": 0 if at is None else len(lost)}
        rows.append(row)
        print(row, flush=True)
        calibrations.append(calibrate_sweep(root, 2 * size.slots))
    return {"sweep_costs": calibrations, "seconds_until_a_lost_node_is_noticed": round(noticed, 2), "sweeps": rows}


def simulate_rollouts(size: Size) -> dict[str, Any]:
    """Run the rollout workers, with a calibration for each number of them that is large enough."""
    ids = nodes_with_slots()
    rows, calibrations = [], []
    for count in size.workers:
        workers = start_workers(count, ids)
        some = workers[: 2 * len(ids)]
        if len(some) == 2 * len(ids):  # with two per node
            calibrations.append(calibrate_rollouts(some, len(ids)))
        for task in size.tasks:
            load = os.getloadavg()[0]
            seconds = fmean(played.seconds for played in play_rounds(workers, task.round(), size.rounds))
            row = {"task": task.name, "workers": count, "seconds": round(seconds, 3), "load_before": round(load, 1)}
            rows.append(row)
            print(row, flush=True)
        for worker in workers:
            ray.kill(worker)
        time.sleep(1.0)
    return {
        "rollout_costs": calibrations,
        "rollout_tasks": {task.name: task._asdict() for task in size.tasks},
        "rollouts": rows,
    }


# Predictions


def predict(table: dict[str, Any]) -> None:
    """Put beside each measurement of a table what the model says, from the table's calibrations alone."""
    nodes, slots_per_node = table["nodes"], table["slots_per_node"]
    for number, row in enumerate(table["sweeps"]):
        around = table["sweep_costs"][number : number + 2]
        costs, runs = _sweep_costs(around), Runs(**row["runs"])
        opening = fmean(one["opening"] for one in around)
        losses = []
        if row["killed_after"] is not None:
            again = table["seconds_until_a_lost_node_is_noticed"] + runs.mean / STEPS / 2
            losses.append(Loss(row["killed_after"] - opening, row["nodes_killed"] * slots_per_node, again))
        _compare(row, opening + sweep_seconds(costs, runs, row["slots"], tuple(losses)))
    names = ("call", "bytes_per_second", "weights_bytes_per_second")
    serving = RolloutCosts(**{name: fmean(one[name] for one in table["rollout_costs"]) for name in names})
    for row in table["rollouts"]:
        one, used = Task(**table["rollout_tasks"][row["task"]]).round(), min(row["workers"], nodes)
        _compare(row, model.round_seconds(serving, one, row["workers"], used))
        row["limit"] = model.limit_of(serving, one, row["workers"], used)


def _sweep_costs(calibrations: Sequence[dict[str, float]]) -> SweepCosts:
    return SweepCosts(**{name: fmean(one[name] for one in calibrations) for name in ("run", "central", "simulator")})


def _compare(row: dict[str, Any], predicted: float) -> None:
    row |= {"predicted": round(predicted, 3), "ratio": round(row["seconds"] / predicted, 3)}


def main() -> None:
    """Run the simulation and write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="file for the table (JSON)")
    options = parser.parse_args()
    from minerva.checkpointing import command_line, versions

    root = Path(tempfile.mkdtemp(prefix="simulated-", dir="/tmp"))
    origin = {
        "command": command_line(), "commit": commit_of(Path(__file__).parent), "versions": versions(),
        "hardware": hardware(),
    }  # fmt: skip
    try:
        table = {**origin, **simulate(root)}
    finally:
        shutil.rmtree(root, ignore_errors=True)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(table, indent=1) + "\n")


if __name__ == "__main__":
    main()
