import textwrap
from pathlib import Path

import pytest

from minerva.annotate.claims import Claim, read_claims
from minerva.annotate.source import Problem


def read(folder: Path, source: str, name: str = "test_a.py") -> tuple[list[Claim], list[Problem]]:
    path = folder / "tests" / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(textwrap.dedent(source).lstrip("\n"))
    return read_claims(folder / "tests")


def test_claims_on_functions_and_classes(tmp_path: Path) -> None:
    claims, problems = read(
        tmp_path,
        r"""
        import pytest
        from pytest import mark

        @pytest.mark.formula("m.a", r"x  =  \frac{1}{2}", "y" " = 2")
        @pytest.mark.parametrize("k", [1, 2])
        @mark.formula(
            "m.b",
            "z",
        )
        def test_one(k): ...

        @pytest.mark.formula("m.a", "w")
        class TestTwo:
            @pytest.mark.formula("m.c", "v")
            async def test_three(self): ...

        def test_four(): ...
        """,
    )
    assert problems == []
    found = [(c.place, c.latex, c.test, c.path, c.line, c.claimed_at) for c in claims]
    assert found == [
        ("m.a", r"x = \frac{1}{2}", "test_one", "tests/test_a.py", 10, 4),
        ("m.a", "y = 2", "test_one", "tests/test_a.py", 10, 4),
        ("m.b", "z", "test_one", "tests/test_a.py", 10, 6),
        ("m.a", "w", "TestTwo", "tests/test_a.py", 13, 12),
        ("m.c", "v", "TestTwo::test_three", "tests/test_a.py", 15, 14),
    ]


def test_tests_are_not_imported(tmp_path: Path) -> None:
    claims, _ = read(tmp_path, 'raise SystemExit\n@pytest.mark.formula("m", "x")\ndef test_one(): ...\n')
    assert len(claims) == 1


@pytest.mark.parametrize(
    "mark",
    [
        'pytest.mark.formula("m", TEXT)',
        'pytest.mark.formula("m", f"{1}")',
        'pytest.mark.formula("m", "a" + "b")',
        "pytest.mark.formula(*ARGUMENTS)",
        'pytest.mark.formula("m", 1)',
        'pytest.mark.formula("m", b"x")',
        'pytest.mark.formula("m")',
        'pytest.mark.formula("m", latex="x")',
        'pytest.mark.formula("m", "x", other="y")',
        "pytest.mark.formula()",
        "pytest.mark.formula",
    ],
)
def test_arguments_that_are_not_plain_strings_are_reported(tmp_path: Path, mark: str) -> None:
    claims, problems = read(tmp_path, f"x = 1\n@{mark}\ndef test_one(): ...\n")
    assert claims == []
    (problem,) = problems
    assert str(problem).startswith("tests/test_a.py:2: invalid formula mark: its arguments must be two or more")


@pytest.mark.parametrize(
    ("source", "name", "line"),
    [
        ('@pytest.mark.formula("m", "x")\ndef helper(): ...\n', "test_a.py", 1),
        ('@pytest.mark.formula("m", "x")\nclass Helper: ...\n', "test_a.py", 1),
        ('@pytest.mark.formula("m", "x")\ndef test_one(): ...\n', "oracle.py", 1),
        ('\npytestmark = pytest.mark.formula("m", "x")\n', "test_a.py", 1),
        ('def test_one():\n    @pytest.mark.formula("m", "x")\n    def test_two(): ...\n', "test_a.py", 2),
        ('p = [\n    pytest.param(1, marks=[mark.formula("m", "x")])\n]\n', "test_a.py", 2),
    ],
)
def test_marks_outside_of_tests_are_reported(tmp_path: Path, source: str, name: str, line: int) -> None:
    claims, problems = read(tmp_path, source, name)
    assert claims == []
    (problem,) = problems
    assert problem.path == f"tests/{name}" and problem.line == line
    assert "not collected as a test" in problem.text or "does not decorate a test" in problem.text


def test_paths_are_shown_from_the_folder_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read(tmp_path, '@pytest.mark.formula("m", "x")\ndef test_one(): ...\n')
    monkeypatch.chdir(tmp_path.parent)
    for base, path in ((None, f"{tmp_path.name}/tests/test_a.py"), (tmp_path, "tests/test_a.py")):
        ((claim,), _) = read_claims(tmp_path / "tests", base)
        assert claim.path == path


def test_other_marks_are_ignored(tmp_path: Path) -> None:
    source = '@pytest.mark.slow("formula")\n@formula("m", "x")\n@marks.formula("m", "x")\ndef test_one(): ...\n'
    assert read(tmp_path, source) == ([], [])


def test_tests_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"tests: .*nowhere does not exist"):
        read_claims(tmp_path / "nowhere")
    with pytest.raises(ValueError, match=r"tests: no Python file \(\.py\) in "):
        read_claims(tmp_path)
    with pytest.raises(ValueError, match=r"tests/test_a\.py:2: not valid Python: "):
        read(tmp_path, "# formula\ndef f(:\n")
