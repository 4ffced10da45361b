"""What comments on a page may name, and how the source is shown that they name."""

import ast
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from mkdocs.exceptions import PluginError

from docs import formulas
from tests.docs.test_hooks import expanded

ROOT = Path(__file__).parent.parent.parent


@pytest.mark.parametrize("kind", ["formula", "excerpt", "example", "hyperparameters", "results", "curves"])
def test_a_comment_without_a_name_fails_the_build(kind: str) -> None:
    with pytest.raises(PluginError, match=rf"^algorithms/x\.md: <!-- {kind} -->: write <!-- {kind}: NAME -->$"):
        expanded(f"<!-- {kind} -->")


def test_a_name_too_many_fails_the_build() -> None:
    with pytest.raises(PluginError, match=r"write <!-- coverage -->$"):
        expanded("<!-- coverage: all -->")


@pytest.mark.parametrize(
    ("comment", "meant"),
    [
        ("<!-- Formula: minerva.objectives.mpo.e_step_weights -->", "<!-- formula: NAME -->"),
        ("<!--formula: minerva.objectives.mpo.e_step_weights-->", "<!-- formula: NAME -->"),
        ("<!-- formula:minerva.objectives.mpo.e_step_weights -->", "<!-- formula: NAME -->"),
        ("<!-- formula minerva.objectives.mpo.e_step_weights -->", "<!-- formula: NAME -->"),
        ("<!-- Formulas: minerva.objectives.mpo.e_step_weights -->", "<!-- formula: NAME -->"),
        ("text <!-- results: ppo -->", "<!-- results: NAME -->"),
        ("  <!-- results: ppo -->", "<!-- results: NAME -->"),
        ("<!-- results:\nppo -->", "<!-- results: NAME -->"),
        ("<!-- Results in short: ppo -->", "<!-- results in short: NAME -->"),
        ("<!-- COVERAGE -->", "<!-- coverage -->"),
        ("<!-- Not run: why -->", "<!-- not run -->"),
    ],
)
def test_a_comment_that_is_nearly_one_fails_the_build(comment: str, meant: str) -> None:
    with pytest.raises(
        PluginError, match=rf"(?s)^algorithms/x\.md: <!--.*: write {meant} on a line of its own, or reword"
    ) as e:
        expanded(f"before\n\n{comment}\n\nafter")
    assert comment.strip().removeprefix("text ") in str(e.value)


@pytest.mark.parametrize("comment", ["<!-- Made by hand. -->", "<!-- TODO: more -->", "<!-- -->"])
def test_other_comments_are_left_alone(comment: str) -> None:
    assert expanded(comment) == comment


@pytest.mark.parametrize("outer", ["GaussianHead", "MultiCategoricalHead"])
def test_an_excerpt_is_of_the_function_that_was_named(outer: str) -> None:
    text = formulas.excerpt(f"minerva.networks.heads.{outer}.kl", "index.md")
    numbers = [int(number) for number in re.findall(r'data-n="(\d+)"', text)]
    tree = ast.parse((ROOT / "minerva/networks/heads.py").read_text(encoding="utf-8"))
    spans = [
        (inner.lineno, inner.end_lineno)
        for node in tree.body
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and node.name == outer
        for inner in node.body
        if isinstance(inner, ast.FunctionDef) and inner.name == "kl"
    ]
    assert spans == [(numbers[0], numbers[-1])]


def test_a_tests_page_counts_lines_as_claims_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "test_a.py").write_text("x = 'a\x0cb\u2028c'\n\x0c\ny = 1\n", encoding="utf-8")
    monkeypatch.setattr(formulas, "ROOT", tmp_path)
    assert re.findall(r'id="L(\d+)"', formulas.code_page("test_a.py")) == ["1", "2", "3"]


def test_the_source_is_found_from_any_folder(tmp_path: Path) -> None:
    script = """
from docs import formulas
formula = formulas.find_formulas("minerva.objectives.mpo.e_step_weights")[0]
print(formula.path, formulas.tests()[0].split("/")[0], len(formulas.pages()) > 40)
"""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    for folder in (ROOT, ROOT.parent, tmp_path):
        command = [sys.executable, "-c", script]
        ended = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=True)
        assert ended.stdout == "minerva/objectives/mpo.py tests True\n"


def test_a_file_of_the_examples_is_shown_whole_with_its_formulas() -> None:
    text = expanded("<!-- annotated example: one_file/ppo -->")
    source = (ROOT / "examples" / "one_file" / "ppo.py").read_text(encoding="utf-8")
    assert text.count('class="mn-formula"') == source.count("# LaTeX") > 5
    assert text.count('class="mn-line"') == sum("# LaTeX" not in line for line in source.splitlines())
    assert 'href="../bibliography.html#schulman2017"' in text
    with pytest.raises(PluginError, match=r"there is no examples/one_file/a2c\.py"):
        expanded("<!-- annotated example: one_file/a2c -->")
