from __future__ import annotations

import re
from pathlib import Path

import pytest

from benchmarks import summary

README = Path(__file__).parent.parent / "README.md"


def test_the_results_are_what_the_data_says() -> None:
    text = README.read_text()
    assert summary.readme_with(text) == text, "run: python -m benchmarks.summary --write"


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_the_example_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (example,) = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)
    shorter = example.replace("60_000", "2_048")
    assert shorter != example
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    exec(shorter, names)
    assert list(tmp_path.glob("runs/ppo/InvertedPendulum-v5/*/ppo_last.pt"))
    assert getattr(names["action"], "shape", None) == (1,)
