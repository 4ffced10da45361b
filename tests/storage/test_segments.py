from __future__ import annotations

import errno
import json
import os
import re
import resource
import signal
import subprocess
import sys
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from minerva.storage import segments
from minerva.storage.replay import ReplayBuffer
from minerva.storage.segments import DamagedReplayError
from tests.storage.oracle_replay import Stream

OBS, A = 3, 2
ROW = 4 * (OBS + A + 1 + 1) + 1  # bytes per step of one environment: obs, action, reward, log-probability, flags


@pytest.fixture(autouse=True)
def small_segments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segments, "SEGMENT_BYTES", 10 * ROW)  # ten steps of one environment


def made(capacity: int = 45, num_envs: int = 1) -> ReplayBuffer:
    return ReplayBuffer(capacity, num_envs, OBS, A, log_probs=True)


def begun(
    num_envs: int = 1, broken: float = 0.03, capacity: int = 45, end: float = 0.25
) -> tuple[ReplayBuffer, Stream]:
    stream = Stream(num_envs, OBS, A, seed=5, end=end, broken=broken)
    replay = made(capacity, num_envs)
    replay.begin(stream.observations())
    return replay, stream


def add_steps(replay: ReplayBuffer, stream: Stream, steps: int) -> None:
    for _ in range(steps):
        replay.add(*stream.step())


def check_equal(one: ReplayBuffer, two: ReplayBuffer, steps: int | None = None) -> None:
    """Check that both are equal bit for bit and give the same samples; `steps`: number of steps so far."""
    assert one._steps == two._steps == (one._steps if steps is None else steps)
    assert one._oldest() == two._oldest()
    held = np.arange(one._oldest(), one._steps)
    here, there = ((held + replay._shift) % replay.length for replay in (one, two))
    for name in ("obs", "actions", "rewards", "flags", "log_probs"):
        assert getattr(one, name)[here].tobytes() == getattr(two, name)[there].tobytes()
    assert one.current_obs.tobytes() == two.current_obs.tobytes()
    assert (len(one), one.dropped) == (len(two), two.dropped)
    if len(one):
        for n_step in (1, 5):
            batches = (replay.sample(100, np.random.default_rng(1), n_step) for replay in (one, two))
            assert all(x.tobytes() == y.tobytes() for x, y in zip(*batches, strict=True))
        windows = (replay.sample_windows(100, 4, np.random.default_rng(1)) for replay in (one, two))
        assert all(x.tobytes() == y.tobytes() for x, y in zip(*windows, strict=True))


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


# Round trips


@pytest.mark.parametrize("num_envs", [1, 3])
@pytest.mark.parametrize("steps", [0, 1, 9, 10, 11, 44, 45, 46, 47, 90, 91, 92, 137, 400])
def test_a_replay_buffer_resumes_bit_for_bit(tmp_path: Path, num_envs: int, steps: int) -> None:
    replay, stream = begun(num_envs, capacity=45 * num_envs)
    add_steps(replay, stream, steps)
    index = replay.save(tmp_path / "replay")
    loaded = made(45 * num_envs, num_envs)
    add_steps(loaded, Stream(num_envs, OBS, A, seed=9), 77)  # replaced by `load`
    loaded.load(tmp_path / "replay", index)
    check_equal(replay, loaded, steps)
    for _ in range(100):
        given = stream.step()
        assert replay.add(*given) == loaded.add(*given)
        assert (len(replay), replay.dropped) == (len(loaded), loaded.dropped)
    check_equal(replay, loaded)


@pytest.mark.parametrize("new", [0, 1, 3, 10, 17, 44, 45, 46, 200])
@pytest.mark.parametrize("end", [0.0, 0.25])
def test_many_saves(tmp_path: Path, new: int, end: float) -> None:
    replay, stream = begun(num_envs=1, broken=0.03 if end else 0.0, end=end)
    for save in range(1, 30):
        add_steps(replay, stream, new)
        index = replay.save(tmp_path)
        replay.clean(tmp_path, index)
        assert set(files(tmp_path)) == {entry["name"] for entry in index["segments"]}
        slots = index["steps"] - index["begin"]
        assert slots <= 45 or end > 0  # restarting steps take slots
        assert len(index["segments"]) <= slots // 10 + 2
        loaded = made()
        loaded.load(tmp_path, index)
        check_equal(replay, loaded, save * new)


