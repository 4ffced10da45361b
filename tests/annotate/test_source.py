import codecs
import dataclasses
import textwrap
from pathlib import Path

import pytest

from minerva.annotate.source import Formula, Module, Problem, collapse, read_module, read_source


def read(source: str | bytes) -> Module:
    data = source if isinstance(source, bytes) else textwrap.dedent(source).lstrip("\n").encode()
    return read_module(data, "package.module", "package/module.py")


def only(source: str | bytes) -> Formula:
    module = read(source)
    assert module.problems == ()
    (formula,) = module.formulas
    return formula


# What a formula knows


def test_a_marker_belongs_to_the_next_line_of_code() -> None:
    module = read(
        r"""
        def f(x):
            # LaTeX: x^2

            # because
            # LaTeX[Schulman2017, eq. 7, and more]: x \cdot x

            return x * x
        """
    )
    first, second = module.formulas
    assert dataclasses.asdict(first) == {
        "module": "package.module",
        "path": "package/module.py",
        "line": 2,
        "code_line": 7,
        "last_line": 7,
        "latex": "x^2",
        "paper": None,
        "equation": None,
        "qualname": "f",
        "anchor": first.anchor,
        "indentation": 4,
        "column": 4,
        "trailing": False,
    }
    assert first.citation is None
    assert (second.line, second.code_line, second.latex) == (5, 7, r"x \cdot x")
    assert (second.paper, second.equation) == ("Schulman2017", "eq. 7, and more")
    assert second.citation == "Schulman2017, eq. 7, and more"
    assert first.anchor != second.anchor


def test_a_citation_may_be_of_a_whole_paper() -> None:
    formula = only("# LaTeX[Song2020]: x\nx = 1\n")
    assert (formula.paper, formula.equation, formula.citation) == ("Song2020", None, "Song2020")


def test_a_marker_beside_code_belongs_to_its_own_line() -> None:
    formula = only("if 1:\n    y = 2 * x  # LaTeX[A, 1]: y = 2 x\n    z = 1\n")
    assert (formula.line, formula.code_line, formula.trailing) == (2, 2, True)
    assert (formula.indentation, formula.column, formula.latex, formula.paper) == (4, 15, "y = 2 x", "A")


def test_the_name_around_it_is_of_the_innermost_function_or_class() -> None:
    module = read(
        """
        # LaTeX: a
        x = 1
        class A:
            # LaTeX: b
            y = 2
            async def f(self):
                def g():
                    # LaTeX: c
                    return 1
                # LaTeX: d
                return g
            # LaTeX: e
            def h(self):
                return lambda: (
                    # LaTeX: f
                    1
                )
        # LaTeX: g
        z = 1
        """
    )
    assert [(f.latex, f.qualname) for f in module.formulas] == [
        ("a", ""), ("b", "A"), ("c", "A.f.g"), ("d", "A.f"), ("e", "A.h"), ("f", "A.h"), ("g", ""),
    ]  # fmt: skip


def test_the_anchor_survives_moved_lines_and_changes_with_the_formula() -> None:
    before = only("def f():\n    # LaTeX: x + y\n    return 1\n")
    moved = only(
        "import os\n\n\ndef g():\n    pass\n\n\ndef f():\n    y = 1\n\n    # LaTeX:   x  +  y\n\n    return y\n"
    )
    assert moved.anchor == before.anchor
    assert before.anchor.startswith("package.module.f-")
    assert only("def f():\n    # LaTeX: x - y\n    return 1\n").anchor != before.anchor
    assert only("def h():\n    # LaTeX: x + y\n    return 1\n").anchor != before.anchor


def test_anchors_of_equal_formulas_differ() -> None:
    module = read("# LaTeX: x\na = 1\n# LaTeX: x\nb = 1\n# LaTeX: x\nc = 1\n")
    first, second, third = (formula.anchor for formula in module.formulas)
    assert (second, third) == (f"{first}-2", f"{first}-3")


def test_collapse() -> None:
    assert collapse("  a \t +\n b ") == "a + b"


# What is and is not a marker


