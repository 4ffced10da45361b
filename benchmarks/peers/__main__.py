"""Compare the training speed of Minerva with other libraries, at the same settings.

    python -m benchmarks.peers --out benchmarks/results/speed/peers.json
    python -m benchmarks.peers --only ppo-1 mpo-update --repeats 3 --peers-python ~/peers/bin/python

Every measurement is a separate process. The contenders of a comparison take turns, round after round, so that other
load on the machine affects all of them equally; the result is the median of the rounds. Not measured, for all
contenders: imports, construction, and the first rollout with its update, where compilers do their work. Measured:
simulation, acting, updates and, for Minerva, its logs and last checkpoint. There is no evaluation.

Each contender uses the default number of threads of its library, because that is what its users get: Minerva chooses
it, PyTorch uses one per core. For such small networks one thread is faster, so the peers built on PyTorch have a second
row with OMP_NUM_THREADS=1, named so. EnvPool always uses one thread per core. On a busy machine the rows with one
thread per core are slowed down most, because their threads wait for each other: measure on an idle machine.

The extra `peers` installs all peers. Peers that are not installed here (sb3-contrib, tianshou, torchrl, tensordict) run
in the interpreter given by --peers-python, and are left out if they are missing there too. That interpreter also needs
torch, gymnasium[mujoco] and stable-baselines3, but not Minerva.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
from pathlib import Path
from typing import Any

from benchmarks.peers.comparisons import COMPARISONS, chosen
from benchmarks.peers.contest import run


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = ", ".join(comparison.name for comparison in COMPARISONS)
    parser.add_argument("--out", type=Path, help="JSON file; comparisons that are not run now stay unchanged")
    parser.add_argument("--only", nargs="+", metavar="NAME", help=f"run only these: {names}")
    parser.add_argument("--repeats", type=int, default=5, help="number of rounds")
    parser.add_argument(
        "--steps", type=int, help="environment steps, or updates, per measurement; by default the comparison's own"
    )
    parser.add_argument("--peers-python", default=sys.executable, metavar="PATH", help="interpreter for missing peers")
    arguments = parser.parse_args()
    peers_python = shutil.which(arguments.peers_python)
    if peers_python is None:
        parser.error(f"--peers-python: must be an interpreter, got {arguments.peers_python}.")
    if arguments.repeats < 1:
        parser.error(f"--repeats: must be at least 1, got {arguments.repeats}.")
    try:
        comparisons = chosen(arguments.only)
    except ValueError as error:
        parser.error(str(error))
    for comparison in comparisons:
        result = run(comparison, arguments.repeats, arguments.steps, str(Path(peers_python).absolute()), say)
        show(comparison.name, result)
        if arguments.out:
            add(arguments.out, comparison.name, result)


def say(line: str) -> None:
    print(line, flush=True)


def show(name: str, result: dict[str, Any]) -> None:
    """Print the medians, and the ratios of Minerva's rows to the peers."""
    for contender, row in result["contenders"].items():
        stands = [f"{ours}: {of[contender]:.2f} times that" for ours, of in result["ratios"].items() if contender in of]
        say(f"{name}: {contender}: {row['median']:.1f} {result['unit']}" + f" ({'; '.join(stands)})" * bool(stands))


def add(path: Path, name: str, result: dict[str, Any]) -> None:
    """Add a comparison's result to the file, with commit, versions and hardware."""
    from benchmarks.provenance import hardware
    from minerva.checkpointing import git_commit, versions

    found = json.loads(path.read_text()) if path.exists() else {}
    result["versions"] = {**versions(), **result["versions"]}
    found[name] = {**result, "commit": git_commit(), "hardware": hardware()}
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main()
