"""The pieces of HTML that a page is made of: highlighted code, and formulas between its lines.

They are the same in a Markdown page and in a page of their own. Every line of them starts with a tag, and whatever
could mean something to Markdown, to a template or to a browser is a character reference, so that the text of the
source comes out as it went in.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from urllib.parse import quote

from minerva.annotate.claims import Claim
from minerva.annotate.source import Formula, Module

EXCERPT = 11
"""Lines of an excerpt: the formula's own and the ten that follow."""
FEW = 2
"""So many tests are named beside a formula in the code; the other view names all."""

# Markdown's preprocessors change tabs and control characters, and templates take braces for their own.
_UNSAFE = re.compile(r"[\x00-\x09\x0b-\x1f\x7f&<>\"'`{}$]")
_UNSAFE_IN_MARKDOWN = re.compile(r"[^\w ./,:()-]|_")


def escape(text: str) -> str:
    """Write text so that it is nothing but text inside an HTML block, quoted attributes included."""
    return _UNSAFE.sub(_reference, text)


def escape_inline(text: str) -> str:
    """Write text so that it is nothing but text in a line of Markdown, too."""
    return _UNSAFE_IN_MARKDOWN.sub(_reference, text)


def _reference(match: re.Match[str]) -> str:
    return f"&#{ord(match[0])};"


def highlight(lines: Sequence[str]) -> list[str]:
    """Highlight the lines of a Python file.

    Args:
        lines: The whole file, so that a string over several lines is known as one.

    Returns:
        HTML of each line, without line ends.
    """
    from pygments.lexers.python import PythonLexer
    from pygments.token import STANDARD_TYPES

    html: list[str] = [""]
    for kind, value in PythonLexer(stripnl=False, ensurenl=False).get_tokens("\n".join(lines)):
        while kind not in STANDARD_TYPES and kind.parent is not None:
            kind = kind.parent
        name = STANDARD_TYPES.get(kind, "")
        for k, part in enumerate(value.split("\n")):
            if k:
                html.append("")
            if part:
                html[-1] += f'<span class="{name}">{escape(part)}</span>' if name else escape(part)
    return html


def annotated_source(module: Module, links: Links) -> str:
    """Make the first view: the whole file as one block of code, each marker replaced by its formula.

    A formula stands above its line also where the marker stands beside it: one rule tells the reader which line it is.

    Args:
        module: The file and its formulas.
        links: Makes the links to the tests.
    """
    own_lines = {formula.line: formula for formula in module.formulas if not formula.trailing}
    beside = {formula.line: formula for formula in module.formulas if formula.trailing}
    visible = [
        line[: beside[n].column].rstrip() if n in beside else line for n, line in enumerate(module.lines, start=1)
    ]
    pieces: list[str] = []
    waiting = ""  # formulas do not take a line of the block's text: they go in front of the next line
    for n, html in enumerate(highlight(visible), start=1):
        line = module.lines[n - 1]
        if n in own_lines:
            waiting += _formula_box(own_lines[n], own_lines[n].anchor, links.tests(own_lines[n]), f"{line}\n")
        elif n in beside:
            waiting += _formula_box(beside[n], beside[n].anchor, links.tests(beside[n]))
            hidden = f'<span data-marker="{_attribute(line[len(visible[n - 1]) :])}"></span>'
            pieces.append(waiting + _line(n, html + hidden))
            waiting = ""
        else:
            pieces.append(waiting + _line(n, html))
            waiting = ""
    return _block(pieces, f"Math-annotated source of {module.name}", len(module.lines))


def plain_source(module: Module, html: Sequence[str], first: int, last: int) -> str:
    """Make a block of code of some lines of a file, as they are.

    Args:
        module: The file.
        html: Its highlighted lines.
        first: First line, from 1.
        last: Last line; those beyond the end of the file are left out.
    """
    numbers = range(first, min(last, len(html)) + 1)
    return _block([_line(n, html[n - 1]) for n in numbers], f"{module.path}, from line {first}", len(html))


def annotation(module: Module, html: Sequence[str], formula: Formula, links: Links) -> str:
    """Make an entry of the second view: the line of code with those that follow, then the formula.

    Args:
        module: The file.
        html: Its highlighted lines.
        formula: One of its formulas.
        links: Makes the links to the tests.
    """
    excerpt = plain_source(module, html, formula.code_line, formula.code_line + EXCERPT - 1)
    box = _formula_box(formula, f"{formula.anchor}-excerpt", links.tests(formula, in_full=True))
    return f'<div class="mn-annotation">\n{excerpt}\n{box}\n</div>'


def _formula_box(formula: Formula, anchor: str, tests: str, marker: str | None = None) -> str:
    # The marker is the text of the source that the box stands for: copying puts it back.
    copied = "" if marker is None else f' data-marker="{_attribute(marker)}"'
    paper = "" if formula.citation is None else f'<span class="mn-paper">{escape(formula.citation)}</span>'
    return (
        f'<span class="mn-formula" id="{escape(anchor)}" style="--mn-indent:{formula.indentation}"{copied}>'
        f'<span class="mn-math">{escape(formula.latex)}</span>'
        f'<span class="mn-notes"><a class="mn-link" href="#{escape(anchor)}" title="Link to this formula">#</a>'
        f"{paper}{tests}</span></span>"
    )


class Links:
    """Links to what stands in the repository."""

    def __init__(self, tests: dict[str, tuple[Claim, ...]] | None, source_url: str | None) -> None:
        self._tests = tests
        self._base = None if source_url is None else source_url.rstrip("/") + "/"

    def tests(self, formula: Formula, in_full: bool = False) -> str:
        """Name the tests that cover a formula, a few of them or all in full; nothing where no tests were read."""
        if self._tests is None:
            return ""
        claims = {(claim.path, claim.test): claim for claim in self._tests.get(formula.anchor, ())}
        if not claims:
            return '<span class="mn-untested">no test</span>'
        names = [
            self.file(path, f"{path}::{test}" if in_full else test, claim.line, title=f"{path}::{test}")
            for (path, test), claim in claims.items()
        ]
        if not in_full and len(names) > FEW:
            names[FEW:] = [f"<span>{len(names) - FEW} more</span>"]
        return f'<span class="mn-tests">{" ".join(names)}</span>'

    def file(self, path: str, text: str, line: int | None = None, title: str = "") -> str:
        """Link to a file of the repository, or name it where its address is not known."""
        titled = f' title="{escape(title)}"' if title else ""
        if self._base is None:
            return f"<span{titled}>{escape_inline(text)}</span>"
        address = f"{self._base}{quote(path)}{f'#L{line}' if line else ''}"
        return f'<a href="{escape(address)}"{titled}>{escape_inline(text)}</a>'


def _line(number: int, html: str) -> str:
    return f'<span class="mn-line" data-n="{number}">{html}</span>\n'


def _block(pieces: Sequence[str], label: str, largest: int) -> str:
    # The span between pre and code keeps a theme from taking the block for one of its own: its button would copy the
    # formulas as they look, not as they were written.
    return (
        f'<div class="mn-source" role="region" aria-label="{escape(label)}" tabindex="0" '
        f'style="--mn-digits:{len(str(largest))}">'
        f'<pre><span class="mn-code"><code>{"".join(pieces)}</code></span></pre></div>'
    )


def _attribute(text: str) -> str:
    return escape(text).replace("\n", "&#10;")
