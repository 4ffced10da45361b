"""Find which test covers which formula, from the marks of the tests.

    @pytest.mark.formula("minerva.objectives.returns", r"R_t = A_t + V(s_t)")
    def test_returns() -> None: ...

A mark repeats the formula, so it stays valid when lines move and fails when the formula changes. For a formula that
occurs more than once in its module, the mark names the function: "minerva.objectives.returns.returns".
"""

from __future__ import annotations

import ast
import fnmatch
from dataclasses import dataclass
from pathlib import Path

from minerva.annotate.source import Problem, collapse, decode, parse, python_files, shown_path

_SPELLING = 'write @pytest.mark.formula("module", r"formula", ...)'


@dataclass(frozen=True)
class Claim:
    """A mark that says which test fails if the code does not compute a formula."""

    place: str
    """Dotted name of the formula's module, or of the function or class in it."""
    latex: str
    """The formula, with its white space collapsed."""
    test: str
    """Name of the test: test_x, TestY or TestY::test_x."""
    path: str
    """File of the test."""
    line: int
    """Line of the test's def or class."""
    claimed_at: int
    """Line of the mark."""


def read_claims(tests: Path, base: Path | None = None) -> tuple[list[Claim], list[Problem]]:
    """Read the formula marks of the tests in a folder, without importing them.

    Args:
        tests: The folder, or a single file.
        base: Folder that displayed paths are relative to; by default the working directory.

    Returns:
        The claims in the order of the files, and a problem for each invalid mark.

    Raises:
        ValueError: There are no tests, or one is not valid Python.
    """
    if not tests.exists():
        raise ValueError(f"tests: {tests} does not exist; give the folder of the tests.")
    here = tests.resolve()
    files = [here] if here.is_file() else list(python_files(here))
    if not files:
        raise ValueError(f"tests: no Python file (.py) in {tests}; give the folder of the tests.")
    reader = _Reader()
    for file in files:
        data = file.read_bytes()
        if b"formula" in data:
            path = shown_path(file, here.parent, base)
            reader.read(parse(decode(data, path), path), path)
    return reader.claims, reader.problems


class _Reader:
    def __init__(self) -> None:
        self.claims: list[Claim] = []
        self.problems: list[Problem] = []

    def read(self, tree: ast.Module, path: str) -> None:
        self._path = path
        self._is_test_file = any(fnmatch.fnmatch(Path(path).name, name) for name in ("test_*.py", "*_test.py"))
        self._read_marks: set[ast.expr] = set()
        self._definitions(tree, "")
        for node in ast.walk(tree):
            if isinstance(node, ast.Attribute) and _is_mark(node) and node not in self._read_marks:
                self._add_problem(node, "it does not decorate a test")

    def _definitions(self, parent: ast.Module | ast.ClassDef, prefix: str) -> None:
        for node in parent.body:
            if isinstance(node, ast.ClassDef):
                self._decorators(node, prefix, "Test")
                self._definitions(node, f"{prefix}{node.name}::")
            elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                self._decorators(node, prefix, "test")

    def _decorators(self, node: ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef, prefix: str, begin: str) -> None:
        for mark in node.decorator_list:
            function = mark.func if isinstance(mark, ast.Call) else mark
            if not _is_mark(function):
                continue
            self._read_marks.add(function)
            texts = [
                argument.value
                for argument in (mark.args if isinstance(mark, ast.Call) else ())
                if isinstance(argument, ast.Constant) and isinstance(argument.value, str)
            ]
            if not isinstance(mark, ast.Call) or mark.keywords or len(texts) != len(mark.args) or len(texts) < 2:
                self._add_problem(mark, "its arguments must be two or more plain strings")
            elif not (self._is_test_file and node.name.startswith(begin)):
                self._add_problem(mark, f"{node.name} is not collected as a test")
            else:
                place, *formulas = texts
                self.claims += [
                    Claim(place, collapse(latex), prefix + node.name, self._path, node.lineno, mark.lineno)
                    for latex in formulas
                ]

    def _add_problem(self, node: ast.expr, why: str) -> None:
        self.problems.append(Problem(self._path, node.lineno, f"invalid formula mark: {why}; {_SPELLING}."))


def _is_mark(node: ast.expr) -> bool:
    """Return whether an expression is `pytest.mark.formula` or `mark.formula`."""
    if not isinstance(node, ast.Attribute) or node.attr != "formula":
        return False
    owner = node.value
    return (isinstance(owner, ast.Attribute) and owner.attr == "mark") or (
        isinstance(owner, ast.Name) and owner.id == "mark"
    )