@pytest.mark.parametrize("slots", [10**12, 3])
def test_a_number_of_slots_that_cannot_be(tmp_path: Path, slots: int) -> None:
    replay, stream = begun()
    add_steps(replay, stream, 30)
    with pytest.raises(DamagedReplayError, match=f"do not fit into {slots} slots"):
        made().load(tmp_path, {**replay.save(tmp_path), "slots": slots})


def test_a_replay_buffer_without_log_probabilities(tmp_path: Path) -> None:
    no = np.zeros(1, np.bool_)
    replay, loaded = (ReplayBuffer(20, 1, 1, 1) for _ in range(2))
    replay.begin([[0]])
    for t in range(7):
        replay.add([[t]], [[t + 1]], [t], no, no, no)
    loaded.load(tmp_path, replay.save(tmp_path))
    assert np.array_equal(loaded.obs, replay.obs) and np.array_equal(loaded.rewards, replay.rewards)
    assert len(loaded) == 7


def test_new_episodes_after_loading(tmp_path: Path) -> None:
    replay, stream = begun()
    add_steps(replay, stream, 20)
    loaded = made()
    loaded.load(tmp_path, replay.save(tmp_path))
    first = stream.observations()
    for each in (replay, loaded):
        each.begin(first)
    check_equal(replay, loaded, 21)
    again = made()
    again.load(tmp_path, loaded.save(tmp_path))
    check_equal(replay, again, 21)


def test_the_index_has_plain_values_for_a_checkpoint(tmp_path: Path) -> None:
    replay, stream = begun(num_envs=3, broken=0.0)
    add_steps(replay, stream, 12)
    index = replay.save(tmp_path / "replay")
    assert json.loads(json.dumps(index)) == index
    torch.save(index, tmp_path / "index.pt")
    loaded = made(num_envs=3)
    loaded.load(tmp_path / "replay", torch.load(tmp_path / "index.pt", weights_only=True))
    check_equal(replay, loaded)


def test_the_files_are_plain_arrays(tmp_path: Path) -> None:
    replay, stream = begun()
    add_steps(replay, stream, 7)
    (entry,) = replay.save(tmp_path)["segments"]
    segment = np.load(tmp_path / entry["name"], allow_pickle=False)
    assert np.array_equal(segment["obs"], replay.obs[:7], equal_nan=True)
    assert np.array_equal(segment["log_probs"], replay.log_probs[:7], equal_nan=True)  # type: ignore[index]


# Only what is new


def test_a_save_writes_only_what_is_new(tmp_path: Path) -> None:
    replay, stream = begun()
    add_steps(replay, stream, 34)
    first = replay.save(tmp_path)
    before = files(tmp_path)
    assert [(entry["first"], entry["steps"]) for entry in first["segments"]] == [(0, 10), (10, 10), (20, 10), (30, 4)]
    assert sum(len(content) for content in before.values()) < 34 * ROW + 4 * 500  # empty slots are not written
    add_steps(replay, stream, 8)
    second = replay.save(tmp_path)
    new = {name: content for name, content in files(tmp_path).items() if name not in before}
    assert second["segments"][:3] == first["segments"][:3]
    assert [(entry["first"], entry["steps"]) for entry in second["segments"][3:]] == [(30, 10), (40, 2)]
    assert set(new) == {entry["name"] for entry in second["segments"][3:]}
    assert {name: files(tmp_path)[name] for name in before} == before  # a file is written once
    replay.clean(tmp_path, second)
    assert set(before) - set(files(tmp_path)) == {first["segments"][3]["name"]}


def test_a_full_segment_is_never_written_again(tmp_path: Path) -> None:
    replay, stream = begun()
    add_steps(replay, stream, 30)
    first = replay.save(tmp_path)
    add_steps(replay, stream, 5)
    second = replay.save(tmp_path)
    assert second["segments"][:3] == first["segments"]
    assert [(entry["first"], entry["steps"]) for entry in second["segments"][3:]] == [(30, 5)]


def test_a_save_with_nothing_new_writes_nothing(tmp_path: Path) -> None:
    replay, stream = begun()
    add_steps(replay, stream, 34)
    index = replay.save(tmp_path)
    before = {path: path.stat().st_mtime_ns for path in tmp_path.iterdir()}
    assert replay.save(tmp_path) == index
    assert {path: path.stat().st_mtime_ns for path in tmp_path.iterdir()} == before


