import time
from pathlib import Path

import markdown
import pytest

from minerva.annotate.claims import Claim
from minerva.annotate.fragments import (
    Links,
    annotated_source,
    annotation,
    escape,
    escape_inline,
    heading,
    highlight,
    plain_source,
)
from minerva.annotate.source import Module, read_module
from tests.annotate.samples import HOSTILE, HOSTILE_FORMULAS, Page, without_markers

NO_LINKS = Links(None, None)
OURS = {"div", "pre", "span", "code", "a"}
EXTENSIONS = ["fenced_code", "tables", "toc", "attr_list", "md_in_html", "admonition", "footnotes", "abbr", "smarty"]


def module(source: str) -> Module:
    return read_module(source.encode(), "pkg.mod", "pkg/mod.py")


def test_every_line_stands_in_order_with_its_formula_above() -> None:
    source = "import math\n\n\ndef f(x):\n    # LaTeX: x^2\n    # LaTeX: x \\cdot x\n\n    return x * x  # LaTeX: x x\n"
    (block,) = Page(annotated_source(module(source), NO_LINKS)).blocks
    assert block == [
        ("1", "import math"),
        ("2", ""),
        ("3", ""),
        ("4", "def f(x):"),
        ("formula", "x^2"),
        ("formula", "x \\cdot x"),
        ("7", ""),
        ("formula", "x x"),
        ("8", "    return x * x"),
    ]


def test_hostile_source_is_shown_as_text() -> None:
    found = module(HOSTILE)
    assert {formula.code_line: formula.latex for formula in found.formulas} == HOSTILE_FORMULAS
    html = annotated_source(found, NO_LINKS)
    page = Page(html)
    assert page.lines() == without_markers(HOSTILE)
    assert [text for kind, text in page.blocks[0] if kind == "formula"] == list(HOSTILE_FORMULAS.values())
    assert page.tags == OURS and page.handlers == set()
    assert all(line.startswith(("<span", "<div", "</code>")) for line in html.split("\n"))


def test_hostile_source_passes_through_markdown_untouched() -> None:
    found = module(HOSTILE)
    html = annotated_source(found, NO_LINKS)
    entry = annotation(found, highlight(found.lines), found.formulas[0], NO_LINKS)
    text = f"# Title\n\nBefore *it*.\n\n{html}\n\n## Line\n\n{entry}\n\nAfter.\n"
    made = markdown.markdown(text, extensions=EXTENSIONS)
    assert html in made and entry in made
    assert made.startswith('<h1 id="title">Title</h1>\n<p>Before <em>it</em>.</p>\n')
    assert made.endswith("<p>After.</p>")


def test_text_in_a_line_of_markdown_is_text() -> None:
    hostile = "a_b_ *c* `d` <e> [f](g) {{ h }} & i | j ![k](l) ~m~ \\n ünï"
    made = markdown.markdown(f"# {escape_inline(hostile)}", extensions=["attr_list", "md_in_html"])
    page = Page(made)
    assert page.tags == {"h1"}
    assert escape("<\"'&`{}$\t\x02é") == "&#60;&#34;&#39;&#38;&#96;&#123;&#125;&#36;&#9;&#2;é"


def test_code_is_highlighted_by_line_also_in_a_string_over_lines() -> None:
    html = highlight(['x = """a', 'b"""', "", "def f(): return 1"])
    assert html[0].endswith('<span class="s2">a</span>')
    assert html[1] == '<span class="s2">b</span><span class="s2">&#34;&#34;&#34;</span>'
    assert html[2] == ""
    assert '<span class="k">def</span>' in html[3] and '<span class="nf">f</span>' in html[3]


@pytest.mark.parametrize("source", ["\n\n\nx = 1\n\n\n", "x = 1", "\f\nx = 1\n", "x = $ ? error", "a\tb  \n"])
def test_highlighting_keeps_every_line(source: str) -> None:
    lines = source.split("\n")
    page = Page(
        "".join(f'<div class="mn-source"><i class="mn-line" data-n="1">{h}</i></div>' for h in highlight(lines))
    )
    assert [block[0][1] for block in page.blocks] == lines


