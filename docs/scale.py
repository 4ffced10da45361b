"""Tables of how far sweeps and rollout workers scale: measured on a simulated cluster, and what the model says."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import fmean
from typing import Any

from benchmarks import cluster_model as model
from benchmarks.cluster_model import RolloutCosts, SweepCosts, Task
from docs.figures import BOTTOM, HEIGHT, LEFT, RIGHT, TOP, WIDTH

RESULTS = Path(__file__).parent.parent / "benchmarks/results/simulated_cluster.json"
WORKERS = (10, 100, 1000)
NETWORK = 1.25e9  # bytes per second: ten gigabits
WORKERS_PER_NODE = 10
SLOTS_PER_NODE = (16, 64)
NODES, RUNS = 100, 10_000
HEARTBEAT, LOG_ROWS, CHECKPOINT, LOOKS = 10.0, 10.0, 600.0, 200.0


def part(name: str, uri: str) -> str:
    """Make one of the tables, or the figure."""
    if name not in (*_TABLES, _CURVES):
        raise ValueError(f"there is no {name!r}, only {', '.join((*_TABLES, _CURVES))}")
    found = json.loads(RESULTS.read_text(encoding="utf-8"))
    if name == _CURVES:
        return f'<div class="curves">\n{"".join(_curve(found, task) for task in tasks(found))}</div>'
    head, *rows = _TABLES[name](found)
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


_CURVES = "rollout curves"
_TABLES: dict[str, Callable[[dict[str, Any]], Iterator[list[str]]]] = {
    "measured sweeps": _measured_sweeps,
    "measured rollouts": _measured_rollouts,
    "large rollouts": _large_rollouts,
    "large sweep": _large_sweep,
}


def _curve(found: dict[str, Any], task: Task) -> str:
    """Draw the model's curve and what was measured: steps per second as workers that wait for nothing, by workers."""
    one, nodes = task.round(), found["nodes"]
    names = ("call", "bytes_per_second", "weights_bytes_per_second")
    costs = RolloutCosts(**{name: fmean(one[name] for one in found["rollout_costs"]) for name in names})

    def share(workers: int) -> float:
        return workers * model.efficiency(costs, one, workers, min(workers, nodes))

    dots = [
        (row["workers"], row["workers"] * one.worker / row["seconds"])
        for row in found["rollouts"]
        if row["task"] == task.name
    ]
    last = 2 * max(workers for workers, _ in dots)
    high = 1.1 * max(share(last), *(value for _, value in dots))

    def at(workers: float, value: float) -> tuple[str, str]:
        x = LEFT + math.log(workers) / math.log(last) * (WIDTH - LEFT - RIGHT)
        return f"{x:.1f}", f"{TOP + (1 - value / high) * (HEIGHT - TOP - BOTTOM):.1f}"

    counts = sorted({round(last ** (k / 40)) for k in range(41)})
    points = " ".join(",".join(at(workers, share(workers))) for workers in counts)
    circles = "".join('<circle class="curves__dot" cx="{}" cy="{}" r="3"/>'.format(*at(*dot)) for dot in dots)
    return (
        f"<figure><figcaption>{task.name}: as many workers that never wait, by workers</figcaption>"
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="Speed by number of workers, {task.name}">'
        f'<line class="curves__axis" x1="{LEFT}" y1="{HEIGHT - BOTTOM}" x2="{WIDTH - RIGHT}" y2="{HEIGHT - BOTTOM}"/>'
        f'<line class="curves__axis" x1="{LEFT}" y1="{TOP}" x2="{LEFT}" y2="{HEIGHT - BOTTOM}"/>'
        f'<polyline class="curves__mean" points="{points}"/>{circles}'
        f'<text x="{LEFT - 5}" y="{TOP + 7}" text-anchor="end">{high:.0f}</text>'
        f'<text x="{LEFT - 5}" y="{HEIGHT - BOTTOM}" text-anchor="end">0</text>'
        f'<text x="{LEFT}" y="{HEIGHT - 5}">1</text>'
        f'<text x="{WIDTH - RIGHT}" y="{HEIGHT - 5}" text-anchor="end">{last} workers</text></svg></figure>\n'
    )


def sweep_costs(found: dict[str, Any]) -> SweepCosts:
    """Return the costs on a cluster of real machines: what the sweep's process does, and how a run starts."""
    return SweepCosts(**{name: fmean(one[name] for one in found["sweep_costs"]) for name in ("run", "central")})


def rollout_costs(found: dict[str, Any]) -> RolloutCosts:
    """Return the costs on a cluster of real machines: the learner's process, and the slower of it and the network."""
    calibrations = found["rollout_costs"]
    call = fmean(one["learner_call"] for one in calibrations)
    per_byte = fmean(1 / one["learner_bytes_per_second"] for one in calibrations)
    return RolloutCosts(call, 1 / max(per_byte, 1 / NETWORK), weights_bytes_per_second=NETWORK)


def tasks(found: dict[str, Any]) -> list[Task]:
    """Return the tasks of the simulated rollout workers."""
    return [Task(**{name: task[name] for name in Task._fields}) for task in found["rollout_tasks"].values()]
