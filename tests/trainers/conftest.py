from __future__ import annotations

from pathlib import Path

import pytest

from tests.trainers.ppo.small_run import train


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run in one go, that others are compared with."""
    folder = tmp_path_factory.mktemp("whole") / "run"
    train(folder)
    return folder