def test_steps_that_were_overwritten_leave_the_folder(tmp_path: Path) -> None:
    replay, stream = begun(broken=0.0, end=0.0)
    add_steps(replay, stream, 40)
    replay.save(tmp_path)
    add_steps(replay, stream, 25)  # steps 20 to 64 are held
    index = replay.save(tmp_path)
    replay.clean(tmp_path, index)
    assert [entry["first"] for entry in index["segments"]] == [20, 30, 40, 50, 60]
    assert set(files(tmp_path)) == {entry["name"] for entry in index["segments"]}


def test_after_loading_only_what_is_new_is_written(tmp_path: Path) -> None:
    replay, stream = begun()
    add_steps(replay, stream, 34)
    index = replay.save(tmp_path)
    loaded = made()
    loaded.load(tmp_path, index)
    assert loaded.save(tmp_path) == index
    add_steps(loaded, stream, 3)
    assert loaded.save(tmp_path)["segments"][:3] == index["segments"][:3]
    assert len(files(tmp_path)) == 5


def test_another_folder_gets_everything_and_the_first_one_still_only_what_is_new(tmp_path: Path) -> None:
    replay, stream = begun(broken=0.0, end=0.0)
    add_steps(replay, stream, 57)  # steps 12 to 56 are held
    here = replay.save(tmp_path / "here")
    there = replay.save(tmp_path / "there")
    assert [entry["first"] for entry in there["segments"]] == [12, 22, 32, 42, 52]
    loaded = made()
    loaded.load(tmp_path / "there", there)
    check_equal(replay, loaded, 57)
    add_steps(replay, stream, 1)
    before = set(files(tmp_path / "here"))
    again = replay.save(tmp_path / "here")
    assert len(set(files(tmp_path / "here")) - before) == 1
    assert again["segments"][:-1] == here["segments"][:-1]


@pytest.mark.parametrize("gone", [0, 1, 2])
def test_a_file_that_has_gone_missing_is_written_again(tmp_path: Path, gone: int) -> None:
    replay, stream = begun()
    add_steps(replay, stream, 34)
    index = replay.save(tmp_path)
    (tmp_path / index["segments"][gone]["name"]).unlink()
    add_steps(replay, stream, 5)
    loaded = made()
    loaded.load(tmp_path, replay.save(tmp_path))
    check_equal(replay, loaded, 39)


def test_a_buffer_loaded_from_an_older_save_does_not_reuse_newer_files(tmp_path: Path) -> None:
    replay, stream = begun()
    add_steps(replay, stream, 30)
    index = replay.save(tmp_path)
    add_steps(replay, stream, 12)
    replay.save(tmp_path)
    replay.save(tmp_path / "other")
    replay.load(tmp_path, index)
    other = Stream(1, OBS, A, seed=77)
    add_steps(replay, other, 12)
    for folder in (tmp_path, tmp_path / "other"):
        loaded = made()
        loaded.load(folder, replay.save(folder))
        check_equal(replay, loaded, 42)


def test_cleaning_keeps_other_files(tmp_path: Path) -> None:
    replay, stream = begun()
    add_steps(replay, stream, 14)
    index = replay.save(tmp_path)
    others = ["notes.txt", "mpo_last.pt", "segment.npy", "segment-000000000000-000001.npy.txt"]
    litter = ["segment-000000000000-000099.npy", "segment-000000000010-000003.npy.part"]
    for name in others + litter:
        (tmp_path / name).write_text("x")
    replay.clean(tmp_path, index)
    assert set(files(tmp_path)) == {*others, *(entry["name"] for entry in index["segments"])}
    replay.clean(tmp_path / "nowhere", index)


# Damage and errors


def cut_short(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def flip_a_bit(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-20] ^= 1
    path.write_bytes(content)


def lengthen(path: Path) -> None:
    path.write_bytes(path.read_bytes() + b"x")


def make_a_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (Path.unlink, "there is no file .*, which the checkpoint needs; .* move its folder replay too"),
        (cut_short, r"is damaged \(it has [\d,]+ bytes instead of [\d,]+\)"),
        (lengthen, r"is damaged \(it has"),
        (flip_a_bit, r"is damaged \(its checksum"),
        (make_a_folder, r"cannot be read \(Is a directory\)"),
    ],
)
@pytest.mark.parametrize("which", [0, -1])
def test_a_damaged_segment(tmp_path: Path, damage: Callable[[Path], None], message: str, which: int) -> None:
    replay, stream = begun()
    add_steps(replay, stream, 57)
    index = replay.save(tmp_path / "replay")
    path = tmp_path / "replay" / index["segments"][which]["name"]
    damage(path)
    other, stream = begun()
    add_steps(other, stream, 20)
    before = other.obs.copy()
    with pytest.raises(DamagedReplayError, match=f"^replay: .*{message}") as caught:
        other.load(tmp_path / "replay", index)
    assert str(path) in str(caught.value)
    assert np.array_equal(other.obs, before, equal_nan=True) and len(other) > 0


