"""Segments whose index or header names more than their files hold."""

from __future__ import annotations

import io
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from minerva.storage.replay import ReplayBuffer
from minerva.storage.segments import DamagedReplayError
from minerva.utils.structure import StructureError
from tests.storage.oracle_replay import Stream


@pytest.fixture
def saved(tmp_path: Path) -> dict[str, Any]:
    replay, stream = ReplayBuffer(45, 1, 3, 2), Stream(1, 3, 2, seed=5, broken=0.0)
    replay.begin(stream.observations())
    for _ in range(20):
        replay.add(*stream.step()[:-1])
    return replay.save(tmp_path)


def test_a_header_that_names_a_huge_array_allocates_none(saved: dict[str, Any], tmp_path: Path) -> None:
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, {"descr": "<f4", "fortran_order": False, "shape": (10**12,)})
    entry = saved["segments"][0]
    (tmp_path / entry["name"]).write_bytes(header.getvalue())
    entry.update({"bytes": len(header.getvalue()), "crc32": zlib.crc32(header.getvalue())})
    with pytest.raises(DamagedReplayError, match=r"holds float32, \(1000000000000,\) instead of"):
        ReplayBuffer(45, 1, 3, 2).load(tmp_path, saved)


def test_a_file_of_another_size_is_not_read(saved: dict[str, Any], tmp_path: Path) -> None:
    entry = saved["segments"][0]
    with (tmp_path / entry["name"]).open("r+b") as file:
        file.truncate(10**12)  # sparse: it takes no space on the disk
    with pytest.raises(DamagedReplayError, match=r"has 1,000,000,000,000 bytes instead of"):
        ReplayBuffer(45, 1, 3, 2).load(tmp_path, saved)
    entry["bytes"] = 10**12
    with pytest.raises(DamagedReplayError, match="its checksum is wrong"):
        ReplayBuffer(45, 1, 3, 2).load(tmp_path, saved)


@pytest.mark.parametrize(("first", "steps"), [(0, 10**15), (0, 21), (5, 15), (0, 0)])
def test_segments_that_are_out_of_place(saved: dict[str, Any], tmp_path: Path, first: int, steps: int) -> None:
    saved["segments"][0].update(first=first, steps=steps)
    with pytest.raises(DamagedReplayError, match="the list of segments is damaged"):
        ReplayBuffer(45, 1, 3, 2).load(tmp_path, saved)


@pytest.mark.parametrize("wrong", [{"steps": -1}, {"dropped": "no"}, {"pending": [[1.0]]}, {"segments": [{"name": 1}]}])
def test_an_index_of_another_form(saved: dict[str, Any], wrong: dict[str, Any]) -> None:
    replay = ReplayBuffer(45, 1, 3, 2)
    replay.check_index(saved, "replay")
    with pytest.raises(StructureError, match=rf"^replay\.{next(iter(wrong))}"):
        replay.check_index({**saved, **wrong}, "replay")
