"""Build the HTML of a page: highlighted code, and formulas between its lines.

The HTML is the same in a Markdown page and in an HTML file. Every line starts with a tag, and each character with a
meaning in Markdown, templates or HTML is a character reference, so that the source is shown unchanged.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from urllib.parse import quote

from minerva.annotate.claims import Claim
from minerva.annotate.source import Formula, Module

EXCERPT_LINES = 11
"""Lines of an excerpt: the formula's line and the ten that follow, but none after the end of the function."""
MAX_LISTED_TESTS = 2
"""Number of tests listed next to a formula in the code; the other view lists all."""

# Markdown preprocessors change tabs and control characters, and templates interpret braces.
_UNSAFE = re.compile(r"[\x00-\x09\x0b-\x1f\x7f&<>\"'`{}$]")
_UNSAFE_IN_MARKDOWN = re.compile(r"[^\w ./,:()-]|_")


def escape(text: str) -> str:
    """Escape text for an HTML block, including quoted attributes."""
    return _UNSAFE.sub(_reference, text)


def escape_inline(text: str) -> str:
    """Escape text for a line of Markdown."""
    return _UNSAFE_IN_MARKDOWN.sub(_reference, text)


def _reference(match: re.Match[str]) -> str:
    return f"&#{ord(match[0])};"


def highlight(lines: Sequence[str]) -> list[str]:
    """Highlight the lines of a Python file.

    Args:
        lines: The whole file, so that strings over several lines are recognized.

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
    """Build the first view: the whole file as one block of code, with each marker replaced by its formula.

    A formula is always shown above its line, also if its marker is at the end of the line.

    Args:
        module: The file and its formulas.
        links: Builds the links to the tests.
    """
    own_lines = {formula.line: formula for formula in module.formulas if not formula.trailing}
    trailing = {formula.line: formula for formula in module.formulas if formula.trailing}
    visible = [
        line[: trailing[n].column].rstrip() if n in trailing else line for n, line in enumerate(module.lines, start=1)
    ]
    pieces: list[str] = []
    pending = ""  # formulas are not lines of the block's text: they are put before the next line
    for n, html in enumerate(highlight(visible), start=1):
        line = module.lines[n - 1]
        if n in own_lines:
            pending += _formula_box(own_lines[n], own_lines[n].anchor, links.tests(own_lines[n]), f"{line}\n")
        elif n in trailing:
            pending += _formula_box(trailing[n], trailing[n].anchor, links.tests(trailing[n]))
            hidden = f'<span data-marker="{_attribute(line[len(visible[n - 1]) :])}"></span>'
            pieces.append(pending + _line(n, html + hidden))
            pending = ""
        else:
            pieces.append(pending + _line(n, html))
            pending = ""
    return _block(pieces, f"Math-annotated source of {module.name}", len(module.lines))


def plain_source(module: Module, html: Sequence[str], first: int, last: int) -> str:
    """Build a block of code from a range of lines of a file, without formulas.

    Args:
        module: The file.
        html: Its highlighted lines.
        first: First line, from 1.
        last: Last line.
    """
    numbers = range(first, last + 1)
    return _block([_line(n, html[n - 1]) for n in numbers], f"{module.path}, from line {first}", len(html))


def annotation(module: Module, html: Sequence[str], formula: Formula, links: Links) -> str:
    """Build an entry of the second view: the line of code and those of its function that follow, then the formula.

    Args:
        module: The file.
        html: Its highlighted lines.
        formula: One of its formulas.
        links: Builds the links to the tests.
    """
    last = min(formula.code_line + EXCERPT_LINES - 1, formula.last_line)
    excerpt = plain_source(module, html, formula.code_line, last)
    box = _formula_box(formula, f"{formula.anchor}-excerpt", links.tests(formula, in_full=True))
    return f'<div class="mn-annotation">\n{excerpt}\n{box}\n</div>'


def heading(formula: Formula) -> str:
    """Build the heading of an entry of the second view: the line of code, and the function or class around it."""
    return f"Line {formula.code_line}" + f", in <code>{escape_inline(formula.qualname)}</code>" * bool(formula.qualname)


def _formula_box(formula: Formula, anchor: str, tests: str, marker: str | None = None) -> str:
    # The marker is the source text that the box replaces; copying the code restores it.
    copied = "" if marker is None else f' data-marker="{_attribute(marker)}"'
    paper = "" if formula.citation is None else f'<span class="mn-paper">{escape(formula.citation)}</span>'
    return (
        f'<span class="mn-formula" id="{escape(anchor)}" style="--mn-indent:{formula.indentation}"{copied}>'
        f'<span class="mn-math">{escape(formula.latex)}</span>'
        f'<span class="mn-notes"><a class="mn-link" href="#{escape(anchor)}" title="Link to this formula">#</a>'
        f"{paper}{tests}</span></span>"
    )


class Links:
    """Build links to files of the repository."""

    def __init__(self, tests: dict[str, tuple[Claim, ...]] | None, source_url: str | None) -> None:
        self._tests = tests
        self._base = None if source_url is None else source_url.rstrip("/") + "/"

    def tests(self, formula: Formula, in_full: bool = False) -> str:
        """Return links to the tests that cover a formula: the first few, or all with their paths (`in_full`)."""
        if self._tests is None:
            return ""
        claims = {(claim.path, claim.test): claim for claim in self._tests.get(formula.anchor, ())}
        if not claims:
            return '<span class="mn-untested">no test</span>'
        names = [
            self.file(path, f"{path}::{test}" if in_full else test, claim.line, title=f"{path}::{test}")
            for (path, test), claim in claims.items()
        ]
        if not in_full and len(names) > MAX_LISTED_TESTS:
            names[MAX_LISTED_TESTS:] = [f"<span>{len(names) - MAX_LISTED_TESTS} more</span>"]
        return f'<span class="mn-tests">{" ".join(names)}</span>'

    def file(self, path: str, text: str, line: int | None = None, title: str = "") -> str:
        """Return a link to a file of the repository, or plain text if there is no URL."""
        titled = f' title="{escape(title)}"' if title else ""
        if self._base is None:
            return f"<span{titled}>{escape_inline(text)}</span>"
        address = f"{self._base}{quote(path)}{f'#L{line}' if line else ''}"
        return f'<a href="{escape(address)}"{titled}>{escape_inline(text)}</a>'


def _line(number: int, html: str) -> str:
    return f'<span class="mn-line" data-n="{number}">{html}</span>\n'


def _block(pieces: Sequence[str], label: str, largest: int) -> str:
    # The span between pre and code hides the block from themes, whose copy button would copy rendered formulas instead
    # of their source.
    return (
        f'<div class="mn-source" role="region" aria-label="{escape(label)}" tabindex="0" '
        f'style="--mn-digits:{len(str(largest))}">'
        f'<pre><span class="mn-code"><code>{"".join(pieces)}</code></span></pre></div>'
    )


def _attribute(text: str) -> str:
    return escape(text).replace("\n", "&#10;")
