from pathlib import Path

import pytest

from minerva.annotate import Report, examine
from tests.annotate.programs import need

REPOSITORY = Path(__file__).parents[2]


def make(folder: Path, source: str, tests: str = "") -> Report:
    for name, text in {"pkg/__init__.py": "", "pkg/a.py": source, "tests/test_a.py": tests}.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text)
    return examine(folder / "pkg", folder / "tests" if tests else None)


def claim(*words: str) -> str:
    return f"@pytest.mark.formula({', '.join(map(repr, words))})\ndef test_it(): ...\n"


SOURCE = "# LaTeX: x + y\na = 1\n# LaTeX[P, 1]: x - y\nb = 1\n"


def test_every_formula_of_minerva_parses_and_is_covered() -> None:
    need("node", "nodejs")
    report = examine(REPOSITORY / "minerva", REPOSITORY / "tests")
    assert [str(problem) for problem in (*report.problems, *report.uncovered)] == []
    n = len(report.formulas)
    assert n > 80
    assert report.summary == f"{len(report.modules)} modules, {n} formulas: {n} parsed, {n} covered by a test"


def test_formulas_that_do_not_parse_are_reported_with_their_place(tmp_path: Path) -> None:
    need("node", "nodejs")
    report = make(tmp_path, SOURCE + "# LaTeX: \\frac{1\nc = 1\nd = 2  # LaTeX:\n# LaTeX: z\n")
    assert report.summary == "1 module, 3 formulas: 2 parsed"
    empty, without_code, broken = (str(problem) for problem in report.problems)
    assert empty.startswith("pkg/a.py:7: marker without a formula")
    assert without_code.startswith("pkg/a.py:8: marker without code")
    assert broken.startswith("pkg/a.py:5: formula does not parse: ")
    assert report.uncovered == ()


def test_uncovered_formulas_are_reported_with_their_place(tmp_path: Path) -> None:
    report = make(tmp_path, SOURCE, claim("pkg.a", "x  -  y"))
    assert report.problems == ()
    assert [str(problem) for problem in report.uncovered] == ["pkg/a.py:1: no test covers x + y"]
    assert report.summary.endswith("1 covered by a test")
    assert report.tests is not None
    (covering,) = report.tests[report.formulas[1].anchor]
    assert (covering.test, covering.path, covering.line) == ("test_it", "tests/test_a.py", 2)


def test_a_mark_of_a_changed_formula_is_reported_with_the_closest_one(tmp_path: Path) -> None:
    report = make(
        tmp_path, SOURCE + "# LaTeX: \\log q\nc = 1\n", claim("pkg.a", "x - y", "x - y - z", "x + y", "\\log q")
    )
    (problem,) = report.problems
    assert str(problem) == (
        "tests/test_a.py:1: test_it is marked with a formula that does not exist: x - y - z; "
        "the closest one in pkg.a is: x - y"
    )
    assert report.uncovered == ()


def test_a_mark_of_a_missing_module_is_reported_with_the_closest_one(tmp_path: Path) -> None:
    report = make(tmp_path, SOURCE, claim("pkg.aa", "x - y"))
    assert report.problems[0].text.endswith("; pkg.aa has no formulas; did you mean pkg.a?")


def test_marks_of_other_modules_are_ignored(tmp_path: Path) -> None:
    make(tmp_path, SOURCE, claim("pkg.b", "gone"))
    assert examine(tmp_path / "pkg" / "a.py", tmp_path / "tests").problems == ()
    assert len(examine(tmp_path / "pkg", tmp_path / "tests").problems) == 1
    make(tmp_path, SOURCE, claim("pkg.a.gone", "x + y"))
    (problem,) = examine(tmp_path / "pkg" / "a.py", tmp_path / "tests").problems
    assert problem.text.endswith("; pkg.a.gone has no formulas; did you mean pkg.a?")


TWICE = "def f():\n    # LaTeX: x\n    return 1\nclass A:\n    def g():\n        # LaTeX:  x\n        return 1\n"


def test_a_mark_may_name_the_function(tmp_path: Path) -> None:
    report = make(tmp_path, SOURCE + "def f():\n    # LaTeX: z\n    return 1\n", claim("pkg.a.f", "z"))
    assert report.problems == () and [problem.line for problem in report.uncovered] == [1, 3]
    report = make(tmp_path, SOURCE + "def f():\n    # LaTeX: z\n    return 1\n", claim("pkg.a.f", "x + y"))
    assert report.problems[0].text.endswith("does not exist: x + y; the closest one in pkg.a.f is: z")


def test_marks_of_a_repeated_formula_name_its_functions(tmp_path: Path) -> None:
    report = make(tmp_path, TWICE, claim("pkg.a", "x"))
    assert [str(problem) for problem in report.problems] == [
        "tests/test_a.py:1: test_it is marked with a formula that occurs more than once: x; "
        'mark it with "pkg.a.f" or "pkg.a.A.g".'
    ]
    assert len(report.uncovered) == 2
    report = make(tmp_path, TWICE, claim("pkg.a.A.g", "x"))
    assert report.problems == ()
    assert [str(problem) for problem in report.uncovered] == [
        'pkg/a.py:2: no test covers x; it occurs more than once, so mark its test with "pkg.a.f".'
    ]
    report = make(tmp_path, TWICE, claim("pkg.a.A.g", "x") + claim("pkg.a.f", "x"))
    assert report.problems == () and report.uncovered == ()


def test_the_module_is_the_name_of_a_formula_outside_of_functions(tmp_path: Path) -> None:
    report = make(tmp_path, TWICE + "# LaTeX: x\nb = 1\n", claim("pkg.a", "x") + claim("pkg.a.f", "x"))
    assert report.problems == () and [problem.line for problem in report.uncovered] == [6]


def test_paths_are_shown_from_the_folder_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make(tmp_path, SOURCE, claim("pkg.a", "x + y"))
    monkeypatch.chdir(tmp_path.parent)
    for base, before in ((None, f"{tmp_path.name}/"), (tmp_path, ""), (tmp_path / "pkg" / "..", "")):
        report = examine(tmp_path / "pkg", tmp_path / "tests", base)
        assert report.tests is not None
        assert [formula.path for formula in report.formulas] == [f"{before}pkg/a.py"] * 2
        assert report.tests[report.formulas[0].anchor][0].path == f"{before}tests/test_a.py"


def test_without_node_nothing_is_parsed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    report = make(tmp_path, "# LaTeX: \\frac{\nx = 1\n")
    assert report.parsed is None and report.problems == ()
    assert report.summary == "1 module, 1 formula: not parsed (needs Node)"


def test_a_path_without_formulas_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"path: no formula in .*; write one as a comment `# LaTeX: \.\.\.`"):
        make(tmp_path, "x = 1\n")
