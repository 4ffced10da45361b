"""A real notebook, run by a real kernel."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import pytest

from minerva.utils.notebook import in_notebook

TRAIN = """
import minerva

result = minerva.train(
    "ppo", "Pendulum-v1", total_steps=128, preset="none", rollout_steps=64, minibatch_size=32, eval_episodes=1,
    out_dir={folder!r},
)
"""


def test_a_program_is_no_notebook() -> None:
    assert not in_notebook()


def test_in_a_notebook_the_bar_stays_in_its_place_and_the_curve_is_shown(tmp_path: Path) -> None:
    reason = "a notebook needs IPython: pip install ipykernel nbclient"
    nbclient: Any = pytest.importorskip("nbclient", reason=reason)
    pytest.importorskip("ipykernel", reason=reason)
    nbformat: Any = pytest.importorskip("nbformat", reason=reason)
    cells = [TRAIN.format(folder=str(tmp_path / "run")), "result", "result.plot()"]
    notebook: Any = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
    nbclient.NotebookClient(notebook, timeout=120, kernel_name="python3").execute()
    trained, shown, plotted = ([dict(output) for output in cell.outputs] for cell in notebook.cells)
    (bar,) = [output["data"] for output in trained if output["output_type"] == "display_data"]
    for kind in ("text/html", "text/plain"):
        assert "ppo Pendulum-v1" in bar[kind] and "128 / 128" in bar[kind] and "done in" in bar[kind]
    said = "".join(output["text"] for output in trained if output["output_type"] == "stream")
    assert f"Run        {tmp_path / 'run'}" in said and "64 / 128 steps" not in said  # no plain lines
    assert shown[0]["data"]["text/plain"].startswith("TrainingResult(ppo on Pendulum-v1, seed 42: 128 steps")
    picture, path = plotted
    assert base64.b64decode(picture["data"]["image/png"]).startswith(b"\x89PNG")
    assert "learning_curve.png" in path["data"]["text/plain"]
