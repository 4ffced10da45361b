import dataclasses
import re
from pathlib import Path

import pytest

from docs import formulas


def test_what_is_said_of_coverage_follows_the_report(monkeypatch: pytest.MonkeyPatch) -> None:
    report = formulas.report()
    assert f"There are {len(report.formulas)} formulas" in formulas.coverage("", "")
    assert "a test detected every one" in formulas.coverage("", "")
    new = dataclasses.replace(report.modules[0].formulas[0], anchor="new")
    module = dataclasses.replace(report.modules[0], formulas=(new,))
    untried = dataclasses.replace(report, modules=(module,), tests={"new": next(iter((report.tests or {}).values()))})
    monkeypatch.setattr(formulas, "report", lambda: untried)
    assert formulas.coverage("", "") == "There are 1 formulas, and each is covered by a test."
    hollow = dataclasses.replace(report, tests={})
    monkeypatch.setattr(formulas, "report", lambda: hollow)
    assert "of which 0 are covered by a test" in formulas.coverage("", "")


def test_an_excerpt_has_the_lines_of_its_function_and_their_numbers() -> None:
    text = formulas.excerpt("minerva.objectives.mpo.e_step_weights", "index.md")
    (formula,) = formulas.find_formulas("minerva.objectives.mpo.e_step_weights")
    numbers = [int(number) for number in re.findall(r'data-n="(\d+)"', text)]
    assert numbers[-1] == formula.code_line and numbers[0] < formula.code_line
    assert len(numbers) == 2  # def and return, without the docstring
    assert 'href="code/tests/objectives/test_mpo.html#L' in text and "code:" not in text
    assert f"(annotated/source/minerva.objectives.mpo.md#{formula.anchor})" in text


def test_the_reading_order_has_every_module_once_and_stands_before_the_table(monkeypatch: pytest.MonkeyPatch) -> None:
    names = [name for group in formulas.reading_order() for name in group.modules]
    assert sorted(names) == sorted(module.name for module in formulas.report().modules)
    assert names[:4] == [
        "minerva.objectives.returns",
        "minerva.objectives.critic",
        "minerva.objectives.ppo",
        "minerva.trainers.ppo.update",
    ]
    page = formulas.index_page(formulas.pages()["annotated/index.md"].decode())
    start, _, table = page.partition("## All modules")
    assert [f"minerva.{name}" for name in re.findall(r"\[`([\w.]+)`\]\(source/minerva", start)] == names
    assert table.count("\n| [") == len(names) and "## How to read these pages" in table
    gone = formulas.Group("0.", "", ("objectives.a2c",))
    monkeypatch.setattr(formulas, "READING", (gone,))
    with pytest.raises(ValueError, match=r"minerva\.objectives\.a2c has no formulas; take it out"):
        formulas.reading_order()


def test_a_tests_page_has_an_anchor_a_line() -> None:
    lines = Path(__file__).read_text(encoding="utf-8").splitlines()
    text = formulas.code_page("tests/docs/test_formulas.py")
    assert len(re.findall(r'<span class="mn-line" id="L(\d+)" data-n="\1">', text)) == len(lines)
