"""Whether the formulas of a package hold: they parse, stand above code, and a test covers each."""

from __future__ import annotations

import difflib
from dataclasses import dataclass, field
from pathlib import Path

from minerva.annotate.claims import Claim, read_claims
from minerva.annotate.engine import complaints, find_node
from minerva.annotate.source import Formula, Module, Problem, Source, collapse, read_source


@dataclass(frozen=True)
class Report:
    """The formulas under a path, and what is wrong with them."""

    modules: tuple[Module, ...]
    """Modules with formulas, by name."""
    parsed: int | None
    """How many formulas KaTeX takes; None where Node was not there to ask it."""
    tests: dict[str, tuple[Claim, ...]] | None
    """Tests by the anchor of the formula that they cover; None where no tests were read."""
    problems: tuple[Problem, ...]
    """Formulas that do not parse, markers that are none, claims of formulas that are not there."""
    pages: tuple[Path, ...] = field(default=())
    """Files that were written."""

    @property
    def formulas(self) -> tuple[Formula, ...]:
        """All formulas, in the order of modules and lines."""
        return tuple(formula for module in self.modules for formula in module.formulas)

    @property
    def uncovered(self) -> tuple[Problem, ...]:
        """Formulas that no test claims; none where no tests were read."""
        if self.tests is None:
            return ()
        return tuple(
            Problem(formula.path, formula.line, f"no test covers {formula.latex}")
            for formula in self.formulas
            if not self.tests.get(formula.anchor)
        )

    @property
    def summary(self) -> str:
        """One line, such as: 19 modules, 95 formulas: 95 parsed, 95 covered by a test."""
        modules, formulas = len(self.modules), len(self.formulas)
        said = ["not parsed, for want of Node" if self.parsed is None else f"{self.parsed} parsed"]
        if self.tests is not None:
            said.append(f"{formulas - len(self.uncovered)} covered by a test")
        return f"{_count(modules, 'module')}, {_count(formulas, 'formula')}: {', '.join(said)}"


def examine(root: Path, tests: Path | None = None) -> Report:
    """Read the formulas under a path, parse them with KaTeX where Node is there, and find the tests that cover them.

    Args:
        root: A Python file, or a folder of them.
        tests: Folder of the tests; without it, coverage is not looked at.

    Raises:
        ValueError: There is no formula, or a file cannot be read.
    """
    source = read_source(root)
    problems = [problem for module in source.modules for problem in module.problems]
    formulas = [formula for module in source.modules for formula in module.formulas]
    if not formulas and not problems:
        raise ValueError(f"path: no formula in {root}; write one as a comment `# LaTeX: ...` above the code it is for.")
    node, parsed = find_node(), None
    if node is not None:
        said = complaints([formula.latex for formula in formulas], node)
        parsed = said.count(None)
        problems += [
            Problem(formula.path, formula.line, f"formula does not parse: {complaint}")
            for formula, complaint in zip(formulas, said, strict=True)
            if complaint is not None
        ]
    covered: dict[str, tuple[Claim, ...]] | None = None
    if tests is not None:
        claims, unreadable = read_claims(tests)
        covered, hollow = _match(source, formulas, claims)
        problems += unreadable + hollow
    modules = tuple(module for module in source.modules if module.formulas)
    return Report(modules, parsed, covered, tuple(problems))


def _match(
    source: Source, formulas: list[Formula], claims: list[Claim]
) -> tuple[dict[str, tuple[Claim, ...]], list[Problem]]:
    anchors: dict[tuple[str, str], list[str]] = {}
    for formula in formulas:
        anchors.setdefault((formula.module, collapse(formula.latex)), []).append(formula.anchor)
    covered: dict[str, tuple[Claim, ...]] = {}
    hollow: list[Problem] = []
    for claim in claims:
        found = anchors.get((claim.module, claim.latex), [])
        for anchor in found:
            covered[anchor] = (*covered.get(anchor, ()), claim)
        if not found and source.reaches(claim.module):
            text = f"{claim.test} claims a formula that is not there: {claim.latex}; {_nearest(claim, formulas)}"
            hollow.append(Problem(claim.path, claim.claimed_at, text))
    return covered, hollow


def _nearest(claim: Claim, formulas: list[Formula]) -> str:
    modules = sorted({formula.module for formula in formulas})
    if claim.module not in modules:
        near = difflib.get_close_matches(claim.module, modules, n=1, cutoff=0)
        return f"no module {claim.module} has formulas, the nearest is {near[0]}." if near else "there is none at all."
    texts = [collapse(formula.latex) for formula in formulas if formula.module == claim.module]
    (near_text,) = difflib.get_close_matches(claim.latex, texts, n=1, cutoff=0)
    return f"the nearest in {claim.module} is: {near_text}"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'s' * (number != 1)}"
