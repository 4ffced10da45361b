"""Check that tests cover the formulas: break the line under each formula, and require that a test of it fails.

    python -m benchmarks.break_formulas --jobs 2

The mark `@pytest.mark.formula` says that a test would fail if the line computed something else. This program changes
each line, in a copy, in one or two ways: a sum becomes a difference, a minimum a maximum, a sign is flipped, a gradient
is not stopped, or, if none of these is possible, the value is multiplied by 1.01. Then the tests that cover the formula
run in their own process, forked from one that has imported the large libraries and nothing of the package. The table
says which test detected which break, and with what exception.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import json
import os
import queue
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

if TYPE_CHECKING:  # a process that runs tests must import the package from the copy, so it is not imported here
    from minerva.annotate import Formula

RESULTS = Path(__file__).parent / "results" / "formulas.json"
LIBRARIES = ("gymnasium", "jax", "pytest", "rlax", "scipy.stats", "stable_baselines3.common.buffers", "torch")
"""Packages that the tests import and that are slow to import."""
BREAKS = 2
"""Maximum number of breaks per formula."""
TIMEOUT = 600.0
OPERATORS: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.FloorDiv: ast.Mult, ast.Pow: ast.Mult,
}  # fmt: skip
COMPARISONS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Gt: ast.LtE, ast.GtE: ast.Lt, ast.Lt: ast.GtE, ast.LtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
}  # fmt: skip
FUNCTIONS = {
    "detach": "clone", "max": "min", "min": "max", "maximum": "minimum", "minimum": "maximum", "mean": "sum",
    "add": "subtract", "exp": "expm1", "expm1": "exp", "sqrt": "exp", "floor": "ceil",
}  # fmt: skip
"""Functions that take the same arguments and return something else."""
KINDS = ("gradient", "order", "comparison", "sign", "operator", "function")
"""Kinds of breaks, in order of preference."""


class Change(NamedTuple):
    """A changed line, which computes something else."""

    before: str
    after: str
    source: str
    """The whole file with the changed line."""


class Outcome(NamedTuple):
    """The result of a test run."""

    passed: bool
    test: str | None = None
    """The first test that failed."""
    error: str | None = None
    """The exception of the failure, or why there is none."""


def alter(node: ast.AST) -> str | None:
    """Make a node compute something else, in place; returns the kind of change, or None if there is none."""
    match node:
        case ast.BinOp() | ast.AugAssign() if type(node.op) in OPERATORS:
            node.op = OPERATORS[type(node.op)]()
            return "operator"
        case ast.Compare(ops=[op]) if type(op) in COMPARISONS:
            node.ops = [COMPARISONS[type(op)]()]
            return "comparison"
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            if isinstance(operand, ast.Constant) and isinstance(operand.value, int):
                return None  # most often the last axis, for which the first may give the same result
            node.op = ast.UAdd()
            return "sign"
        case ast.Call(func=ast.Attribute(attr="where"), args=[condition, first, second]):
            node.args = [condition, second, first]
            return "order"
        case ast.Call(func=ast.Attribute(attr="lerp"), args=[first, second, weight]):
            node.args = [second, first, weight]
            return "order"
        case ast.Call(func=ast.Attribute(attr="clamp"), keywords=[ast.keyword(arg="min" | "max") as bound]):
            bound.arg = "max" if bound.arg == "min" else "min"
            return "function"
        case ast.Call(func=ast.Attribute(attr=name) as function) if name in FUNCTIONS:
            function.attr = FUNCTIONS[name]
            return "gradient" if name == "detach" else "function"
    return None


def computing(node: ast.AST) -> list[ast.AST]:
    """List the nodes within a node, outermost first, without indices and slices."""
    nodes = [node]
    for parent in nodes:
        nodes += [child for child in ast.iter_child_nodes(parent) if child is not getattr(parent, "slice", None)]
    return nodes


def find_code(source: str, line: int) -> tuple[ast.stmt, ast.stmt | ast.expr]:
    """Find the statement that contains a line, and the part that starts there: all of it, or an expression in it."""
    simple = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.stmt) and not hasattr(node, "body")]
    statement = next(node for node in simple if node.lineno <= line <= (node.end_lineno or 0))
    if statement.lineno == line:
        return statement, statement
    starting = [node for node in ast.walk(statement) if isinstance(node, ast.expr) and node.lineno == line]
    computed = [node for node in starting if not isinstance(node, ast.Constant)]  # a dictionary key computes nothing
    return statement, min(computed, key=lambda node: node.col_offset)  # the outermost comes first


def with_scaled(source: str, value: ast.expr) -> str:
    """Multiply a value by 1.01."""
    rows = source.encode().split(b"\n")  # columns are counted in bytes
    end, column = (value.end_lineno or 0) - 1, value.end_col_offset or 0
    rows[end] = rows[end][:column] + b") * 1.01)" + rows[end][column:]
    begin, column = value.lineno - 1, value.col_offset
    rows[begin] = rows[begin][:column] + b"((" + rows[begin][column:]
    return b"\n".join(rows).decode()


def changes(source: str, line: int) -> list[Change]:
    """Break a line in one or two ways, of different kinds if possible."""
    _, code = find_code(source, line)
    before, rows = ast.unparse(code), source.split("\n")
    times: Counter[str] = Counter()
    found: list[tuple[int, int, Change]] = []
    for position in range(len(computing(code))):
        statement, changed = find_code(source, line)
        kind = alter(computing(changed)[position])
        if kind is not None:
            text = " " * statement.col_offset + ast.unparse(statement)
            new = [*rows[: statement.lineno - 1], text, *rows[statement.end_lineno :]]
            found.append((times[kind], KINDS.index(kind), Change(before, ast.unparse(changed), "\n".join(new))))
            times[kind] += 1
    if found:
        return [change for _, _, change in sorted(found, key=lambda entry: entry[:2])[:BREAKS]]
    value = code if isinstance(code, ast.expr) else getattr(code, "value", None)
    if value is None:
        raise ValueError(f"line {line}: nothing is computed in {before}; put the formula above what computes it.")
    scaled = [with_scaled(source, part) for part in (value.elts if isinstance(value, ast.Tuple) else [value])]
    return [Change(before, ast.unparse(find_code(text, line)[1]), text) for text in scaled[:BREAKS]]


class FirstFailure:
    """A pytest plugin that stores the first failure."""

    def __init__(self) -> None:
        self.test: str | None = None
        self.error: str | None = None

    def pytest_exception_interact(
        self, call: pytest.CallInfo[Any], report: pytest.TestReport | pytest.CollectReport
    ) -> None:
        """Store the test and the exception; a file that cannot be imported does not count as a test that failed."""
        self.test = report.nodeid if isinstance(report, pytest.TestReport) else None
        self.error = call.excinfo.typename if call.excinfo else None


def work(folder: Path, tests: Sequence[str], answer: Connection) -> None:
    """Run tests in the folder with the copy of the package; the target of the process below."""
    os.chdir(folder)
    sys.path.insert(0, str(folder))
    sys.dont_write_bytecode = True  # the cache would return the first of two changes made within one second
    failure = FirstFailure()
    with Path("pytest.log").open("w") as log, contextlib.redirect_stdout(log), contextlib.redirect_stderr(log):
        code = pytest.main(["-x", "-q", "-p", "no:cacheprovider", *tests], plugins=[failure])
    answer.send(Outcome(code == pytest.ExitCode.OK, failure.test, failure.error))


def run_tests(folder: Path, tests: Sequence[str]) -> Outcome:
    """Run tests in their own process."""
    context = get_context("forkserver")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=work, args=(folder, tests, sender))
    process.start()
    sender.close()
    outcome = Outcome(False, None, f"no end after {TIMEOUT:.0f} seconds")
    try:
        if receiver.poll(TIMEOUT):
            outcome = receiver.recv()
    except EOFError:
        outcome = Outcome(False, None, "the process died")
    process.kill()
    process.join()
    return outcome


def sweep(base: Path, scratch: Path, package: str, only: str = "", jobs: int = 1) -> Iterator[dict[str, Any]]:
    """Break the formulas of a package, `jobs` at a time, each in its own copy.

    Args:
        base: Folder that contains the package, the folder `tests` and pyproject.toml.
        scratch: Folder for the copies.
        package: Name of the package.
        only: Break only formulas with this in their place or text; empty for all.
        jobs: Number of parallel jobs.

    Returns:
        One row per break: the formula, the code before and after, the test that detected it (or None), its exception,
        and the seconds.

    Raises:
        ValueError: There is no such formula, a formula or a mark is invalid, or the tests fail without a break.
    """
    from minerva.annotate import examine

    copies: queue.SimpleQueue[Path] = queue.SimpleQueue()
    for job in range(jobs):
        folder = scratch / str(job)
        for name in (package, "tests"):
            shutil.copytree(base / name, folder / name)
        shutil.copy(base / "pyproject.toml", folder)
        copies.put(folder)
    report = examine(folder / package, folder / "tests", folder)
    wrong = [*report.problems, *report.uncovered]
    if wrong:
        raise ValueError("\n".join(map(str, wrong)))
    covered = report.tests or {}
    claims = {anchor: [f"{claim.path}::{claim.test}" for claim in covered[anchor]] for anchor in covered}
    tasks = [
        (formula, change)
        for formula in report.formulas
        if only in f"{formula.place} {formula.latex}"
        for change in changes((folder / formula.path).read_text(), formula.code_line)
    ]
    if not tasks:
        raise ValueError(f"only: no formula of {package} has {only!r} in its place or text; give a part of one.")
    unbroken = run_tests(folder, list(dict.fromkeys(test for formula, _ in tasks for test in claims[formula.anchor])))
    if not unbroken.passed:
        raise ValueError(f"tests: they fail where nothing is broken:\n{(folder / 'pytest.log').read_text()[-3000:]}")

    def try_one(formula: Formula, change: Change) -> dict[str, Any]:
        folder, begin = copies.get(), time.perf_counter()
        file = folder / formula.path
        source = file.read_text()
        file.write_text(change.source)
        outcome = run_tests(folder, claims[formula.anchor])
        file.write_text(source)
        copies.put(folder)
        return {
            "anchor": formula.anchor,
            "place": formula.place,
            "latex": formula.latex,
            "before": change.before,
            "after": change.after,
            "noticed_by": outcome.test,
            "error": outcome.error,
            "seconds": round(time.perf_counter() - begin, 2),
        }

    with ThreadPoolExecutor(jobs) as pool:
        yield from pool.map(try_one, *zip(*tasks, strict=True))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="only formulas with this in their place or text; saves no table")
    parser.add_argument("--jobs", type=int, default=1, help="number of parallel jobs")
    options = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"
    get_context("forkserver").set_forkserver_preload(list(LIBRARIES))
    from benchmarks.provenance import hardware
    from minerva.checkpointing import command_line, git_commit, versions

    rows: list[dict[str, Any]] = []
    made_with = {"command": command_line(), "commit": git_commit(), "versions": versions(), "hardware": hardware()}
    scratch = Path(tempfile.mkdtemp(prefix="break-formulas-"))
    partial = scratch / RESULTS.name  # moved to the results only when it is complete
    try:
        for row in sweep(RESULTS.parents[2], scratch, "minerva", options.only, options.jobs):
            rows.append(row)
            partial.write_text(json.dumps({**made_with, "breaks": rows}, indent=1) + "\n")
            print(f"{row['seconds']:6.1f} s  {row['place']}  {row['after']}  {row['noticed_by']}", flush=True)
    except ValueError as error:
        shutil.rmtree(scratch)
        print(error, file=sys.stderr)
        sys.exit(2)
    if not options.only:
        shutil.copy(partial, RESULTS)
    shutil.rmtree(scratch)
    survivors = [row for row in rows if row["noticed_by"] is None]
    formulas = len({row["anchor"] for row in rows})
    print(f"{formulas} formulas, {len(rows)} breaks, {f'{len(survivors)} not noticed' if survivors else 'all noticed'}")
    for row in survivors:
        print("\n    ".join((f"{row['place']}: {row['latex']}", row["before"], row["after"], row["error"] or "passed")))
    sys.exit(bool(survivors))


if __name__ == "__main__":
    main()
