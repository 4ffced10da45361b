"""Tables of how far sweeps and rollout workers scale: measured on a simulated cluster, and what the model says."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from benchmarks import cluster_model as model
from benchmarks.cluster_model import RolloutCosts, SweepCosts, Task

RESULTS = Path(__file__).parent.parent / "benchmarks/results/simulated_cluster.json"
WORKERS = (10, 100, 1000)
NETWORK = 1.25e9  # bytes per second: ten gigabits
WORKERS_PER_NODE = 10
SLOTS_PER_NODE = (16, 64)
NODES, RUNS = 100, 10_000
HEARTBEAT, LOG_ROWS, CHECKPOINT, LOOKS = 10.0, 10.0, 600.0, 200.0


def table(name: str, uri: str) -> str:
    """Make one of the tables."""
    if name not in _TABLES:
        raise ValueError(f"there is no {name!r}, only {', '.join(_TABLES)}")
    head, *rows = _TABLES[name](json.loads(RESULTS.read_text(encoding="utf-8")))
    lines = [head, ["---", *["---:"] * (len(head) - 1)], *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _measured_sweeps(found: dict[str, Any]) -> Iterator[list[str]]:
    yield ["runs", "mean time of a run", "slots", "nodes killed", "predicted", "measured", "measured / predicted"]
    for row in found["sweeps"]:
        mean = (row["runs"]["shortest"] + row["runs"]["longest"]) / 2
        yield [
            f"{row['runs']['count']:,}", f"{mean:g} s", f"{row['slots']}", f"{row['nodes_killed']}",
            f"{row['predicted']:,.0f} s", f"{row['seconds']:,.0f} s", f"{row['ratio']:.2f}",
        ]  # fmt: skip


def _measured_rollouts(found: dict[str, Any]) -> Iterator[list[str]]:
    yield ["task", "workers", "predicted", "measured", "measured / predicted", "longest part"]
    for row in sorted(found["rollouts"], key=lambda row: (row["task"], row["workers"])):
        yield [
            row["task"], f"{row['workers']}", f"{row['predicted']:.2f} s", f"{row['seconds']:.2f} s",
            f"{row['ratio']:.2f}", row["limit"],
        ]  # fmt: skip


def _large_rollouts(found: dict[str, Any]) -> Iterator[list[str]]:
    yield ["task", "knee", *(f"{count:,} workers" for count in WORKERS)]
    costs = rollout_costs(found)
    for task in tasks(found):
        one = task.round()
        cells = []
        for count in WORKERS:
            nodes = -(-count // WORKERS_PER_NODE)
            share, limit = model.efficiency(costs, one, count, nodes), model.limit_of(costs, one, count, nodes)
            cells.append(f"{share:.0%}, {limit}")
        yield [task.name, f"{model.knee(costs, one):.0f} workers", *cells]


def _large_sweep(found: dict[str, Any]) -> Iterator[list[str]]:
    yield [
        "cores per node", "slots", "shortest mean time of a run", "10,000 runs of a minute", "10,000 runs of an hour",
        "file operations per second",
    ]  # fmt: skip
    costs = sweep_costs(found)
    for cores in SLOTS_PER_NODE:
        slots = NODES * cores
        times = [model.sweep_seconds(costs, model.Runs(RUNS, mean, mean), slots) for mean in (60.0, 3600.0)]
        operations = model.file_operations(min(slots, RUNS), HEARTBEAT, LOG_ROWS, CHECKPOINT, LOOKS)
        yield [
            f"{cores}", f"{slots:,}", f"{model.shortest_run(costs, slots):.0f} s",
            f"{times[0] / 60:.1f} minutes", f"{times[1] / 3600:.1f} hours", f"{operations:,.0f}",
        ]  # fmt: skip


_TABLES: dict[str, Callable[[dict[str, Any]], Iterator[list[str]]]] = {
    "measured sweeps": _measured_sweeps,
    "measured rollouts": _measured_rollouts,
    "large rollouts": _large_rollouts,
    "large sweep": _large_sweep,
}


def sweep_costs(found: dict[str, Any]) -> SweepCosts:
    """Return the costs on a cluster of real machines: what the sweep's process does, and how a run starts."""
    calibrations = found["sweep_costs"]
    mean = {name: sum(one[name] for one in calibrations) / len(calibrations) for name in ("run", "central")}
    return SweepCosts(**mean)


def rollout_costs(found: dict[str, Any]) -> RolloutCosts:
    """Return the costs on a cluster of real machines: the learner's process, and the slower of it and the network."""
    calibrations = found["rollout_costs"]
    call = sum(one["learner_call"] for one in calibrations) / len(calibrations)
    per_byte = sum(1 / one["learner_bytes_per_second"] for one in calibrations) / len(calibrations)
    return RolloutCosts(call, 1 / max(per_byte, 1 / NETWORK), weights_bytes_per_second=NETWORK)


def tasks(found: dict[str, Any]) -> list[Task]:
    """Return the tasks of the simulated rollout workers."""
    return [Task(**{name: task[name] for name in Task._fields}) for task in found["rollout_tasks"].values()]