def test_strings_that_look_like_markers_are_ignored() -> None:
    module = read(
        '''
        """A docstring.

        # LaTeX: a
        """
        x = "# LaTeX: b"
        y = f"""
        # LaTeX: c {x!r:>{len("# LaTeX: d")}} # LaTeX: e
            # LaTeX: f
        """
        z = ('# LaTeX: g' "# LaTeX: h"
             r\'\'\'
        # LaTeX: i\'\'\')
        # LaTeX: real
        w = b"# LaTeX: j"
        '''
    )
    assert [formula.latex for formula in module.formulas] == ["real"]
    assert module.problems == ()


def test_a_marker_after_a_string_over_lines_is_one() -> None:
    formula = only('x = """\n# LaTeX: no\n"""  # LaTeX: yes\n')
    assert (formula.latex, formula.line, formula.code_line, formula.trailing) == ("yes", 3, 3, True)


def test_markers_inside_an_expression_over_lines() -> None:
    module = read(
        """
        total = f(
            # LaTeX: a
            1,
            2,  # LaTeX: b
            # LaTeX: c

            [  # no marker
                3,
            ],
        ) + \\
            4  # LaTeX: d
        """
    )
    found = [(f.latex, f.line, f.code_line, f.indentation, f.trailing) for f in module.formulas]
    assert found == [("a", 2, 3, 4, False), ("b", 4, 4, 4, True), ("c", 5, 7, 4, False), ("d", 11, 11, 4, True)]


def test_a_marker_above_a_decorator_belongs_to_the_decorator() -> None:
    formula = only("# LaTeX: x\n@cache\n@other\ndef f():\n    pass\n")
    assert (formula.code_line, formula.qualname) == (2, "f")


@pytest.mark.parametrize(
    "comment",
    [
        "# Latex: x",
        "#LaTeX: x",
        "#  LaTeX: x",
        "## LaTeX: x",
        "# LaTeX : x",
        "# LaTeX [A]: x",
        "# latex[A, 1]: x",
        "# LaTeX[Song2020, eq. 3] x = y",
        "# LaTeX[Song2020, eq. 3: x = y",
        "# LaTeX[A]",
    ],
)
def test_a_misspelled_marker_is_reported(comment: str) -> None:
    module = read(f"y = 1\n{comment}\nz = 1\n")
    assert module.formulas == ()
    (problem,) = module.problems
    assert str(problem).startswith("package/module.py:2: marker ") and "misspelled" in problem.text


@pytest.mark.parametrize("comment", ["# LaTeX", "# in LaTeX: x", "# LaTeX is a language", "# see LaTeX[1]: x"])
def test_other_comments_are_ignored(comment: str) -> None:
    module = read(f"{comment}\nz = 1\n")
    assert module.formulas == () and module.problems == ()


@pytest.mark.parametrize(
    ("source", "line", "text"),
    [
        ("x = 1\n# LaTeX:\ny = 1\n", 2, "without a formula"),
        ("x = 1\ny = 1  # LaTeX[A, 1]:   \n", 2, "without a formula"),
        ("# LaTeX[]: x\ny = 1\n", 1, "marker without a paper"),
        ("# LaTeX[ , eq. 1]: x\ny = 1\n", 1, "marker without a paper"),
        ("x = 1\n# LaTeX: x\n", 2, "without code"),
        ("def f():\n    return 1\n    # LaTeX: x\n\n    # the end\n", 3, "without code"),
        ("# LaTeX: x", 1, "without code"),
        ("def f():\n    return 1\n    # LaTeX: x\n\n\ndef g():\n    pass\n", 3, "without code: line 6 is outside"),
        ("class A:\n\tdef f():\n\t\treturn 1\n\t\t# LaTeX: x\n\t@cache\n\tdef g(): ...\n", 4, "without code: line 5"),
        ("if x:\n    y = (\n1)\n    # LaTeX: x\nelse:\n    y = 2\n", 4, "without code: line 5 is outside its block"),
        ("y = f(\n    1,\n    # LaTeX: x\n    )\n", 3, "without code: line 4 is outside its block"),
    ],
)
def test_invalid_markers(source: str, line: int, text: str) -> None:
    module = read(source)
    assert module.formulas == ()
    (problem,) = module.problems
    assert problem.line == line and text in problem.text and problem.path == "package/module.py"


