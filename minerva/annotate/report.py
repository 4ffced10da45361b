"""Check the formulas of a package: each must parse, have code below it, and be covered by a test."""

from __future__ import annotations

import difflib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from minerva.annotate.claims import Claim, read_claims
from minerva.annotate.engine import find_node, parse_errors
from minerva.annotate.source import Formula, Module, Problem, Source, collapse, read_source


@dataclass(frozen=True)
class Report:
    """The formulas under a path, and their problems."""

    title: str
    """Name of the file or folder, such as minerva."""
    modules: tuple[Module, ...]
    """Modules with formulas, by name."""
    parsed: int | None
    """Number of formulas that KaTeX parses; None if Node is not installed."""
    tests: dict[str, tuple[Claim, ...]] | None
    """Tests by the anchor of the formula that they cover; None if no tests were read."""
    problems: tuple[Problem, ...]
    """Formulas that do not parse, invalid markers, and test marks whose formula does not exist."""

    @property
    def formulas(self) -> tuple[Formula, ...]:
        """All formulas, in the order of modules and lines."""
        return tuple(formula for module in self.modules for formula in module.formulas)

    @property
    def uncovered(self) -> tuple[Problem, ...]:
        """Formulas that are not covered by a test; empty if no tests were read."""
        if self.tests is None:
            return ()
        repeated = _repeated(self.formulas)
        return tuple(
            Problem(
                formula.path,
                formula.line,
                f"no test covers {formula.latex}"
                + f'; it occurs more than once, so mark its test with "{formula.place}".' * (_key(formula) in repeated),
            )
            for formula in self.formulas
            if not self.tests.get(formula.anchor)
        )

    @property
    def summary(self) -> str:
        """One line, such as: 19 modules, 95 formulas: 95 parsed, 95 covered by a test."""
        modules, formulas = len(self.modules), len(self.formulas)
        results = ["not parsed (needs Node)" if self.parsed is None else f"{self.parsed} parsed"]
        if self.tests is not None:
            results.append(f"{formulas - len(self.uncovered)} covered by a test")
        return f"{_count(modules, 'module')}, {_count(formulas, 'formula')}: {', '.join(results)}"


def examine(root: Path, tests: Path | None = None, base: Path | None = None) -> Report:
    """Read the formulas under a path, parse them with KaTeX if Node is installed, and find the tests that cover them.

    Args:
        root: A Python file, or a folder of them.
        tests: Folder of the tests; without it, coverage is not checked.
        base: Folder that displayed paths are relative to; by default the working directory.

    Raises:
        ValueError: There is no formula, or a file cannot be read.
    """
    source = read_source(root, base)
    problems = [problem for module in source.modules for problem in module.problems]
    formulas = [formula for module in source.modules for formula in module.formulas]
    if not formulas and not problems:
        raise ValueError(f"path: no formula in {root}; write one as a comment `# LaTeX: ...` above its line of code.")
    node, parsed = find_node(), None
    if node is not None:
        errors = parse_errors([formula.latex for formula in formulas], node)
        parsed = errors.count(None)
        problems += [
            Problem(formula.path, formula.line, f"formula does not parse: {error}")
            for formula, error in zip(formulas, errors, strict=True)
            if error is not None
        ]
    covered: dict[str, tuple[Claim, ...]] | None = None
    if tests is not None:
        claims, invalid = read_claims(tests, base)
        covered, unmatched = _match(source, formulas, claims)
        problems += invalid + unmatched
    modules = tuple(module for module in source.modules if module.formulas)
    return Report(root.resolve().stem, modules, parsed, covered, tuple(problems))


def _match(
    source: Source, formulas: list[Formula], claims: list[Claim]
) -> tuple[dict[str, tuple[Claim, ...]], list[Problem]]:
    repeated = _repeated(formulas)
    covered: dict[str, tuple[Claim, ...]] = {}
    unmatched: list[Problem] = []
    for claim in claims:
        same = [formula for formula in formulas if collapse(formula.latex) == claim.latex]
        within = [formula for formula in same if formula.module == claim.place]
        # The module alone does not say which occurrence of a repeated formula the test covers.
        found = [formula for formula in same if formula.place == claim.place]
        found += [formula for formula in within if formula not in found and _key(formula) not in repeated]
        for formula in found:
            covered[formula.anchor] = (*covered.get(formula.anchor, ()), claim)
        if not found and source.reaches(claim.place):
            if within:
                names = " or ".join(dict.fromkeys(f'"{formula.place}"' for formula in within))
                text = f"is marked with a formula that occurs more than once: {claim.latex}; mark it with {names}."
            else:
                text = f"is marked with a formula that does not exist: {claim.latex}; {_nearest(claim, formulas)}"
            unmatched.append(Problem(claim.path, claim.claimed_at, f"{claim.test} {text}"))
    return covered, unmatched


def _key(formula: Formula) -> tuple[str, str]:
    return formula.module, collapse(formula.latex)


def _repeated(formulas: Sequence[Formula]) -> set[tuple[str, str]]:
    return {key for key, times in Counter(map(_key, formulas)).items() if times > 1}


def _nearest(claim: Claim, formulas: list[Formula]) -> str:
    texts = [collapse(formula.latex) for formula in formulas if claim.place in (formula.module, formula.place)]
    if not texts:
        places = sorted({place for formula in formulas for place in (formula.module, formula.place)})
        near = difflib.get_close_matches(claim.place, places, n=1, cutoff=0)
        return f"{claim.place} has no formulas; did you mean {near[0]}?" if near else "there are no formulas."
    (near_text,) = difflib.get_close_matches(claim.latex, texts, n=1, cutoff=0)
    return f"the closest one in {claim.place} is: {near_text}"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'s' * (number != 1)}"
