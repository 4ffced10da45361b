"""Archives that would take far more memory than their file is large."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from benchmarks.bad_input.checkpoints import BOMBS
from minerva import checkpointing
from minerva.checkpointing import CheckpointError
from minerva.utils import archives


def test_no_bomb_takes_memory(tmp_path: Path) -> None:
    files = {name: tmp_path / f"{k}.pt" for k, name in enumerate(BOMBS)}
    for name, path in files.items():
        path.write_bytes(BOMBS[name]())
        assert path.stat().st_size < 200_000
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins here
    before = peak()
    for name, path in files.items():
        with pytest.raises(CheckpointError, match="is damaged or"):
            checkpointing.read(path)
        assert peak() - before < 30_000_000, name


def peak() -> int:
    (line,) = [line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM")]
    return 1024 * int(line.split()[1])


def test_a_limit_that_the_user_can_raise(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "x.pt"
    checkpointing.write(path, {"algorithm": "ppo", "state": torch.zeros(10_000)})
    monkeypatch.setattr(archives, "MAX_BYTES", 30_000)
    with pytest.raises(CheckpointError, match=r"more than the .* if you trust it, set .* MINERVA_MAX_CHECKPOINT_GB"):
        checkpointing.read(path)
    monkeypatch.setenv(archives.LIMIT_VARIABLE, "0.001")
    assert len(checkpointing.read(path)["state"]) == 10_000
    for wrong in ("much", "-1", "nan"):
        monkeypatch.setenv(archives.LIMIT_VARIABLE, wrong)
        with pytest.raises(CheckpointError, match=f"must be a number of GiB greater than 0, got '{wrong}'"):
            checkpointing.read(path)


def test_what_checkpoints_hold_is_accepted(tmp_path: Path) -> None:
    module = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4))
    shared = torch.arange(10.0)
    tree = {
        "algorithm": "ppo", "module": module.state_dict(), "twice": [shared[:5], shared[5:], shared], "none": None,
        "numbers": [0.5] * 1_000, "deep": [[[[("a", {"b": (True,)})]]]], "large": 2**200, "empty": torch.zeros(0, 3),
    }  # fmt: skip
    checkpointing.write(tmp_path / "x.pt", tree)
    back = checkpointing.read(tmp_path / "x.pt")
    assert back["deep"] == tree["deep"] and back["large"] == 2**200
    assert back["module"]._metadata["1"]["version"] == 2
    assert np.array_equal(back["twice"][1].numpy(), [5, 6, 7, 8, 9])
