"""Make the annotated source pages of the site, and show formulas from the source on other pages."""

from __future__ import annotations

import ast
import dataclasses
import json
import re
from functools import cache
from pathlib import Path
from typing import NamedTuple

from minerva.annotate import Formula, Report, examine, make_pages
from minerva.annotate.fragments import Links, annotated_source, highlight, plain_source
from minerva.annotate.source import definitions, read_module

ROOT = Path(__file__).parent.parent
ANNOTATED = "annotated"
"""Folder of the annotated source on the site."""
CODE = "code"
"""Folder of the tests on the site."""
BREAKS = ROOT / "benchmarks/results/formulas.json"
"""Results of breaking the line of each formula."""
_PAPER = re.compile(r'<span class="mn-paper">((\w+)[^<]*)</span>')
_CODE_LINK = re.compile(r'<a href="code:/(?P<path>[^"#]+)(?:#L(?P<line>\d+))?"(?P<rest>[^>]*)>(?P<text>.*?)</a>')


class Group(NamedTuple):
    """Modules to read one after the other."""

    title: str
    text: str
    modules: tuple[str, ...]  # without "minerva." where they are written down, with it in `reading_order`


READING = (
    Group(
        "1. PPO",
        "The simplest of the three: advantages from a rollout, the clipped losses, and the update that sums them.",
        ("objectives.returns", "objectives.critic", "objectives.ppo", "trainers.ppo.update"),
    ),
    Group(
        "2. MPO",
        "Weights for sampled actions (E-step), then a fit to them inside KL bounds (M-step).",
        (
            "objectives.mpo",
            "objectives.kl",
            "objectives.lagrange",
            "networks.duals",
            "trainers.mpo.update",
            "objectives.retrace",
        ),
    ),
    Group(
        "3. V-MPO",
        "The same two steps, with the samples of a rollout in place of sampled actions.",
        ("objectives.vmpo", "trainers.vmpo.update", "trainers.vmpo.health"),
    ),
    Group(
        "4. Distributions over actions",
        "Log-probability, entropy and KL divergence of each kind of action space.",
        ("objectives.gaussian", "objectives.categorical", "objectives.bernoulli", "networks.heads"),
    ),
    Group(
        "5. What they share",
        "Means over the samples that count, gradient steps, schedules and normalization.",
        (
            "objectives.weighted",
            "acceleration.learnable",
            "trainers.on_policy",
            "utils.schedules",
            "utils.running_norm",
            "environments.normalizers",
        ),
    ),
)
"""The order in which to read the annotated modules; what is not listed comes last."""
THE_REST = Group("6. The rest", "Networks, acting and storage.", ())

HOW_TO_READ = """
## How to read these pages

A formula stands above the line of code that computes it. To its right are a link to itself (#), the paper with the
number of the equation ([bibliography](../bibliography.md)), and the tests that cover it (✓). These tests compare the
line with arrays computed by hand, with slow NumPy code written from the paper, or with another library.

The first view shows the whole file with the formulas in place. The second view, *Rendered annotations*, lists the
formulas one by one. Code that you copy from either view is the original source, including the `# LaTeX:` comments.

`minerva annotate PATH --out DIR` makes such pages for any Python package. `minerva annotate PATH --check` fails on a
formula that does not parse; with `--tests DIR` it also names the formulas that no test covers.
"""


@cache
def report() -> Report:
    """Read all formulas of the package, and the tests that cover them."""
    return examine(ROOT / "minerva", ROOT / "tests", base=ROOT)


def reading_order() -> list[Group]:
    """Return all annotated modules in groups, in the order in which to read them."""
    names = [module.name for module in report().modules]
    groups = [group._replace(modules=tuple(f"minerva.{name}" for name in group.modules)) for group in READING]
    listed = [name for group in groups for name in group.modules]
    if missing := sorted(set(listed) - set(names)):
        raise ValueError(f"READING: {', '.join(missing)} has no formulas; take it out of the reading order.")
    return [*groups, THE_REST._replace(modules=tuple(name for name in names if name not in listed))]


def index_page(markdown: str) -> str:
    """Add to the index of the annotated modules in which order to read them, and how."""
    counts = {module.name: len(module.formulas) for module in report().modules}
    parts = ["## Start here"]
    for group in reading_order():
        links = [f"[`{name.removeprefix('minerva.')}`](source/{name}.md) ({counts[name]})" for name in group.modules]
        parts.append(f"**{group.title}.** {group.text}<br>{' → '.join(links)}")
    parts.append("The numbers in parentheses count formulas.")
    head, bar, rows = markdown.partition("| Module |")
    return "\n\n".join([head.rstrip(), *parts, "## All modules", f"{bar}{rows}", HOW_TO_READ])


def pages() -> dict[str, bytes]:
    """Make the pages and assets of the annotated source, by their path on the site."""
    return {f"{ANNOTATED}/{name}": data for name, data in make_pages(report(), source_url="code:").items()}


def tests() -> list[str]:
    """List the test files that cover a formula."""
    return sorted({claim.path for claims in (report().tests or {}).values() for claim in claims})


