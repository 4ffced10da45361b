from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.trainers.ppo.small_run import train


@pytest.fixture
def traced(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Run what would be compiled as it was traced: compiling is torch's business, what is compiled is ours."""
    import torch._inductor

    with monkeypatch.context() as patch:
        patch.setattr(torch._inductor, "compile", lambda traced, _: traced)
        yield


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run in one go, that others are compared with."""
    folder = tmp_path_factory.mktemp("whole") / "run"
    train(folder)
    return folder
