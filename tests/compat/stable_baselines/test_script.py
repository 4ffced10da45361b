"""A script that was written for stable-baselines runs after a change of its import lines."""

from __future__ import annotations

import ast
import runpy
from pathlib import Path

import pytest

SCRIPT = Path(__file__).with_name("ppo2_script.py")


@pytest.mark.filterwarnings("ignore:.* is a function, which a file cannot hold")
def test_the_script_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    from tests.compat.stable_baselines.ppo2.test_reporting import GRAPH, TABLE, events

    monkeypatch.chdir(tmp_path)
    variables = runpy.run_path(str(SCRIPT), run_name="__main__")
    assert variables["stopped_at"] == 160
    assert variables["best_so_far"] > 0
    printed = capsys.readouterr().out
    assert printed.count("| approxkl ") == 2  # after the first and the tenth update
    assert "Stopping training because the mean reward" in printed
    assert set(events(tmp_path / "ppo2_tensorboard" / "cartpole_1").Tags()["scalars"]) == TABLE | GRAPH
    written = {path.name for path in tmp_path.iterdir()}
    assert written == {"logs", "ppo2_cartpole.zip", "ppo2_pendulum.zip", "ppo2_tensorboard", "vec_normalize.pkl"}


def test_only_its_import_lines_know_minerva() -> None:
    lines = SCRIPT.read_text().splitlines()
    for node in ast.parse(SCRIPT.read_text()).body:
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            for k in range(node.lineno - 1, node.end_lineno or node.lineno):
                lines[k] = ""
    assert "minerva" not in "\n".join(lines).lower()
