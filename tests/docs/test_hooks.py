from pathlib import Path

import pytest
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

from docs import api, formulas, hooks

ROOT = Path(__file__).parent.parent.parent


def expanded(markdown: str) -> str:
    config = MkDocsConfig()
    config.load_dict({"site_name": "x", "site_dir": "site", "docs_dir": "docs"})
    page = Page("x", File("algorithms/x.md", "docs", "site", use_directory_urls=False), config)
    return hooks.on_page_markdown(markdown, page, config, Files([]))


def test_a_formula_comes_from_the_source_with_a_link_to_its_line() -> None:
    text = expanded("before\n\n<!-- formula: minerva.objectives.mpo.e_step_weights -->\n\nafter")
    (formula,) = formulas.find_formulas("minerva.objectives.mpo.e_step_weights")
    assert f"$$\n{formula.latex}\n$$" in text
    assert f"](../annotated/source/minerva.objectives.mpo.md#{formula.anchor})" in text
    assert f"](../bibliography.md#{str(formula.paper).lower()})" in text
    assert text.startswith("before\n\n<div") and text.endswith("</div>\n\nafter")


@pytest.mark.parametrize(
    "directive",
    [
        "formula: minerva.objectives.mpo.no_such_function",
        "formula: minerva.objectives.vmpo.e_step: no such start",
        "formula: minerva.objectives.retrace.retrace_target: m_t",  # two of them
        "hyperparameters: a2c",
        "results: a2c",
        "result: ppo",
        "example: no_such_program",
    ],
)
def test_a_name_that_leads_nowhere_fails_the_build(directive: str) -> None:
    with pytest.raises(PluginError, match=r"algorithms/x\.md: <!-- "):
        expanded(f"<!-- {directive} -->")


def test_comments_for_the_tests_are_left_alone() -> None:
    for comment in ("<!-- run -->", "<!-- run with 1 = 2 -->", "<!-- not run: why -->"):
        assert expanded(comment) == comment


def test_the_navigation_is_filled_where_it_is_empty() -> None:
    nav = [{"Home": "index.md"}, {"Reference": ["x.md", {"API": []}, {"Presets": []}]}]
    assert hooks._fill(nav, {"API": ["a.md"]}) == [
        {"Home": "index.md"},
        {"Reference": ["x.md", {"API": ["a.md"]}, {"Presets": []}]},
    ]


def test_every_module_is_documented_once() -> None:
    files = (path.relative_to(ROOT).with_suffix("") for path in (ROOT / "minerva").rglob("*.py"))
    names = {".".join(file.parts).removesuffix(".__init__") for file in files}
    left_out = {name for name in names if name == "minerva" or f"{name}.".startswith("minerva.cli.") or "._" in name}
    assert len(left_out) > 3
    assert sorted(name for _, modules in api.pages().values() for name in modules) == sorted(names - left_out)
