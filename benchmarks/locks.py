"""Check the lock of a run's folder: many processes at once, and holders that are killed.

    python -m benchmarks.locks --out benchmarks/results/locks.json

Each round uses a new folder. Ten processes start in it at the same moment with different seeds: one must train, and
nine must exit with status 2. The one is killed with SIGKILL at a random moment, and ten processes resume its run at
once, again and again. At the end one process finishes the run, and its log must have each row once. A round is wrong if
any of this did not come out so; the table keeps the counts and how soon after a kill the next process trained.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

from minerva import checkpointing
from minerva.cli import main as minerva
from minerva.report.runs import read_run
from minerva.utils.folder_lock import FILE_NAME

ROLLOUT = 16
LONG = 10**6
SETTINGS = [
    "--preset", "none", "--rollout-steps", str(ROLLOUT), "--minibatch-size", "8", "--eval-episodes", "0",
    "--no-console", "--checkpoint-interval", "64",
    "--policy-layer-sizes", "8", "--critic-layer-sizes", "8", "--compile", "False",
]  # fmt: skip
TIMEOUT = 120.0


def start(words: list[str], said: Path) -> int:
    """Fork a process that runs a command of Minerva; return its id. What it says goes into a file."""
    child = os.fork()
    if child == 0:
        with said.open("w") as file:
            for number in (1, 2):
                os.dup2(file.fileno(), number)
        os._exit(minerva(words))
    return child


def only_one(commands: list[list[str]], folder: Path) -> tuple[int, Counter[int], list[str]]:
    """Start commands at once and wait until one is left; return it, the others' exit codes, and what they said."""
    said = {start(words, folder / f"said-{k}"): folder / f"said-{k}" for k, words in enumerate(commands)}
    codes: Counter[int] = Counter()
    texts: list[str] = []
    deadline = time.monotonic() + TIMEOUT
    while len(said) > 1 and time.monotonic() < deadline:
        child, status = os.waitpid(-1, os.WNOHANG)
        if child == 0:
            time.sleep(0.001)
            continue
        codes[os.waitstatus_to_exitcode(status)] += 1
        texts.append(said.pop(child).read_text())
    for child in list(said)[1:]:  # too many: the round is wrong
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        codes[0] += 1
    return next(iter(said)), codes, texts


def saved_step(run: Path, algorithm: str = "ppo") -> int:
    """Return the step of the last checkpoint; -1 if there is none."""
    path = run / f"{algorithm}_last.pt"
    return int(checkpointing.read(path)["run"]["env_steps"]) if path.exists() else -1


def play_round(folder: Path, rng: np.random.Generator, processes: int, kills: int) -> dict[str, Any]:
    """Play one round; return what happened."""
    run = folder / "run"
    first = ["train", "ppo", "--env", "Pendulum-v1", *SETTINGS, "--total-steps", str(LONG), "--out-dir", str(run)]
    again = ["train", "--resume", str(run)]
    row: dict[str, Any] = {"codes": [], "one_line": True, "named": 0, "seconds_to_train": [], "log_whole": False}
    for kill in range(kills + 1):
        commands = [[*first, "--seed", str(seed)] for seed in range(processes)] if kill == 0 else [again] * processes
        begin, before = time.monotonic(), saved_step(run)
        left, codes, texts = only_one(commands, folder)
        while saved_step(run) <= before and time.monotonic() - begin < TIMEOUT:
            time.sleep(0.005)
        row["seconds_to_train"].append(round(time.monotonic() - begin, 2))
        row["codes"].append(dict(codes))
        row["one_line"] &= all(text.startswith("minerva: out_dir: ") and text.count("\n") == 1 for text in texts)
        row["named"] += sum(f"in use by process {left} on " in text for text in texts)
        time.sleep(float(rng.uniform(0, 0.3)))
        os.kill(left, signal.SIGKILL)
        os.waitpid(left, 0)
    total = (saved_step(run) // ROLLOUT + 3) * ROLLOUT
    last = start([*again, "--total-steps", str(total)], folder / "said-last")
    row["last_code"] = os.waitstatus_to_exitcode(os.waitpid(last, 0)[1])
    steps = read_run(run).metrics["losses/value_loss"].steps.tolist()
    row["log_whole"] = steps == list(range(ROLLOUT, total + 1, ROLLOUT)) and saved_step(run) == total
    row["released"] = not (run / FILE_NAME).exists()
    right = all(codes == {2: processes - 1} for codes in row["codes"]) and row["last_code"] == 0
    row["right"] = right and row["one_line"] and row["log_whole"] and row["released"]
    return row


def main() -> None:
    """Play the rounds and write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="file for the table (JSON)")
    parser.add_argument("--rounds", type=int, default=20, help="rounds")
    parser.add_argument("--processes", type=int, default=10, help="processes that start at once")
    parser.add_argument("--kills", type=int, default=3, help="times that a resumed run is killed in each round")
    parser.add_argument("--seed", type=int, default=1, help="seed of the moments")
    options = parser.parse_args()
    import minerva.trainers.ppo.trainer  # noqa: F401  # once, not in each process
    from benchmarks.provenance import commit_of, hardware

    rng = np.random.default_rng(options.seed)
    rounds = []
    for number in range(options.rounds):
        with tempfile.TemporaryDirectory(prefix="locks-") as folder:
            rounds.append(play_round(Path(folder), rng, options.processes, options.kills))
        print(f"round {number + 1:3}  {'right' if rounds[-1]['right'] else f'WRONG: {rounds[-1]}'}", flush=True)
    waited = [seconds for row in rounds for seconds in row["seconds_to_train"][1:]]
    codes: Counter[str] = Counter()
    for row in rounds:
        for counts in row["codes"]:
            codes.update({str(code): count for code, count in counts.items()})
    table = {
        "command": checkpointing.command_line(),
        "commit": commit_of(Path(__file__).parent),
        "versions": checkpointing.versions(),
        "hardware": hardware(),
        "rounds": options.rounds,
        "right": sum(row["right"] for row in rounds),
        "contests": sum(len(row["codes"]) for row in rounds),
        "kills": sum(len(row["codes"]) for row in rounds),
        "exit_codes_of_the_others": dict(codes),
        "others_that_named_the_holder": sum(row["named"] for row in rounds),
        "seconds_from_resuming_to_a_new_checkpoint": {"median": float(np.median(waited)), "max": max(waited)},
    }
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(table, indent=1) + "\n")
    sys.exit(table["right"] != options.rounds)


if __name__ == "__main__":
    main()
