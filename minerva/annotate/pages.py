"""Write the pages: Markdown for MkDocs, or one self-contained HTML file."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from minerva.annotate.engine import ASSETS, KATEX
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
from minerva.annotate.report import Report
from minerva.annotate.source import Module

STYLESHEETS = ("assets/katex/katex.min.css", "assets/annotate.css")
"""Stylesheets for MkDocs' `extra_css`, relative to the folder of the pages."""
SCRIPTS = ("assets/katex/katex.min.js", "assets/annotate.js")
"""Scripts for MkDocs' `extra_javascript`, in this order."""

_GENERATED = "<!-- Made by `minerva annotate`: changes are lost. -->"


def make_pages(report: Report, source_url: str | None = None) -> dict[str, bytes]:
    """Build Markdown pages for MkDocs: an index, and for each module its annotated source and its annotations.

    Args:
        report: The formulas; tests are shown only if it has any.
        source_url: URL of the repository's files, such as https://github.com/me/mine/blob/main/.

    Returns:
        The contents of the pages, scripts and styles, by path inside the folder of the pages.
    """
    links = Links(report.tests, source_url)
    files = {"index.md": _index_page(report).encode()}
    for module in report.modules:
        files[f"source/{module.name}.md"] = _source_page(module, links).encode()
        files[f"annotations/{module.name}.md"] = _annotations_page(module, links).encode()
    for path in sorted(path for path in KATEX.rglob("*") if path.is_file()):
        files[f"assets/katex/{path.relative_to(KATEX).as_posix()}"] = path.read_bytes()
    for name in ("annotate.css", "annotate.js"):
        files[f"assets/{name}"] = (ASSETS / name).read_bytes()
    return files


def write_pages(report: Report, out: Path, source_url: str | None = None) -> None:
    """Write the Markdown pages.

    Unchanged files are not written again, and pages of modules that no longer exist are removed.

    Args:
        report: The formulas.
        out: Folder for the pages, inside MkDocs' `docs_dir`.
        source_url: URL of the repository's files.

    Raises:
        ValueError: `out` is a file, or a page would overwrite a file that `minerva annotate` did not write.
    """
    refuse_places(report, out, None)
    files = {out / name: data for name, data in make_pages(report, source_url).items()}
    for path, data in files.items():
        _write(path, data)
    for path in [*out.glob("source/*.md"), *out.glob("annotations/*.md")]:
        if path not in files and _is_generated(path):
            path.unlink()


def write_single_file(report: Report, out: Path, source_url: str | None = None) -> None:
    """Write one HTML file with the index and both views of each module; it works offline.

    Args:
        report: The formulas; tests are shown only if it has any.
        out: The file.
        source_url: URL of the repository's files.

    Raises:
        ValueError: `out` is a folder, does not end in .html, or is a file that `minerva annotate` did not write.
    """
    refuse_places(report, None, out)
    _write(out, _single_file(report, Links(report.tests, source_url)).encode())


def refuse_places(report: Report, folder: Path | None, file: Path | None) -> None:
    """Check, before writing, that no file of another origin would be overwritten.

    Args:
        report: The formulas to write.
        folder: Folder of the pages.
        file: The single HTML file.

    Raises:
        ValueError: The folder is a file, the file is a folder or does not end in .html, or a file that `minerva
            annotate` did not write would be overwritten.
    """
    if folder is not None:
        if folder.exists() and not folder.is_dir():
            raise ValueError(f"out: must be a folder, got the file {folder}; choose another.")
        views = [f"{view}/{module.name}.md" for view in ("source", "annotations") for module in report.modules]
        _check_overwrite("out", [folder / name for name in ("index.md", *views)])
    if file is not None:
        if file.is_dir():
            raise ValueError(
                f"single-file: must be a file, got the folder {file}; give a file in it, such as maths.html."
            )
        if file.suffix.lower() not in (".html", ".htm"):
            raise ValueError(f"single-file: must end in .html, got {file}; use {file.with_suffix('.html').name}.")
        _check_overwrite("single-file", [file])


def _check_overwrite(option: str, paths: Sequence[Path]) -> None:
    for path in paths:
        if path.exists() and not _is_generated(path):
            raise ValueError(
                f"{option}: {path} exists and was not written by `minerva annotate`; choose another path or move it."
            )


def _is_generated(path: Path) -> bool:
    return path.is_file() and _GENERATED in path.read_text(encoding="utf-8", errors="replace")


# Markdown


def _index_page(report: Report) -> str:
    lines = [_head("Math-annotated source"), "# Math-annotated source", "", f"{report.summary}.", ""]
    lines += [f"| {' | '.join(['Module', *_columns(report), ''])} |", f"|---|{'--:|' * len(_columns(report))}---|"]
    for module in report.modules:
        numbers = " | ".join(_numbers(report, module))
        source, annotations = (f"{folder}/{_address(module.name)}.md" for folder in ("source", "annotations"))
        name = f"<code>{escape_inline(module.name)}</code>"
        lines.append(f"| [{name}]({source}) | {numbers} | [Rendered&nbsp;annotations]({annotations}) |")
    return "\n".join([*lines, ""])


def _source_page(module: Module, links: Links) -> str:
    file = links.file(module.path, module.path)
    return (
        f"{_head(module.name)}\n# {escape_inline(module.name)} / Math-Annotated Source\n\n"
        f"{file} · {_formulas(module)} · [Rendered annotations](../annotations/{_address(module.name)}.md)\n\n"
        f"{annotated_source(module, links)}\n"
    )


