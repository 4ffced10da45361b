"""Measure contenders in turn: in every round each contender once, each time in its own process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from statistics import median
from typing import Any

ROOT = Path(__file__).parents[2]
THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS")
LIMIT = 1200.0
"""Maximum seconds per measurement."""


@dataclass(frozen=True)
class Contender:
    """A program to measure."""

    name: str
    """Its row in the results."""
    function: str
    """The function that measures it, as "module:function": takes the amount of work and the fields, returns a rate."""
    settings: str
    """In words, how it differs from the settings of the comparison."""
    fields: dict[str, Any] = field(default_factory=dict)
    """Further arguments of the function; plain values."""
    packages: tuple[str, ...] = ()
    """Packages that it needs."""
    threads: int | None = None
    """Number of threads (OpenMP and others); None for the library's default."""
    ours: bool = False
    """Whether it is Minerva; ratios are Minerva over the others."""


@dataclass(frozen=True)
class Comparison:
    """Contenders that do the same work."""

    name: str
    settings: str
    """In words, what all of them have in common."""
    contenders: tuple[Contender, ...]
    amount: int
    """Default amount of work per measurement: environment steps, or updates."""
    unit: str = "steps/s"


class MeasurementError(RuntimeError):
    """A contender failed."""


def run(
    comparison: Comparison,
    repeats: int,
    amount: int | None = None,
    peers_python: str = sys.executable,
    say: Callable[[str], None] = print,
) -> dict[str, Any]:
    """Measure the contenders of a comparison in turn.

    Args:
        comparison: The comparison.
        repeats: Number of rounds.
        amount: Work per measurement; the default is the comparison's.
        peers_python: Interpreter for contenders whose packages are missing here.
        say: Called with a line of text for each sample, and for each contender that is left out.

    Returns:
        Settings, samples, medians, ratios (Minerva over each peer), versions, and what was left out and why.
    """
    amount = comparison.amount if amount is None else amount
    left_out: dict[str, str] = {}
    interpreters: dict[str, str] = {}
    versions: dict[str, str] = {}
    for contender in comparison.contenders:
        found = find_interpreter(contender.packages, (sys.executable, peers_python))
        if found is None:
            left_out[contender.name] = f"{' and '.join(contender.packages)} cannot be imported"
            say(f"{comparison.name}: {contender.name} is left out: {left_out[contender.name]}.")
        else:
            interpreters[contender.name], of_packages = found
            versions.update(of_packages)

    samples: dict[str, list[float]] = {name: [] for name in interpreters}
    for k in range(repeats):
        for contender in comparison.contenders:
            if contender.name in left_out:
                continue
            try:
                value = measure(contender, amount, interpreters[contender.name])
            except MeasurementError as error:
                left_out[contender.name] = f"it failed: {error}"
                say(f"{comparison.name}: {contender.name} is left out: {left_out[contender.name]}.")
                continue
            samples[contender.name].append(value)
            say(f"{comparison.name}, round {k + 1} of {repeats}: {contender.name}: {value:.1f} {comparison.unit}")

    rows = [contender for contender in comparison.contenders if contender.name not in left_out]
    medians = {contender.name: median(samples[contender.name]) for contender in rows}
    return {
        "settings": comparison.settings,
        "unit": comparison.unit,
        "amount": amount,
        "contenders": {
            row.name: {"settings": row.settings, "samples": samples[row.name], "median": medians[row.name]}
            for row in rows
        },
        "ratios": ratios(rows, medians),
        "left_out": left_out,
        "versions": versions,
    }


def ratios(rows: Iterable[Contender], medians: dict[str, float]) -> dict[str, dict[str, float]]:
    """Divide the median of each of Minerva's rows by that of each peer."""
    rows = list(rows)
    peers = [row.name for row in rows if not row.ours]
    return {row.name: {peer: medians[row.name] / medians[peer] for peer in peers} for row in rows if row.ours}


def measure(contender: Contender, amount: int, python: str = sys.executable, limit: float = LIMIT) -> float:
    """Measure a contender once, in its own process.

    Raises:
        MeasurementError: It took longer than the limit in seconds, or failed; the error is its last line of output.
    """
    command = [
        python, "-W", "ignore", "-m", "benchmarks.peers.child", contender.function, str(amount),
        json.dumps(contender.fields),
    ]  # fmt: skip
    variables = environment(contender.threads)
    try:
        answer = subprocess.run(command, capture_output=True, text=True, env=variables, cwd=ROOT, timeout=limit)
    except subprocess.TimeoutExpired as error:
        raise MeasurementError(f"it took longer than {limit} s") from error
    if answer.returncode:
        said = answer.stderr.strip().splitlines() or [f"exit status {answer.returncode}"]
        raise MeasurementError(said[-1])
    return float(answer.stdout.split()[-1])


def environment(threads: int | None) -> dict[str, str]:
    """Return the environment variables of a contender, without the thread settings of this process."""
    variables = {name: value for name, value in os.environ.items() if name not in THREAD_VARIABLES}
    if threads is not None:
        variables.update(dict.fromkeys(THREAD_VARIABLES, str(threads)))
    paths = [str(ROOT), variables.get("PYTHONPATH", "")]
    return {**variables, "PYTHONPATH": os.pathsep.join(filter(None, paths))}


def find_interpreter(packages: tuple[str, ...], candidates: Iterable[str]) -> tuple[str, dict[str, str]] | None:
    """Return the first interpreter that can import all packages, and their versions there; None if there is none."""
    for python in candidates:
        found = {name: version for name in packages if (version := version_in(python, name)) is not None}
        if len(found) == len(packages):
            return python, found
    return None


@cache
def version_in(python: str, package: str) -> str | None:
    """Return a package's version in an interpreter (with torch's, if it is another one); None if it is missing."""
    # Really import it: a package may be installed but unusable because a dependency is missing.
    code = f"import {package}; from importlib.metadata import version; print(version({package!r}), version('torch'))"
    answer = subprocess.run([python, "-W", "ignore", "-c", code], capture_output=True, text=True, env=environment(None))
    if answer.returncode:
        return None
    version, torch = answer.stdout.split()[-2:]
    return version if python == sys.executable else f"{version} with torch {torch}"