def test_an_excerpt_is_the_line_and_the_ten_that_follow() -> None:
    source = "# LaTeX: x\n" + "".join(f"x{n} = {n}\n" for n in range(2, 30)) + "# LaTeX: y\ny = 1\n"
    found = module(source)
    html = highlight(found.lines)
    (block,) = Page(plain_source(found, html, 5, 15)).blocks
    assert [int(n) for n, _ in block] == list(range(5, 16)) and block[0][1] == "x5 = 5"
    (block,) = Page(annotation(found, html, found.formulas[0], NO_LINKS)).blocks
    assert block == [(str(n), f"x{n} = {n}") for n in range(2, 13)]
    (block,) = Page(annotation(found, html, found.formulas[1], NO_LINKS)).blocks
    assert block == [("31", "y = 1")]  # no more lines than there are


FUNCTIONS = """\
# LaTeX: a
a = (
    1
)
# Of the next function.
@decorated
def f(x):
    # LaTeX: y
    y = x

    def inner(z):
        # LaTeX: z
        return z
    return inner(y)


class C:
    # LaTeX: b
    b = 2

    # LaTeX: g
    def g(self):
        return 1

    c = 3  # LaTeX: c
# LaTeX: d
d = [
    4,
    ]
"""


def test_an_excerpt_ends_with_its_function_and_its_heading_names_it() -> None:
    found = module(FUNCTIONS)
    html = highlight(found.lines)
    shown = {}
    for formula in found.formulas:
        (block,) = Page(annotation(found, html, formula, NO_LINKS)).blocks
        shown[formula.latex] = (heading(formula), [int(number) for number, _ in block])
    assert shown == {
        "a": ("Line 2", [2, 3, 4]),
        "y": ("Line 9, in <code>f</code>", [9, 10, 11, 12, 13, 14]),
        "z": ("Line 13, in <code>f.inner</code>", [13]),
        "b": ("Line 19, in <code>C</code>", [19]),
        "g": ("Line 22, in <code>C.g</code>", [22, 23]),
        "c": ("Line 25, in <code>C</code>", [25]),
        "d": ("Line 27", [27, 28, 29]),
    }
    (formula,) = module("def _a_b(x):\n    # LaTeX: x\n    return x\n").formulas
    assert heading(formula) == "Line 3, in <code>&#95;a&#95;b</code>"  # no emphasis of Markdown


def test_a_formula_shows_its_paper_its_address_and_its_tests() -> None:
    found = module("# LaTeX[Song2020, eq. 3]: x\ny = 1\n# LaTeX: z\nw = 1\n")
    first, second = found.formulas
    claims = tuple(Claim("pkg.mod", "x", f"test_{k}", "tests/test_a.py", k, k) for k in (7, 7, 8, 9))
    tests = {first.anchor: claims}
    html = annotated_source(found, Links(tests, "https://example.org/blob/main"))
    assert html.count(f'id="{first.anchor}"') == 1 and html.count(f'href="#{first.anchor}"') == 1
    assert html.count(">Song2020, eq. 3</span>") == 1
    for k in (7, 8):
        link = f'<a href="https://example.org/blob/main/tests/test_a.py#L{k}" title="tests/test_a.py::test_{k}">'
        assert html.count(f"{link}test&#95;{k}</a>") == 1
    assert "1 more" in html and "test&#95;9" not in html
    assert html.count("no test") == 1 and html.index("no test") > html.index(second.anchor)
    entry = annotation(found, highlight(found.lines), first, Links(tests, None))
    assert f'id="{first.anchor}-excerpt"' in entry and f'href="#{first.anchor}-excerpt"' in entry
    assert all(f">tests/test&#95;a.py::test&#95;{k}</span>" in entry for k in (7, 8, 9))
    assert "test" not in annotated_source(found, NO_LINKS)


def test_links_lead_to_files_of_any_name() -> None:
    link = Links(None, "https://example.org").file("sp ace/a#1?é.py", "it", 3)
    assert link == '<a href="https://example.org/sp%20ace/a%231%3F%C3%A9.py#L3">it</a>'


def test_ten_thousand_lines_take_a_reasonable_time(tmp_path: Path) -> None:
    part = 'def f{n}(x):\n    """Doc."""\n    # LaTeX: x_{{{n}}}\n    y = [x, "a", {n}]\n    return y  # why\n'
    source = "".join(part.format(n=n) for n in range(2000))
    began = time.process_time()
    found = module(source)
    html = annotated_source(found, NO_LINKS)
    assert time.process_time() - began < 10
    assert len(found.lines) == 10_000 and len(found.formulas) == 2000
    page = Page(html)
    assert page.lines() == without_markers(source)
    assert page.blocks[0][2:4] == [("formula", "x_{0}"), ("4", '    y = [x, "a", 0]')]