def _annotations_page(module: Module, links: Links) -> str:
    html = highlight(module.lines)
    file = links.file(module.path, module.path)
    entries = "".join(
        f"## {heading(formula)}\n\n{annotation(module, html, formula, links)}\n\n" for formula in module.formulas
    )
    return (
        f"{_head(module.name, search=False)}\n# {escape_inline(module.name)} / Rendered annotations\n\n"
        f"{file} · {_formulas(module)} · [Math-Annotated Source](../source/{_address(module.name)}.md)\n\n"
        f"{entries}## Full source\n\n{plain_source(module, html, 1, len(html))}\n"
    )


def _head(title: str, search: bool = True) -> str:
    # The second view repeats the first; a search should find each formula once.
    hidden = "" if search else "search:\n  exclude: true\n"
    return f"---\ntitle: {json.dumps(title)}\n{hidden}---\n\n{_GENERATED}\n"


def _address(name: str) -> str:
    return re.sub(r"[^\w.-]", lambda match: "".join(f"%{byte:02X}" for byte in match[0].encode()), name)


# One file


def _single_file(report: Report, links: Links) -> str:
    style = "\n".join(
        [_katex_style(), *((ASSETS / name).read_text(encoding="utf-8") for name in ("annotate.css", "standalone.css"))]
    )
    script = "\n".join(
        [
            (KATEX / "katex.min.js").read_text(encoding="utf-8"),
            *((ASSETS / name).read_text(encoding="utf-8") for name in ("annotate.js", "standalone.js")),
        ]
    )
    # Whatever the source contains, only this script runs, and nothing is loaded from other places.
    policy = f"default-src 'none'; script-src '{_digest(script)}'; style-src 'unsafe-inline'; font-src data:"
    return f"""\
<!DOCTYPE html>
{_GENERATED}
<html lang="en" class="mn-standalone">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>{escape(report.title)}: math-annotated source</title>
<style>
{style}
</style>
</head>
<body>
<header class="mn-header"><a href="#index">{escape(report.title)}</a><span>Math-annotated source</span></header>
<main>
{_index_view(report)}
{"".join(_module_views(report, links))}</main>
<script>{script}</script>
</body>
</html>
"""


def _index_view(report: Report) -> str:
    head = "".join(f"<th>{column}</th>" for column in ["Module", *_columns(report), ""])
    rows = "".join(
        f'<tr><td><a href="#{escape(_view(module, "source"))}"><code>{escape(module.name)}</code></a></td>'
        f"{''.join(f'<td>{number}</td>' for number in _numbers(report, module))}"
        f'<td><a href="#{escape(_view(module, "annotations"))}">Rendered annotations</a></td></tr>\n'
        for module in report.modules
    )
    return (
        f'<section class="mn-view" id="index">\n<h1>Math-annotated source</h1>\n<p>{escape(report.summary)}.</p>\n'
        f'<div class="mn-table"><table>\n<thead><tr>{head}</tr></thead>\n'
        f"<tbody>\n{rows}</tbody>\n</table></div>\n</section>"
    )


def _module_views(report: Report, links: Links) -> Iterator[str]:
    for module in report.modules:
        html = highlight(module.lines)
        tabs = {"source": "Math-Annotated Source", "annotations": "Rendered annotations"}
        contents = {
            "source": annotated_source(module, links),
            "annotations": "".join(
                f"<h2>{heading(formula)}</h2>\n{annotation(module, html, formula, links)}\n"
                for formula in module.formulas
            )
            + f"<h2>Full source</h2>\n{plain_source(module, html, 1, len(html))}",
        }
        for view, content in contents.items():
            others = "".join(
                f'<a href="#{escape(_view(module, tab))}"{" aria-current=page" * (tab == view)}>{text}</a>'
                for tab, text in tabs.items()
            )
            yield (
                f'<section class="mn-view" id="{escape(_view(module, view))}">\n<h1>{escape(module.name)}'
                f"<small> / {tabs[view]}</small></h1>\n"
                f"<p>{links.file(module.path, module.path)} · {_formulas(module)}</p>\n"
                f'<nav class="mn-tabs">{others}</nav>\n{content}\n</section>\n'
            )


def _view(module: Module, view: str) -> str:
    return f"{view}:{module.name}"


def _katex_style() -> str:
    def inlined(match: re.Match[str]) -> str:
        return f"url(data:font/woff2;base64,{base64.b64encode((KATEX / match[1]).read_bytes()).decode()})"

    return re.sub(r"url\((fonts/[^)]+)\)", inlined, (KATEX / "katex.min.css").read_text(encoding="utf-8"))


def _digest(script: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}"


# Shared by both formats


def _columns(report: Report) -> list[str]:
    return ["Formulas"] if report.tests is None else ["Formulas", "Covered by a test"]


def _numbers(report: Report, module: Module) -> list[str]:
    numbers = [str(len(module.formulas))]
    if report.tests is not None:
        numbers.append(str(sum(bool(report.tests.get(formula.anchor)) for formula in module.formulas)))
    return numbers


def _formulas(module: Module) -> str:
    return f"{len(module.formulas):,} formula{'s' * (len(module.formulas) != 1)}"


def _write(path: Path, data: bytes) -> None:
    # Writing unchanged files would make a server that watches the folder rebuild in a loop.
    if path.is_file() and path.read_bytes() == data:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