@pytest.mark.parametrize(("left_out", "missing"), [(0, "12 to 21"), (2, "32 to 41"), (-1, "52 to 56")])
def test_a_list_of_segments_with_a_gap(tmp_path: Path, left_out: int, missing: str) -> None:
    replay, stream = begun(broken=0.0, end=0.0)
    add_steps(replay, stream, 57)
    index = replay.save(tmp_path)
    index["segments"].pop(left_out)
    with pytest.raises(DamagedReplayError, match=f"steps {missing} are missing"):
        made().load(tmp_path, index)


def forged(index: dict[str, Any], folder: Path, content: bytes) -> None:
    entry = index["segments"][0]
    (folder / entry["name"]).write_bytes(content)
    entry.update({"bytes": len(content), "crc32": zlib.crc32(content)})


def test_loading_runs_no_code_and_rejects_other_arrays(tmp_path: Path) -> None:
    replay, stream = begun()
    add_steps(replay, stream, 5)
    index = replay.save(tmp_path)
    np.save(tmp_path / "objects.npy", np.array([{"a": 1}], dtype=object), allow_pickle=True)
    np.save(tmp_path / "numbers.npy", np.zeros(5))
    for name, message in (("objects", "does not hold an array of plain numbers"), ("numbers", "holds float64")):
        forged(index, tmp_path, (tmp_path / f"{name}.npy").read_bytes())
        with pytest.raises(DamagedReplayError, match=message):
            made().load(tmp_path, index)
    index["segments"][0]["name"] = "../elsewhere.npy"
    with pytest.raises(DamagedReplayError, match=r"'\.\./elsewhere\.npy' is no segment name"):
        made().load(tmp_path, index)


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (ReplayBuffer(46, 1, OBS, A, True), "capacity = 45, got 46"),
        (ReplayBuffer(45, 3, OBS, A, True), "num_envs = 1, got 3"),
        (ReplayBuffer(45, 1, OBS + 1, A, True), "obs_dim = 3, got 4"),
        (ReplayBuffer(45, 1, OBS, A + 1, True), "action_dim = 2, got 3"),
        (ReplayBuffer(45, 1, OBS, A, False), "log_probs = True, got False"),
    ],
)
def test_a_replay_buffer_of_another_shape(tmp_path: Path, other: ReplayBuffer, message: str) -> None:
    replay, stream = begun()
    add_steps(replay, stream, 5)
    index = replay.save(tmp_path)
    with pytest.raises(ValueError, match=f"replay: must have the saved {message}; use the same"):
        other.load(tmp_path, index)


@contextmanager
def file_size_limit(size: int) -> Iterator[None]:
    """Simulate a disk that is full after `size` bytes."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_full_disk_keeps_the_previous_save_and_leaves_no_partial_files(tmp_path: Path) -> None:
    replay, stream = begun()
    add_steps(replay, stream, 34)
    index = replay.save(tmp_path)
    before = files(tmp_path)
    held = made()
    held.load(tmp_path, index)
    add_steps(replay, stream, 40)
    for limit in (0, 100):
        with file_size_limit(limit), pytest.raises(OSError, match=r"replay: .* could not be written") as caught:
            replay.save(tmp_path)
        assert caught.value.errno == errno.EFBIG
        assert os.strerror(errno.EFBIG) in str(caught.value)
        assert files(tmp_path) == before
    old, new = made(), made()
    old.load(tmp_path, index)
    check_equal(old, held)
    new.load(tmp_path, replay.save(tmp_path))
    check_equal(replay, new, 74)


def test_an_interrupted_save_leaves_no_partial_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    replay, stream = begun()
    add_steps(replay, stream, 34)
    calls = []

    def fsync(file: int) -> None:
        calls.append(file)
        if len(calls) == 3:
            raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", fsync)
    with pytest.raises(KeyboardInterrupt):
        replay.save(tmp_path)
    assert files(tmp_path) == {}
    replay.load(tmp_path, replay.save(tmp_path))


_KILLED = """
import json, os, signal, sys
import numpy as np
from pathlib import Path
from minerva.storage import segments
from minerva.storage.replay import ReplayBuffer
from tests.storage.oracle_replay import Stream

