from __future__ import annotations

import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from minerva.utils.wandb_utils import log_wandb


class FakeRun:
    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []

    def log(self, row: dict[str, Any]) -> None:
        self.rows.append(row)


def test_does_nothing_and_imports_nothing_without_the_package() -> None:
    code = (
        "import sys\n"
        "from minerva.utils.wandb_utils import log_wandb\n"
        "assert log_wandb({'a': 1.0}, 3) is False\n"
        "assert 'wandb' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-W", "error", "-c", code], check=True)


@pytest.mark.parametrize("module", [SimpleNamespace(run=None), SimpleNamespace(), None])
def test_does_nothing_without_an_active_run(monkeypatch: pytest.MonkeyPatch, module: Any) -> None:
    monkeypatch.setitem(sys.modules, "wandb", module)
    assert log_wandb({"a": 1.0}, 3) is False


def test_logs_to_the_active_run(monkeypatch: pytest.MonkeyPatch) -> None:
    run = FakeRun()
    monkeypatch.setitem(sys.modules, "wandb", SimpleNamespace(run=run))
    assert log_wandb({"a": np.float32(1.5)}, 3) is True  # type: ignore[dict-item]
    assert log_wandb({"b": 2.0}) is True
    assert run.rows == [{"a": 1.5, "global_step": 3}, {"b": 2.0}]
    assert type(run.rows[0]["a"]) is float
