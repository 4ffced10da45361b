"""Check exact resuming: kill runs with SIGKILL at random moments, resume them, and compare with uninterrupted runs.

    python -m benchmarks.kill_and_resume --out benchmarks/results/kill_and_resume.json

Each case trains twice, in separate processes: once without interruption, and once killed at `--kills` moments (drawn
from a seeded generator) and resumed each time from the last checkpoint. Most moments are up to a tenth of a second
after an environment step, so that they hit rollouts, updates, evaluations and the writing of checkpoints; some are
seconds after the process starts, so that they hit the start of a run or the replay of its episodes. At the end the two
runs must be equal bit for bit: weights, optimizer, normalizers, generators, environments, rollout or replay buffer, the
best checkpoint and every logged value except the steps per second.
"""

from __future__ import annotations

import argparse
import csv
import itertools
import json
import mmap
import os
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from minerva import api, checkpointing
from minerva.checkpointing import replay_folder
from minerva.storage.replay import ReplayBuffer
from minerva.trainers.run import CLOCK_FIELDS
from minerva.trainers.trainer import Trainer

ENVIRONMENTS = ("HalfCheetah-v5", "Ant-v5", "dm_control/cheetah/run")
CLOCK = ("time/", "charts/SPS")
"""How the names of metrics begin that the clock decides."""
ALGORITHM_FIELDS: dict[str, Callable[[int], dict[str, Any]]] = {
    "ppo": lambda num_envs: {"rollout_steps": 2048 // num_envs},
    "vmpo": lambda num_envs: {"rollout_steps": 2048 // num_envs},
    # A replay buffer that overflows, and sequences, so that kills hit every part of the code.
    "mpo": lambda num_envs: {
        "replay_size": 4000, "batch_size": 32, "policy_layer_sizes": (32, 32), "critic_layer_sizes": (32, 32),
        "use_retrace": True, "retrace_steps": 4, "normalize_obs": True, "update_interval": 4,
    },
}  # fmt: skip
"""Settings of a run, as a function of the number of environments."""
GENERATORS = {"action_noise", "layer_noise", "minibatch_order", "update_noise", "replay_order"}
TIMEOUT = 600.0
_PROGRESS = struct.Struct("q")


@dataclass(frozen=True)
class Case:
    """One run to kill and resume."""

    env_id: str
    num_envs: int
    total_steps: int
    seed: int = 1
    fields: dict[str, Any] = field(default_factory=dict)
    """Further settings of the algorithm's config; they override the others."""
    algo: str = "ppo"

    def make_trainer(self) -> Trainer:
        """Make the trainer of this run."""
        config = api.config_class(self.algo).from_fields(None, self.settings())
        return api.make_trainer(self.algo, self.env_id, self.seed, "cpu", config)

    def settings(self) -> dict[str, Any]:
        """Return the fields of the config."""
        workers = {"vectorization": "subprocess", "num_workers": 2} if self.num_envs > 1 else {}
        if self.fields.get("backend", "gymnasium") != "gymnasium":
            workers = {"pool_threads": 2}
        return {"num_envs": self.num_envs, "console": False, **workers, **self.fields}


@dataclass(frozen=True)
class Kill:
    """One moment: an environment step, or None for the start of the process, and the seconds after it."""

    step: int | None
    seconds: float


def draw_kills(rng: np.random.Generator, count: int, total_steps: int, at_start: float) -> list[Kill]:
    """Draw moments in chronological order; a fraction `at_start` of them is at the start of a process."""
    steps = np.sort(rng.integers(1, int(0.95 * total_steps), size=count)).tolist()
    return [
        Kill(None, float(rng.uniform(0, 4))) if rng.random() < at_start else Kill(step, float(rng.uniform(0, 0.1)))
        for step in steps
    ]


# The process that trains


def work(case: Case, folder: Path, progress: Path) -> None:
    """Train, or resume if there is a checkpoint, and write the current step into a shared file."""
    with progress.open("r+b") as file:
        shared = mmap.mmap(file.fileno(), _PROGRESS.size)

    def tell(trainer: Trainer) -> None:
        _PROGRESS.pack_into(shared, 0, trainer.env_steps)

    trainer = case.make_trainer()
    if folder.is_dir() and any(folder.glob("*.pt")):
        trainer.load(folder)
    trainer.train(case.total_steps, out_dir=folder, callbacks=tell)
    trainer.close()


class Worker:
    """A process that trains, and its current step."""

    def __init__(self, case: Case, folder: Path) -> None:
        self._progress = folder.with_name(folder.name + ".progress")
        self._progress.write_bytes(_PROGRESS.pack(-1))
        arguments = json.dumps([vars(case), str(folder), str(self._progress)])
        # The package may be importable only through the path of this interpreter.
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(p or "." for p in sys.path)}
        self.process = subprocess.Popen([sys.executable, __file__, "--work", arguments], env=environment)

    @property
    def step(self) -> int:
        """The newest environment step; -1 before the first one."""
        return int(_PROGRESS.unpack(self._progress.read_bytes())[0])

    def reach(self, step: int) -> bool:
        """Wait until the process reaches a step; returns whether it is still running then."""
        deadline = time.monotonic() + TIMEOUT
        while self.step < step:
            if self.process.poll() is not None:
                return False
            if time.monotonic() > deadline:
                self.process.kill()
                raise TimeoutError(f"step {step} was not reached within {TIMEOUT:.0f} s")
            time.sleep(0.0005)
        return self.process.poll() is None

    def finish(self) -> int:
        """Wait for the end and return the exit code."""
        return self.process.wait(TIMEOUT)


def run_undisturbed(case: Case, folder: Path) -> None:
    """Train without interruption.

    Raises:
        RuntimeError: The process failed.
    """
    code = Worker(case, folder).finish()
    if code != 0:
        raise RuntimeError(f"the undisturbed run ended with exit code {code}")


def run_disturbed(
    case: Case, folder: Path, kills: list[Kill], signal_number: int = signal.SIGKILL
) -> list[dict[str, Any]]:
    """Train to the end, killed at each of the moments and resumed; returns a description of each kill.

    Raises:
        RuntimeError: A process failed, or ended before its moment.
    """
    done: list[dict[str, Any]] = []
    for kill in kills:
        worker = Worker(case, folder)
        running = worker.reach(kill.step) if kill.step is not None else True
        if running:
            time.sleep(kill.seconds)
            running = worker.process.poll() is None
        worker.process.send_signal(signal_number)
        code = worker.finish()
        if not running:
            raise RuntimeError(f"the run ended with exit code {code} before the moment {kill}")
        at = worker.step
        resumes_at = saved_step(folder)
        done.append({"moment": kill.step, "seconds": kill.seconds, "killed_at": at, "saved": resumes_at, "code": code})
    code = Worker(case, folder).finish()
    if code != 0:
        raise RuntimeError(f"the resumed run ended with exit code {code}")
    return done


def saved_step(folder: Path) -> int | None:
    """Return the step of a run's last checkpoint; None if there is none yet."""
    path = next(folder.glob("*_last.pt"), None)
    return None if path is None else int(checkpointing.read(path)["run"]["env_steps"])


# The comparison


def same(a: Any, b: Any) -> bool:
    """Compare bit for bit, including nested dictionaries and lists."""
    if isinstance(a, torch.Tensor) or isinstance(b, torch.Tensor):
        return (
            isinstance(a, torch.Tensor)
            and isinstance(b, torch.Tensor)
            and (a.dtype, a.shape) == (b.dtype, b.shape)
            and a.contiguous().numpy().tobytes() == b.contiguous().numpy().tobytes()
        )
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    if isinstance(a, (list, tuple)) and isinstance(b, (list, tuple)):
        return len(a) == len(b) and all(same(x, y) for x, y in zip(a, b, strict=True))
    return type(a) is type(b) and bool(a == b)


def logged(folder: Path) -> list[list[str]]:
    """Read the rows of a run's log, without those that depend on the clock."""
    with (folder / "metrics.csv").open(newline="") as file:
        return [row for row in csv.reader(file) if not row[1].startswith(CLOCK)]


def compare(one: Path, other: Path) -> dict[str, bool]:
    """Compare two finished runs, part by part."""
    last = [next(folder.glob("*_last.pt")) for folder in (one, other)]
    checkpoints = [checkpointing.read(path) for path in last]
    first, second = (whole_state(checkpoint) for checkpoint in checkpoints)
    collectors = [state["collector"] for state in (first, second)]
    generators = GENERATORS & first.keys()
    known = {"agent", "optimizer", "collector", *generators}
    parts = {
        # Includes the observation normalizer, which is part of the agent.
        "weights": same(first["agent"], second["agent"]),
        "optimizer": same(first["optimizer"], second["optimizer"]),
        "generators": all(same(first[name], second[name]) for name in generators),
        "environments": same(collectors[0]["env"], collectors[1]["env"]),
        **{name: same(collectors[0][name], collectors[1].get(name)) for name in collectors[0].keys() - {"env"}},
        "counters": first.keys() == second.keys() and all(same(first[k], second[k]) for k in first.keys() - known),
        "metrics": logged(one) == logged(other),
    }
    if checkpoints[0]["replay"] is not None:
        replays = [replay_of(path, checkpoint) for path, checkpoint in zip(last, checkpoints, strict=True)]
        counters = [{k: v for k, v in c["replay"].items() if k != "segments"} for c in checkpoints]
        parts["replay"] = same(*replays) and same(*counters)
    best = [path.with_name(path.name.replace("_last", "_best")) for path in last]
    if any(path.exists() for path in best):
        parts["best"] = same(*(whole_state(checkpointing.read(path)) if path.exists() else {} for path in best))
    return parts


def whole_state(checkpoint: dict[str, Any]) -> dict[str, Any]:
    """Return the states of a trainer and of its run as one, without what the clock decides."""
    run = {name: value for name, value in checkpoint["run"].items() if name not in CLOCK_FIELDS}
    return {**run, **checkpoint["state"]}


def replay_of(path: Path, checkpoint: dict[str, Any]) -> dict[str, Any]:
    """Read the replay buffer that belongs to a checkpoint."""
    index = checkpoint["replay"]
    shape = (index[name] for name in ("capacity", "num_envs", "obs_dim", "action_dim", "log_probs"))
    replay = ReplayBuffer(*shape)
    replay.load(replay_folder(path), index)
    names = ("obs", "actions", "rewards", "flags", *["log_probs"] * index["log_probs"])
    return {name: torch.from_numpy(getattr(replay, name)) for name in names}


def run_case(case: Case, folder: Path, kills: list[Kill]) -> dict[str, Any]:
    """Run a case with and without kills, and compare."""
    begin = time.perf_counter()
    row: dict[str, Any] = {"case": vars(case), "kills": [], "parts": {}, "identical": False, "error": None}
    try:
        run_undisturbed(case, folder / "undisturbed")
        row["kills"] = run_disturbed(case, folder / "disturbed", kills)
        row["parts"] = compare(folder / "undisturbed", folder / "disturbed")
        row["rows_logged"] = len(logged(folder / "undisturbed"))
        row["identical"] = all(row["parts"].values())
    except (RuntimeError, TimeoutError, OSError, checkpointing.CheckpointError) as error:
        row["error"] = f"{type(error).__name__}: {error}"
    row["seconds"] = round(time.perf_counter() - begin, 1)
    return row


def main() -> None:
    """Run the cases and write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="file for the table (JSON)")
    parser.add_argument("--envs", nargs="+", default=list(ENVIRONMENTS), help="environments")
    parser.add_argument("--num-envs", nargs="+", type=int, default=[1, 4], help="1 in process, more in subprocesses")
    parser.add_argument("--backend", default="gymnasium", choices=["gymnasium", "mujoco"], help="mujoco: two threads")
    parser.add_argument("--kills", type=int, default=10, help="kills per case")
    parser.add_argument("--at-start", type=float, default=0.2, help="fraction of the kills at the start of a process")
    parser.add_argument("--total-steps", type=int, default=30_720, help="environment steps per run")
    parser.add_argument("--algo", nargs="+", default=["ppo"], choices=list(ALGORITHM_FIELDS), help="the algorithms")
    parser.add_argument("--checkpoint-interval", type=int, default=997, help="steps between checkpoints")
    parser.add_argument("--compile", action="store_true", help="compile the gradient steps")
    parser.add_argument("--seed", type=int, default=1, help="seed of the runs and of the moments")
    parser.add_argument("--keep", type=Path, help="folder to keep the runs in; by default they are removed")
    options = parser.parse_args()
    from benchmarks.provenance import (
        hardware,  # not above: a worker process is started as a file, without its package
    )

    options.out.parent.mkdir(parents=True, exist_ok=True)
    root = options.keep or Path(tempfile.mkdtemp(prefix="kill-and-resume-"))
    table: dict[str, Any] = {
        "command": checkpointing.command_line(),
        "commit": checkpointing.git_commit(),
        "versions": checkpointing.versions(),
        "hardware": hardware(),
        "cases": [],
    }
    rng = np.random.default_rng(options.seed)
    for env_id, num_envs, algo in itertools.product(options.envs, options.num_envs, options.algo):
        fields = {
            **ALGORITHM_FIELDS[algo](num_envs),
            "backend": options.backend,
            "checkpoint_interval": options.checkpoint_interval,
            "compile": options.compile,
            "eval_episodes": 2,
            "eval_interval": options.total_steps // 5,
        }
        case = Case(env_id, num_envs, options.total_steps, options.seed, fields, algo)
        folder = root / f"{env_id.replace('/', '-')}-{num_envs}-{algo}"
        folder.mkdir(parents=True)
        row = run_case(case, folder, draw_kills(rng, options.kills, options.total_steps, options.at_start))
        table["cases"].append(row)
        options.out.write_text(json.dumps(table, indent=1) + "\n")  # after each case, so that no result is lost
        failed = [name for name, equal in row["parts"].items() if not equal]
        verdict = "identical" if row["identical"] else f"DIFFERS: {row['error'] or ', '.join(failed)}"
        print(
            f"{env_id:24} {algo:5} {num_envs} env  {len(row['kills'])} kills  {row['seconds']:6.1f} s  {verdict}",
            flush=True,
        )
    if options.keep is None:
        shutil.rmtree(root)
    sys.exit(not all(row["identical"] for row in table["cases"]))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--work"]:
        plain, where, steps = json.loads(sys.argv[2])
        work(Case(**plain), Path(where), Path(steps))
    else:
        main()