@pytest.mark.parametrize(
    ("source", "code_line"),
    [
        ("y = [\n        # LaTeX: x\n    1,\n]\n", 3),
        ("y = {(\n        # LaTeX: x\n1): f'{(2)}', 3: [\n    1]}\n", 3),
        ("if 1:\n\t# LaTeX: x\n    y = 1\n", 3),  # a tab of four columns
        ("if 1:\n        # LaTeX: x\n\ty = 1\n", 3),  # and of eight
        ("if 1:\n    y = 1\n# LaTeX: x\nz = 1\n", 4),
        ("if 1:\n  # LaTeX: x\n    y = 1\n", 3),
        ("y = f'{[1]}'\n# LaTeX: x\nz = 1\n", 3),
    ],
)
def test_the_next_line_is_the_markers_own_where_no_block_ends_before_it(source: str, code_line: int) -> None:
    assert only(source.encode()).code_line == code_line


# Bytes


def test_tabs() -> None:
    formula = only("if 1:\n\tif 2:\n\t\t# LaTeX: x\n\t\ty = 1\n")
    assert (formula.indentation, formula.column) == (16, 2)


def test_windows_and_old_line_ends() -> None:
    for end in ("\r\n", "\r"):
        module = read(end.join(["if 1:", "    # LaTeX: x", "    y = '''a", "b'''", ""]).encode())
        assert module.lines == ("if 1:", "    # LaTeX: x", "    y = '''a", "b'''")
        assert module.formulas[0].latex == "x" and module.formulas[0].code_line == 3


def test_a_declared_encoding() -> None:
    source = "# -*- coding: latin-1 -*-\nname = 'é'\n# LaTeX: \\text{é}\nx = 1\n"
    assert only(source.encode("latin-1")).latex == r"\text{é}"
    module = read("#!/usr/bin/python\n# vim: set fileencoding=cp1252 :\nx = '€'\n# LaTeX: x\ny = 1\n".encode("cp1252"))
    assert module.lines[2] == "x = '€'"


def test_a_byte_order_mark() -> None:
    module = read(codecs.BOM_UTF8 + b"# LaTeX: x\ny = 1\n")
    assert module.lines[0] == "# LaTeX: x" and module.formulas[0].column == 0


def test_form_feeds_and_odd_line_separators_end_no_line() -> None:
    module = read("x = 'a\u2028b\x1cc\x85'\n\f\n\f# LaTeX: x\n\f    \ny = 1\n".encode())
    assert len(module.lines) == 5
    (formula,) = module.formulas
    assert (formula.line, formula.code_line, formula.indentation) == (3, 5, 0)


def test_a_file_without_a_last_line_end() -> None:
    assert read("# LaTeX: x\ny = 1").lines == ("# LaTeX: x", "y = 1")


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"# LaTeX: x\n\n\ny = '\xff'\n", "package/module.py:4: byte 0xff is not utf-8; declare the file's encoding"),
        (b"# LaTeX: \xff\ny = 1\n", "package/module.py:1: "),
        (b"# coding: no-such\n# LaTeX: x\ny = 1\n", "package/module.py:1: unknown encoding: no-such; "),
        (b"# coding: rot13\n# LaTeX: x\ny = 1\n", "package/module.py:1: 'rot13' is not a text encoding"),
        (b"# coding: hex\n# LaTeX: x\ny = 1\n", "package/module.py:1: 'hex' is not a text encoding"),
        (b"# coding: undefined\n# LaTeX: x\ny = 1\n", "package/module.py:1: "),
        (b"# LaTeX: x\n\ndef f(:\n    pass\n", "package/module.py:3: not valid Python: "),
        (b"# LaTeX: x\ny = '''\n", "package/module.py:2: not valid Python: "),
        (b"if 1:\n# LaTeX: x\ny = 1\n", "package/module.py:3: not valid Python: "),
        (b"# LaTeX: x\ny = '\x00'\n", "not valid Python: "),
        (b"# LaTeX: x\ny = " + b"(" * 5000 + b")" * 5000, "not valid Python: "),
    ],
)
def test_source_that_cannot_be_read_is_rejected_in_one_line(data: bytes, message: str) -> None:
    with pytest.raises(ValueError) as caught:
        read(data)
    assert message in str(caught.value) and "\n" not in str(caught.value)