folder, moment, at = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
segments.SEGMENT_BYTES = 10 * (4 * (3 + 2 + 1 + 1) + 1)
replay = ReplayBuffer(45, 1, 3, 2, log_probs=True)
index = json.loads((folder / "index.json").read_text())
replay.load(folder / "replay", index)
calls = 0
def killing(name, function):
    def call(*arguments):
        global calls
        calls += name == moment
        if name == moment and calls == at:
            os.kill(os.getpid(), signal.SIGKILL)
        return function(*arguments)
    return call
stream = Stream(1, 3, 2, seed=6, end=0.0)
for _ in range(30):
    replay.add(*stream.step())
os.fsync = killing("fsync", os.fsync)
Path.replace = killing("replace", Path.replace)
Path.unlink = killing("unlink", Path.unlink)
index = replay.save(folder / "replay")
(folder / "index.part").write_text(json.dumps(index))
(folder / "index.part").replace(folder / "index.json")
replay.clean(folder / "replay", index)
"""


@pytest.mark.parametrize(
    ("moment", "at", "renamed"),
    [("fsync", 1, False), ("replace", 1, False), ("fsync", 3, False), ("replace", 3, False), ("replace", 5, False),
     ("unlink", 1, True), ("unlink", 3, True)],
)  # fmt: skip
def test_killed_at_any_moment(tmp_path: Path, moment: str, at: int, renamed: bool) -> None:
    replay, stream = begun(broken=0.0, end=0.0)
    add_steps(replay, stream, 57)
    old = replay.save(tmp_path / "replay")
    (tmp_path / "index.json").write_text(json.dumps(old))
    killed = subprocess.run(
        [sys.executable, "-c", _KILLED, str(tmp_path), moment, str(at)], cwd=Path(__file__).parents[2], check=False
    )
    assert killed.returncode == -signal.SIGKILL
    index = json.loads((tmp_path / "index.json").read_text())
    assert (index["steps"] == 87) == renamed
    add_steps(replay, Stream(1, OBS, A, seed=6, end=0.0), 30 * renamed)
    loaded = made()
    loaded.load(tmp_path / "replay", index)
    check_equal(replay, loaded, index["steps"])
    # The run continues: files of the killed process are neither reused nor kept.
    add_steps(loaded, stream, 12)
    index = loaded.save(tmp_path / "replay")
    loaded.clean(tmp_path / "replay", index)
    assert set(files(tmp_path / "replay")) == {entry["name"] for entry in index["segments"]}
    again = made()
    again.load(tmp_path / "replay", index)
    check_equal(loaded, again, index["steps"])


def test_file_names_are_never_reused(tmp_path: Path) -> None:
    replay, stream = begun()
    add_steps(replay, stream, 15)
    index = replay.save(tmp_path)
    loaded = made()
    loaded.load(tmp_path, index)
    add_steps(replay, stream, 2)
    lost = replay.save(tmp_path)  # no checkpoint names it
    before = files(tmp_path)
    add_steps(loaded, Stream(1, OBS, A, seed=3), 2)
    kept = loaded.save(tmp_path)
    assert {name: files(tmp_path)[name] for name in before} == before
    assert lost["segments"][-1]["name"] != kept["segments"][-1]["name"]
    assert all(re.fullmatch(r"segment-\d{12}-\d{6}\.npy", name) for name in files(tmp_path))


FAILED_SAVE = """
import gc
from pathlib import Path
import numpy as np
from minerva.storage import segments

def fail():
    try:
        segments._write(Path("no such folder/segment"), np.zeros(3))
    except OSError as error:
        error.again = error  # so that its frames are collected as one

fail()
gc.collect()
"""


def test_a_failed_save_leaves_no_view_of_its_buffer() -> None:
    # Python 3.13 reports a buffer that cannot be closed; earlier versions only in this mode.
    done = subprocess.run(
        [sys.executable, "-X", "dev", "-W", "ignore", "-c", FAILED_SAVE], capture_output=True, text=True
    )
    assert (done.returncode, done.stderr) == (0, "")
