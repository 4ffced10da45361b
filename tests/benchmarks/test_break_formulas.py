from __future__ import annotations

import ast
from pathlib import Path

import pytest

from benchmarks.break_formulas import changes, sweep

PACKAGE = """
def mean(x: float, y: float) -> float:
    # LaTeX: m = (x + y) / 2
    return (x + y) / 2


def double(x: float) -> float:
    # LaTeX: d = 2 x
    return sum([x, x])
"""
TESTS = """
import pytest

from tiny import double, mean


@pytest.mark.formula("tiny", "m = (x + y) / 2")
def test_mean() -> None:
    assert mean(1.0, 3.0) == 2.0


@pytest.mark.formula("tiny", "d = 2 x")
def test_double() -> None:
    assert double(1.0) {claim}
"""
SETTINGS = '[tool.pytest.ini_options]\nmarkers = ["formula: what a test holds"]\n'


def made(folder: Path, claim: str) -> Path:
    for name in ("tiny", "tests"):
        (folder / name).mkdir(parents=True)
    (folder / "tiny" / "__init__.py").write_text(PACKAGE)
    (folder / "tests" / "test_tiny.py").write_text(TESTS.format(claim=claim))
    (folder / "pyproject.toml").write_text(SETTINGS)
    return folder


def test_a_hollow_claim_is_told_from_an_honest_one(tmp_path: Path) -> None:
    rows = list(sweep(made(tmp_path / "made", "> 0"), tmp_path / "copies", "tiny", jobs=2))
    assert [(row["place"], row["latex"], row["after"], row["noticed_by"], row["error"]) for row in rows] == [
        ("tiny.mean", "m = (x + y) / 2", "return (x + y) * 2", "tests/test_tiny.py::test_mean", "AssertionError"),
        ("tiny.mean", "m = (x + y) / 2", "return (x - y) / 2", "tests/test_tiny.py::test_mean", "AssertionError"),
        ("tiny.double", "d = 2 x", "return sum([x, x]) * 1.01", None, None),
    ]
    assert (tmp_path / "made" / "tiny" / "__init__.py").read_text() == PACKAGE
    assert all(file.read_text() == PACKAGE for file in tmp_path.glob("copies/*/tiny/__init__.py"))


def test_a_part_of_the_formulas(tmp_path: Path) -> None:
    (row,) = sweep(made(tmp_path / "made", "== 2"), tmp_path / "copies", "tiny", only="double")
    assert row["noticed_by"] == "tests/test_tiny.py::test_double"


def test_tests_that_fail_anyway_notice_nothing(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="fail where nothing is broken") as error:
        next(sweep(made(tmp_path / "made", "== 3"), tmp_path / "copies", "tiny"))
    assert "test_double" in str(error.value)


def test_a_formula_that_no_test_claims_is_refused(tmp_path: Path) -> None:
    folder = made(tmp_path / "made", "== 2")
    (folder / "tests" / "test_tiny.py").write_text(TESTS.format(claim="== 2").replace('"d = 2 x"', '"m = (x + y) / 2"'))
    with pytest.raises(ValueError, match="no test covers d = 2 x"):
        next(sweep(folder, tmp_path / "copies", "tiny"))


def test_no_such_formula(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no formula of tiny has 'half'"):
        next(sweep(made(tmp_path / "made", "== 2"), tmp_path / "copies", "tiny", only="half"))


@pytest.mark.parametrize(
    ("code", "broken"),
    [
        ("y = a - b * c", ["y = a + b * c", "y = a - b / c"]),
        ("y = a > b", ["y = a <= b"]),
        ("y = -a * b", ["y = +a * b", "y = -a / b"]),
        ("y = (a * b).sum(-1)", ["y = (a / b).sum(-1)"]),  # the axis is no sign
        ("y = a[1:n + 1] + b", ["y = a[1:n + 1] - b"]),  # nor is an index a sum
        ("y = a.detach() * b", ["y = a.clone() * b", "y = a.detach() / b"]),
        ("y = torch.where(a, b, c)", ["y = torch.where(a, c, b)"]),
        ("y = torch.lerp(a, b, c)", ["y = torch.lerp(b, a, c)"]),
        ("y = torch.max(a, b.clamp(min=c))", ["y = torch.min(a, b.clamp(min=c))", "y = torch.max(a, b.clamp(max=c))"]),
        ("y += a", ["y -= a"]),
        ("μ, y = f(a), f(b)", ["μ, y = (f(a) * 1.01, f(b))", "μ, y = (f(a), f(b) * 1.01)"]),
    ],
)
def test_what_a_line_becomes(code: str, broken: list[str]) -> None:
    found = changes(f"def f():\n    {code}\n    return y", 2)
    assert [change.after for change in found] == broken
    for change, text in zip(found, broken, strict=True):
        assert ast.dump(ast.parse(change.source)) == ast.dump(ast.parse(f"def f():\n    {text}\n    return y"))


def test_only_what_starts_on_the_line_is_changed() -> None:
    (change,) = changes('x = {\n    "a": p + q,\n    "b": f(r),\n}\n', 3)
    assert (change.before, change.after) == ("f(r)", "f(r) * 1.01")
    assert "p + q" in change.source


def test_nothing_is_computed() -> None:
    with pytest.raises(ValueError, match="line 1: nothing is computed in pass"):
        changes("pass", 1)