def test_deep_expressions_and_wrong_escapes_are_read() -> None:
    assert only("# LaTeX: x\ny = '\\d'" + " + 1" * 1500 + "\n").latex == "x"


# Folders


MARKED = "# LaTeX: x\ny = 1\n"


def write(folder: Path, *names: str, text: str = MARKED) -> Path:
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


def test_modules_have_the_names_that_python_knows_them_by(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, "pkg/__init__.py", "pkg/sub/__init__.py", "pkg/sub/mod.py", "pkg/other.py", "script.py")
    write(tmp_path, "pkg/plain.py", text="x = 1\n")

    def names(path: Path) -> list[str]:
        return [module.name for module in read_source(path).modules]

    inside = ["pkg", "pkg.other", "pkg.sub", "pkg.sub.mod"]
    assert names(tmp_path) == [*inside, "script"]
    assert names(tmp_path / "pkg") == inside
    assert names(tmp_path / "pkg" / "sub") == ["pkg.sub", "pkg.sub.mod"]
    assert names(tmp_path / "pkg" / "sub" / "mod.py") == ["pkg.sub.mod"]
    assert names(tmp_path / "script.py") == ["script"]
    assert [module.path for module in read_source(tmp_path / "pkg" / "sub").modules][1] == "pkg/sub/mod.py"
    monkeypatch.chdir(tmp_path / "pkg")
    assert [module.path for module in read_source(Path("sub")).modules][1] == "sub/mod.py"
    assert [module.path for module in read_source(Path("sub"), tmp_path).modules][1] == "pkg/sub/mod.py"


def test_what_a_path_reaches(tmp_path: Path) -> None:
    write(tmp_path, "pkg/__init__.py", "pkg/sub/__init__.py", "pkg/sub/mod.py")
    assert read_source(tmp_path).reaches("anything")
    assert read_source(tmp_path / "pkg").reaches("anything")
    sub = read_source(tmp_path / "pkg" / "sub")
    assert sub.reaches("pkg.sub.gone") and not sub.reaches("pkg.subway") and not sub.reaches("pkg")
    init = read_source(tmp_path / "pkg" / "sub" / "__init__.py")
    assert init.reaches("pkg.sub") and not init.reaches("pkg.sub.mod")
    one = read_source(tmp_path / "pkg" / "sub" / "mod.py")
    assert one.reaches("pkg.sub.mod") and one.reaches("pkg.sub.mod.f") and not one.reaches("pkg.sub.model")


def test_skipped_files(tmp_path: Path) -> None:
    write(tmp_path, "good.py", ".hidden/a.py", "env/a.py", "env/pyvenv.cfg", "notes.txt")
    write(tmp_path, "broken.py", text="def f(:\n")
    (tmp_path / "link.py").symlink_to(tmp_path / "nowhere.py")
    (tmp_path / "loop.py").symlink_to(tmp_path / "loop.py")
    assert [module.name for module in read_source(tmp_path).modules] == ["good"]


def test_an_invalid_marker_still_shows_its_file(tmp_path: Path) -> None:
    (module,) = read_source(write(tmp_path, "a.py", text="# LaTeX:\nx = 1\n")).modules
    assert [type(problem) for problem in module.problems] == [Problem]


def test_paths_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"path: .*nowhere does not exist; give a Python file"):
        read_source(tmp_path / "nowhere")
    with pytest.raises(ValueError, match=r"path: no Python file \(\.py\) in "):
        read_source(tmp_path)
    (tmp_path / "a.txt").write_text(MARKED)
    with pytest.raises(ValueError, match=r"path: no Python file \(\.py\) in .*a\.txt"):
        read_source(tmp_path / "a.txt")
    write(tmp_path, "a/b.py", "a.b.py")
    with pytest.raises(ValueError, match=r"path: .* and .* are both module a\.b"):
        read_source(tmp_path)
