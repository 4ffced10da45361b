"""MkDocs hooks that generate pages from code and data.

Whole pages: the annotated source, the tests that its formulas link to, presets, results, API. Within a page, a
directive (a comment on its own line, such as ``<!-- hyperparameters: ppo -->``) is replaced by what it names. A
directive that names nothing known fails the build, and so does a comment that looks like a misspelled directive.
"""

from __future__ import annotations

import difflib
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files, InclusionLevel
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))  # `benchmarks` and `docs` are not installed

from benchmarks import summary  # noqa: E402
from docs import api, formulas, scale, speed, tables  # noqa: E402
from docs.formulas import ANNOTATED, CODE  # noqa: E402

_DIRECTIVE = re.compile(r"^<!-- (?P<kind>[a-z ]+?)(?:: (?P<argument>.+?))? -->$", re.MULTILINE)
_COMMENT = re.compile(r"<!--(?P<text>.*?)-->", re.DOTALL)
_FOR_TESTS = ("run", "not run")
"""Prefixes of the comments that say whether tests/docs runs the code block below."""
_WITHOUT_ARGUMENT = ("coverage",)


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Add the generated pages to the navigation."""
    formulas.report.cache_clear()  # `mkdocs serve` rebuilds when the source changes
    if formulas.report().problems:
        raise PluginError("\n".join(["formulas that do not hold:", *map(str, formulas.report().problems)]))
    modules = [name for group in formulas.reading_order() for name in group.modules]
    filled: dict[str, list[Any]] = {
        "Annotated source": [
            f"{ANNOTATED}/index.md",
            *({_short(name): f"{ANNOTATED}/source/{name}.md"} for name in modules),
            {"Rendered annotations": [{_short(name): f"{ANNOTATED}/annotations/{name}.md"} for name in modules]},
        ],
        "Presets": [{name: f"presets/{algo}.md"} for algo, name in summary.ALGORITHMS.items()],
        "API": ["api/index.md", *({title: f"api/{page}.md"} for page, (title, _) in api.pages().items())],
    }
    config.nav = _fill(config.nav or [], filled)
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the generated pages."""

    def add(uri: str, content: str | bytes, in_nav: bool = True) -> None:
        inclusion = InclusionLevel.UNDEFINED if in_nav else InclusionLevel.NOT_IN_NAV
        files.append(File.generated(config, uri, content=content, inclusion=inclusion))

    for uri, content in formulas.pages().items():
        add(uri, content)
    for path in formulas.tests():
        add(f"{CODE}/{path.removesuffix('.py')}.md", formulas.code_page(path), in_nav=False)
    for algo in summary.ALGORITHMS:
        add(f"presets/{algo}.md", tables.presets_page(algo))
    add("api/index.md", api.index_page())
    for page, (title, modules) in api.pages().items():
        add(f"api/{page}.md", api.page(title, modules))
    add("results.md", tables.results_page())
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Replace the directives, and the links from formulas to tests."""
    uri = page.file.src_uri

    def replacement(match: re.Match[str]) -> str:
        kind, argument = match["kind"], match["argument"]
        if kind.startswith(_FOR_TESTS):
            return match[0]
        if kind not in DIRECTIVES:
            raise PluginError(f"{uri}: {match[0]}: there is no {kind!r}, only {', '.join(DIRECTIVES)}")
        if (argument is None) != (kind in _WITHOUT_ARGUMENT):
            raise PluginError(f"{uri}: {match[0]}: write {_spelling(kind)}")
        try:
            return DIRECTIVES[kind](argument, uri)
        except (KeyError, ValueError) as error:
            raise PluginError(f"{uri}: {match[0]}: {error}") from error

    if uri.startswith((f"{ANNOTATED}/source/", f"{CODE}/")):
        page.meta["hide"] = ["toc"]  # code is wide, and has no headings
    if uri.startswith(f"{ANNOTATED}/annotations/"):
        page.meta["hide"] = ["navigation"]  # code is wide, and the table of contents lists the formulas
    if uri == f"{ANNOTATED}/index.md":
        return formulas.index_page(markdown)
    if uri.startswith(f"{ANNOTATED}/"):
        return formulas.with_links(markdown, uri)
    for comment in _COMMENT.finditer(markdown):
        if (near := _nearly(comment)) is not None:
            raise PluginError(f"{uri}: {comment[0]}: write {_spelling(near)} on a line of its own, or reword it")
    return _DIRECTIVE.sub(replacement, markdown)


def _nearly(comment: re.Match[str]) -> str | None:
    """Return the directive that a comment was probably meant to be; None if it is one, or not similar to any."""
    directive = _DIRECTIVE.match(comment.string, comment.start())
    if comment[0].startswith(tuple(f"<!-- {word}" for word in _FOR_TESTS)) or (
        directive and directive[0] == comment[0]
    ):
        return None
    head = " ".join(comment["text"].lower().partition(":")[0].split())
    known = [*DIRECTIVES, *_FOR_TESTS]
    near = [
        name for words in (head, head.partition(" ")[0]) for name in difflib.get_close_matches(words, known, 1, 0.8)
    ]
    return near[0] if near else None


def _spelling(kind: str) -> str:
    return f"<!-- {kind} -->" if kind in (*_WITHOUT_ARGUMENT, *_FOR_TESTS) else f"<!-- {kind}: NAME -->"


# Pages and parts of pages


def example(name: str, uri: str) -> str:
    """Show a whole program of examples/."""
    return f"```python\n{_example_file(name).read_text(encoding='utf-8')}```"


def annotated_example(name: str, uri: str) -> str:
    """Show a whole program of examples/ with its formulas rendered."""
    return formulas.annotated_file(_example_file(name), uri)


def _example_file(name: str) -> Path:
    path = ROOT / "examples" / f"{name}.py"
    if not path.exists():
        raise ValueError(f"there is no {path.relative_to(ROOT)}")
    return path


DIRECTIVES: dict[str, Callable[[str, str], str]] = {
    "formula": formulas.formula,
    "excerpt": formulas.excerpt,
    "coverage": formulas.coverage,
    "example": example,
    "annotated example": annotated_example,
    "hyperparameters": tables.hyperparameters,
    "health": tables.health_rules,
    "results": tables.results,
    "results in short": tables.results_in_short,
    "shortfalls": tables.shortfalls,
    "curves": tables.curves,
    "time shares": speed.time_shares,
    "scale": scale.part,
}


def _fill(nav: list[Any], filled: dict[str, list[Any]]) -> list[Any]:
    def entries() -> Iterator[Any]:
        for entry in nav:
            if isinstance(entry, dict):
                ((title, value),) = entry.items()
                yield {title: filled.get(title, _fill(value, filled) if isinstance(value, list) else value)}
            else:
                yield entry

    return list(entries())


def _short(module: str) -> str:
    return module.removeprefix("minerva.")
