"""A sample of the scripts for stable-baselines runs, and the runner tells what did not."""

from __future__ import annotations

import ast
import json
import runpy
from pathlib import Path

import pytest

from benchmarks.old_scripts import ROOT, SCRIPTS, is_bound, run, uses_gym, with_prefix
from minerva.compat.aliases.renaming import renamed
from tests.compat.stable_baselines.test_names import ATTRIBUTES, TABLE

# One or two of each kind, quick ones. `python -m benchmarks.old_scripts` runs all.
NUMBERS = ("18", "22", "31", "32", "38", "41", "45", "50")
SAMPLE = [script for script in SCRIPTS if script.name.startswith(NUMBERS)]


@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("script", SAMPLE, ids=lambda path: path.stem)
def test_a_script_runs_with_renamed_imports(
    script: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / script.name
    path.write_bytes(renamed(script.read_bytes()))
    monkeypatch.chdir(tmp_path)
    runpy.run_path(str(path), run_name="__main__")


def test_scripts_are_those_of_stable_baselines() -> None:
    assert f"has {len(SCRIPTS)} scripts" in (ROOT / "docs" / "how-to" / "stable-baselines.md").read_text()
    assert len({script.name[:2] for script in SCRIPTS}) == len(SCRIPTS)
    assert sum(map(is_bound, SCRIPTS)) <= 2
    for script in SCRIPTS:
        text = script.read_text()
        assert "minerva" not in text.lower() and "gymnasium" not in text
        assert "stable_baselines" in text
        assert is_bound(script) or any(isinstance(node, ast.Assert) for node in ast.walk(ast.parse(text)))


def test_published_results_are_of_these_scripts() -> None:
    published = json.loads((ROOT / "benchmarks" / "results" / "old_scripts.json").read_text())
    assert list(published["scripts"]) == [script.stem for script in SCRIPTS]
    for way in ("unchanged", "renamed"):
        counts = published["ways"][way]
        assert counts["scripts"] == len(SCRIPTS)
        assert counts["passed"] >= 0.95 * len(SCRIPTS)
        assert (
            counts["of these passed"] == counts["not bound to TensorFlow"] == len(SCRIPTS) - sum(map(is_bound, SCRIPTS))
        )


def test_every_name_of_the_documentation_is_in_a_script() -> None:
    used: set[str] = set()
    for node in (node for script in SCRIPTS for node in ast.walk(ast.parse(script.read_text()))):
        if isinstance(node, ast.alias):
            used.update(node.name.split("."))
        elif isinstance(node, (ast.Attribute, ast.Name)):
            used.add(node.attr if isinstance(node, ast.Attribute) else node.id)
        elif isinstance(node, ast.ImportFrom):
            used.update((node.module or "").split("."))
    missing = {module: [name for name in names if name not in used] for module, names in TABLE.items()}
    assert not {module: names for module, names in missing.items() if names}
    assert not set(ATTRIBUTES) - used


def test_the_runner_tells_where_a_script_failed(tmp_path: Path) -> None:
    script = tmp_path / "99_wrong.py"
    script.write_text("import gym\nassert gym.spaces.Discrete(2).n == 3, 'two'\n")
    result = run(script, "renamed", timeout=60.0)
    assert not result.passed and result.error == "line 2: AssertionError: two"
    assert uses_gym(script)


def test_only_the_prefix_is_replaced() -> None:
    source = "import gym\nfrom stable_baselines.common import x\n    \nstable_baselines = 'stable_baselines'\n"
    assert with_prefix(source) == source.replace("from stable", "from minerva.compat.stable")