def code_page(path: str) -> str:
    """Show a test file, with an anchor on each line that formulas can link to."""
    module = read_module((ROOT / path).read_bytes(), path, path)
    block = plain_source(module, highlight(module.lines), 1, len(module.lines))
    block = re.sub(r'(<span class="mn-line") data-n="(\d+)"', r'\1 id="L\2" data-n="\2"', block)
    return f"---\ntitle: {path}\nsearch:\n  exclude: true\n---\n\n# <code>{path}</code>\n\n{block}\n"


def with_links(text: str, uri: str) -> str:
    """Replace the tests and papers that formulas name by links."""
    up = "../" * uri.count("/")
    paper = rf'<a class="mn-paper" href="{up}bibliography.html#{{}}">\1</a>'
    text = _PAPER.sub(lambda match: match.expand(paper.format(match[2].lower())), text)
    return _CODE_LINK.sub(lambda match: _link_to_code(match, uri), text)


def _link_to_code(match: re.Match[str], uri: str) -> str:
    path, line = match["path"], match["line"]
    if not path.startswith("tests/"):
        return match["text"]  # the module itself, which this page shows
    up = "../" * uri.count("/")
    return f'<a href="{up}{CODE}/{path.removesuffix(".py")}.html#L{line}"{match["rest"]}>{match["text"]}</a>'


def find_formulas(argument: str) -> list[Formula]:
    """Find the formulas of ``module.function``, or the one that starts as in ``module.function: L_V =``."""
    where, _, start = argument.partition(": ")
    found = [formula for formula in report().formulas if formula.place == where and formula.latex.startswith(start)]
    if not found or (start and len(found) > 1):
        raise ValueError(f"must name one formula, or a function that has some; there are {len(found)} of that name")
    return found


def formula(argument: str, uri: str) -> str:
    """Show formulas of the source, each with links to its line and its paper."""
    return "\n\n".join(_equation(one, uri) for one in find_formulas(argument))


def _equation(formula: Formula, uri: str) -> str:
    up = "../" * uri.count("/")
    place = f"{formula.path.removeprefix('minerva/')}, line {formula.code_line}"
    notes = f"[{place}]({up}{ANNOTATED}/source/{formula.module}.md#{formula.anchor})"
    if formula.paper is not None:
        notes = f"[{formula.citation}]({up}bibliography.md#{formula.paper.lower()})<br>{notes}"
    return f'<div class="equation" markdown>\n\n$$\n{formula.latex}\n$$\n\n{notes}\n{{ .equation__notes }}\n\n</div>'


def excerpt(argument: str, uri: str) -> str:
    """Show a function as the annotated source does, without its docstring."""
    first = find_formulas(argument)[0]
    module = next(module for module in report().modules if module.name == first.module)
    tree = ast.parse("\n".join(module.lines))
    node = next(
        node
        for name, node in definitions(tree)
        if name == first.qualname and node.lineno <= first.code_line <= (node.end_lineno or node.lineno)
    )
    skipped = range(node.body[0].lineno, (node.body[0].end_lineno or 0) + 1) if ast.get_docstring(node) else range(0)
    numbers = [n for n in range(node.lineno, (node.end_lineno or node.lineno) + 1) if n not in skipped]
    moved = {number: k for k, number in enumerate(numbers, start=1)}
    part = dataclasses.replace(
        module,
        lines=tuple(module.lines[number - 1] for number in numbers),
        formulas=tuple(
            dataclasses.replace(one, line=moved[one.line], code_line=moved[one.code_line])
            for one in module.formulas
            if one.line in moved
        ),
    )
    block = annotated_source(part, Links(report().tests, "code:"))
    block = re.sub(r'data-n="(\d+)"', lambda match: f'data-n="{numbers[int(match[1]) - 1]}"', block)
    block = re.sub(r"--mn-digits:\d+", f"--mn-digits:{len(str(numbers[-1]))}", block)
    up = "../" * uri.count("/")
    caption = f"[{module.path}]({up}{ANNOTATED}/source/{module.name}.md#{first.anchor})\n{{ .caption }}"
    return f"{with_links(block, uri)}\n\n{caption}"


def annotated_file(path: Path, uri: str) -> str:
    """Show a file outside the package, whole, as the annotated source does."""
    place = path.relative_to(ROOT)
    module = read_module(path.read_bytes(), ".".join(place.with_suffix("").parts), place.as_posix())
    return with_links(annotated_source(module, Links(None, None)), uri)


def coverage(argument: str, uri: str) -> str:
    """Return a sentence on how many formulas there are, and how many of them are covered by a test."""
    total = len(report().formulas)
    covered = total - len(report().uncovered)
    if covered < total:
        return f"There are {total} formulas, of which {covered} are covered by a test so far."
    breaks = json.loads(BREAKS.read_text(encoding="utf-8"))["breaks"]
    noticed = {row["anchor"] for row in breaks if row["noticed_by"]}
    if not noticed.issuperset(formula.anchor for formula in report().formulas):
        return f"There are {total} formulas, and each is covered by a test."
    return (
        f"There are {total} formulas, and each is covered by a test that fails when the line computes something else: "
        f"the lines were broken in {len(breaks)} ways, and a test detected every one."
    )
