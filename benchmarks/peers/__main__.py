"""How fast Minerva is beside its peers, at the same settings.

    python -m benchmarks.peers --out benchmarks/results/speed/peers.json
    python -m benchmarks.peers --only ppo-1 mpo-update --repeats 3 --peers-python ~/peers/bin/python

Every measurement is a process of its own. The contenders of a comparison take turns, round after round, so that what
else the machine does falls on all alike; the median of the rounds counts. Imports, construction, and a first rollout
with its update are left out, of all contenders: there the compilers do their work. Simulation, acting, updates and, in
Minerva's case, its logs and last checkpoint are in.

Each contender has as many threads as its library takes by itself, which is what its users get: Minerva those that pay,
PyTorch on its own one a core. For networks this small one is faster, so the peers built on PyTorch have a second row
with OMP_NUM_THREADS=1, named so. EnvPool has a thread a core wherever it is used. On a machine that is busy the rows
with a thread a core suffer most, for such threads wait for each other: measure on an idle one.

The extra `peers` installs them all. Those that are not installed here (sb3-contrib, tianshou, torchrl, tensordict) are
looked for in the interpreter that --peers-python names, and left out where they are not there either. It needs torch,
gymnasium[mujoco] and stable-baselines3 besides; Minerva itself need not be installed there.
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
    parser.add_argument("--out", type=Path, help="JSON; comparisons that are not run now stay in it as they are")
    parser.add_argument("--only", nargs="+", metavar="NAME", help=f"of {names}")
    parser.add_argument("--repeats", type=int, default=5, help="rounds")
    parser.add_argument(
        "--steps", type=int, help="environment steps, or updates, a measurement; by default each its own"
    )
    parser.add_argument("--peers-python", default=sys.executable, metavar="PATH", help="interpreter of missing peers")
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
    """Print the medians, and how each of Minerva's rows stands to the peers."""
    for contender, row in result["contenders"].items():
        stands = [f"{ours}: {of[contender]:.2f} times that" for ours, of in result["ratios"].items() if contender in of]
        say(f"{name}: {contender}: {row['median']:.1f} {result['unit']}" + f" ({'; '.join(stands)})" * bool(stands))


def add(path: Path, name: str, result: dict[str, Any]) -> None:
    """Put a comparison's result into the file, with what it was made by and on."""
    from benchmarks.provenance import hardware
    from minerva.checkpointing import git_commit, versions

    found = json.loads(path.read_text()) if path.exists() else {}
    result["versions"] = {**versions(), **result["versions"]}
    found[name] = {**result, "commit": git_commit(), "hardware": hardware()}
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main()
