"""Run the generated bad inputs of all modules of this package, count the verdicts, and show what was not refused.

    python -m benchmarks.bad_input [--only config command_line] [--count N] [--seed S] [--out FILE]

The exit code is 1 if an input was not refused.
"""

from __future__ import annotations

import argparse
import importlib
import itertools
import json
import os
import pkgutil
import shlex
import sys
import tempfile
import time
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

from benchmarks import bad_input
from benchmarks.bad_input import Result
from benchmarks.provenance import commit_of, gpu, hardware

ROOT = Path(__file__).parents[2]
OUT = ROOT / "benchmarks" / "results" / "bad_input.json"
VERDICTS = ("refused", "accepted", "traceback", "crash", "hang")
DEFAULT_COUNT = 2_000
"""Inputs of a module that has no `COUNT` of its own."""
SHOWN = 20
"""Inputs that were not refused, of each kind, that are printed."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = sorted(module.name for module in pkgutil.iter_modules(bad_input.__path__) if module.name != "__main__")
    parser.add_argument("--only", nargs="+", choices=names, default=names)
    parser.add_argument("--count", type=int, help="inputs per module; by default each module's own number")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=OUT)
    arguments = parser.parse_args()
    out = arguments.out.resolve()
    os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])  # of commands' processes
    counts: dict[str, dict[str, Any]] = {}
    failed = False
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        os.chdir(folder)  # an accepted command writes here
        for name in arguments.only:
            module = importlib.import_module(f"benchmarks.bad_input.{name}")
            begin = time.perf_counter()
            found = list(module.results(arguments.count or getattr(module, "COUNT", DEFAULT_COUNT), arguments.seed))
            counts[name] = {**table_row(found), "seconds": round(time.perf_counter() - begin)}
            print(name.ljust(16), "  ".join(f"{verdict} {counts[name][verdict]}" for verdict in VERDICTS), flush=True)
            wrong = [result for result in found if result.verdict != "refused"]
            for result in itertools.islice(wrong, SHOWN):
                print(f"  {result.verdict}: {result.case}\n    {result.message}")
            failed |= bool(wrong)
        os.chdir(ROOT)
    from minerva.checkpointing import versions

    description = {
        "inputs": counts, "seed": arguments.seed,
        "command": shlex.join(["python", "-m", "benchmarks.bad_input", *sys.argv[1:]]),
        "commit": commit_of(ROOT), "versions": versions(), "hardware": f"{hardware()}, {gpu()}",
    }  # fmt: skip
    out.write_text(json.dumps(description, indent=2) + "\n")
    return int(failed)


def table_row(found: list[Result]) -> dict[str, int]:
    """Count the verdicts."""
    counted = Counter[str](result.verdict for result in found)
    return {verdict: counted[verdict] for verdict in VERDICTS}


if __name__ == "__main__":
    sys.exit(main())
