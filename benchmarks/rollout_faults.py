"""Kill rollout workers, nodes and learners, and compare the runs with undisturbed ones, bit for bit.

    python -m benchmarks.rollout_faults --out benchmarks/results/rollout_faults.json

Each case trains on a Ray cluster of two nodes, to which the workers belong, and a head without cores, where the
learner is; all on this machine, by three `ray start`s. It is trained undisturbed; with a worker's process killed in the
middle; with a node killed that has at least one of its workers; and with the learner killed and resumed. Runs are
compared part by part, as `benchmarks.kill_and_resume` does it. Cases that the file holds already, of other algorithms,
numbers of workers or faults, are kept.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.kill_and_resume import ALGORITHM_FIELDS, Case, Kill, Worker, compare, run_disturbed, run_undisturbed
from benchmarks.provenance import commit_of, hardware
from benchmarks.ray_nodes import Cluster, Node
from benchmarks.slow_task import ENV
from minerva.checkpointing import command_line, versions

FAULTS = ("worker", "node", "learner")
ENVS, STEPS = 4, 64
NODES, CORES = 2, 4
"""Each node has room for the largest number of workers."""
ATTEMPTS = 10


def workers_of(node: Node) -> list[int]:
    """Return the ids of the processes on a node that are rollout workers."""
    found = []
    for pid in node.processes():
        try:
            words = (Path("/proc") / str(pid) / "cmdline").read_bytes()
        except OSError:
            continue
        if b"ray::RolloutWorker" in words:
            found.append(pid)
    return found


def living(cluster: Cluster) -> list[Node]:
    """Return the nodes but the head that are alive."""
    return [node for node in cluster.nodes[1:] if node.process.poll() is None]


def complete(cluster: Cluster) -> None:
    """Add nodes until there are two; on a busy machine, Ray may give up on one that starts slowly."""
    for _ in range(ATTEMPTS):
        if len(living(cluster)) == NODES:
            return
        with suppress(RuntimeError):
            cluster.add()
    raise RuntimeError("Ray could not start a node")


def run_case(case: Case, fault: str, cluster: Cluster, folder: Path, kill: Kill) -> list[str]:
    """Train a case to its end with a fault in the middle, and return what its log says of lost workers."""
    if fault == "learner":
        run_disturbed(case, folder, [kill])
        return []
    assert kill.step is not None
    learner = Worker(case, folder)
    try:
        if not learner.reach(kill.step):
            raise RuntimeError("the run ended before the fault")
        time.sleep(kill.seconds)
        node = max(living(cluster), key=lambda node: len(workers_of(node)))
        if fault == "worker":
            os.kill(workers_of(node)[0], signal.SIGKILL)
        else:
            node.kill()
        code = learner.finish()
    finally:
        learner.process.kill()
    if code != 0:
        raise RuntimeError(f"the run ended with exit code {code}")
    said = [line for line in (folder / "notes.log").read_text().splitlines() if " was lost " in line]
    if not said:
        raise RuntimeError("the log does not say that a worker was lost")
    return said


def main() -> None:
    """Run the matrix and write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="file for the table (JSON)")
    parser.add_argument("--algos", nargs="+", default=list(ALGORITHM_FIELDS), help="algorithms")
    parser.add_argument("--workers", nargs="+", type=int, default=[1, 2, 4], help="numbers of rollout workers")
    parser.add_argument("--faults", nargs="+", default=list(FAULTS), choices=FAULTS, help="what is killed")
    parser.add_argument("--seed", type=int, default=1, help="seed of the runs and of the moments")
    options = parser.parse_args()
    root = Path(tempfile.mkdtemp(prefix="rollout-faults-"))
    table: dict[str, Any] = {
        "command": command_line(),
        "commit": commit_of(Path(__file__).parents[1]),
        "versions": versions(),
        "hardware": hardware(),
        "cases": [],
    }
    if options.out.exists():
        chosen = (options.algos, options.workers, options.faults)
        table["cases"] = [
            row
            for row in json.loads(options.out.read_text())["cases"]
            if not all(row[name] in some for name, some in zip(("algo", "workers", "fault"), chosen, strict=True))
        ]
    rng = np.random.default_rng(options.seed)
    cluster = Cluster(root, cores=CORES, head_cores=0)
    try:
        for algo in options.algos:
            for count in options.workers:
                rollout = {"segment_steps": STEPS} if algo == "mpo" else {"rollout_steps": STEPS}
                fields = {
                    **ALGORITHM_FIELDS[algo](ENVS), **rollout, "rollout_workers": count, "address": cluster.address,
                    "vectorization": "sync", "num_workers": None, "env_kwargs": {"seconds": 0.001}, "compile": False,
                    "eval_episodes": 1, "eval_interval": 1024, "eval_max_steps": 20, "checkpoint_interval": 300,
                }  # fmt: skip
                case = Case(ENV, ENVS, 12 * ENVS * STEPS, options.seed, fields, algo)
                folder = root / f"{algo}-{count}"
                folder.mkdir()
                complete(cluster)
                run_undisturbed(case, folder / "undisturbed")
                for fault in options.faults:
                    kill = Kill(int(rng.integers(2, 9)) * ENVS * STEPS, float(rng.uniform(0, 0.1)))
                    row = {
                        "algo": algo,
                        "workers": count,
                        "fault": fault,
                        "commit": table["commit"],
                        "at": kill.step,
                        "error": None,
                        "said": [],
                    }
                    complete(cluster)
                    try:
                        row["said"] = run_case(case, fault, cluster, folder / fault, kill)
                        row["parts"] = compare(folder / "undisturbed", folder / fault)
                    except (RuntimeError, TimeoutError, OSError) as error:
                        row["error"], row["parts"] = f"{type(error).__name__}: {error}", {}
                    row["identical"] = row["error"] is None and all(row["parts"].values())
                    table["cases"].append(row)
                    options.out.write_text(json.dumps(table, indent=1) + "\n")  # so that no result is lost
                    verdict = "identical" if row["identical"] else f"DIFFERS: {row['error'] or row['parts']}"
                    print(f"{algo:5} {count} workers  {fault:8} killed  {verdict}", flush=True)
    finally:
        cluster.close()
    shutil.rmtree(root)


if __name__ == "__main__":
    main()
