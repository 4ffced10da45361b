from __future__ import annotations

import errno
import importlib.machinery
import os
import pickle
import resource
import subprocess
import sys
import types
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from minerva import checkpointing
from minerva.checkpointing import CheckpointError
from minerva.utils.seeding import torch_generator


def content(number: int = 1, size: int = 100) -> dict[str, Any]:
    return {
        "algorithm": "ppo",
        "number": number,
        "state": {"weights": torch.arange(size) + number, "best": -float("inf")},
    }


@contextmanager
def file_size_limit(size: int) -> Iterator[None]:
    """Simulate a disk that is full after `size` bytes."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_round_trip(tmp_path: Path) -> None:
    path = tmp_path / "ppo_last.pt"
    checkpointing.write(path, content())
    read = checkpointing.read(path)
    assert torch.equal(read["state"]["weights"], torch.arange(100) + 1)
    assert (read["number"], read["state"]["best"], read["format"]) == (1, -float("inf"), checkpointing.FORMAT)
    assert read["versions"]["torch"] == version("torch")
    assert [file.name for file in tmp_path.iterdir()] == ["ppo_last.pt"]


@pytest.mark.parametrize("odd", [False, True])
def test_generators_resume_from_a_checkpoint(odd: bool, tmp_path: Path) -> None:
    ours, theirs = torch_generator(1, "noise"), np.random.default_rng(2)
    torch.randn(5, generator=ours)
    theirs.normal(size=3)
    if odd:  # the state includes the unused half of a 64-bit draw, for the next 32-bit one
        theirs.integers(2**31, dtype=np.int32)
    state = {"torch": ours.get_state(), "numpy": theirs.bit_generator.state}
    checkpointing.write(tmp_path / "x.pt", {"algorithm": "ppo", "state": state})
    state = checkpointing.read(tmp_path / "x.pt")["state"]
    again, generator = torch.Generator(), np.random.default_rng()
    again.set_state(state["torch"])
    generator.bit_generator.state = state["numpy"]
    assert (
        generator.integers(2**31, size=7, dtype=np.int32).tolist()
        == theirs.integers(2**31, size=7, dtype=np.int32).tolist()
    )
    assert torch.equal(torch.randn(9, generator=again), torch.randn(9, generator=ours))
    assert generator.normal(size=9).tolist() == theirs.normal(size=9).tolist()


# Writing


@pytest.mark.parametrize("limit", [0, 2_000, 20_000])
def test_a_full_disk_leaves_the_old_checkpoint_and_no_litter(tmp_path: Path, limit: int) -> None:
    path = tmp_path / "ppo_last.pt"
    checkpointing.write(path, content())
    before = path.read_bytes()
    with file_size_limit(limit), pytest.raises(OSError, match="could not be written") as caught:
        checkpointing.write(path, content(2, size=100_000))
    assert caught.value.errno == errno.EFBIG
    assert str(path) in str(caught.value) and os.strerror(errno.EFBIG) in str(caught.value)
    assert "the previous checkpoint is unchanged" in str(caught.value)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]
    checkpointing.write(path, content(2, size=100_000))
    assert checkpointing.read(path)["number"] == 2


def test_the_first_checkpoint_on_a_full_disk(tmp_path: Path) -> None:
    with file_size_limit(0), pytest.raises(OSError, match="there is no previous checkpoint"):
        checkpointing.write(tmp_path / "ppo_last.pt", content())
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("error", [OSError(errno.ENOSPC, "full"), RuntimeError("writer failed"), KeyboardInterrupt()])
def test_a_failure_half_way_leaves_the_old_checkpoint(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, error: BaseException
) -> None:
    path = tmp_path / "ppo_last.pt"
    checkpointing.write(path, content())
    before = path.read_bytes()

    def fail(what: Any, file: Any) -> None:
        file.write(b"half of it")
        raise error

    monkeypatch.setattr(torch, "save", fail)
    kind = KeyboardInterrupt if isinstance(error, KeyboardInterrupt) else OSError
    with pytest.raises(kind) as caught:
        checkpointing.write(path, content(2))
    if isinstance(caught.value, OSError):
        assert caught.value.errno == (errno.ENOSPC if isinstance(error, OSError) else errno.EIO)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_killed_while_writing_leaves_the_old_checkpoint(tmp_path: Path) -> None:
    path = tmp_path / "ppo_last.pt"
    checkpointing.write(path, content())
    script = (
        "import os, signal, sys, torch\nfrom pathlib import Path\nfrom minerva import checkpointing\n"
        "def save(what, file):\n    file.write(b'half of it'); file.flush(); os.kill(os.getpid(), signal.SIGKILL)\n"
        "torch.save = save\ncheckpointing.write(Path(sys.argv[1]), {'algorithm': 'ppo'})\n"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(p or "." for p in sys.path)}
    assert subprocess.run([sys.executable, "-c", script, str(path)], env=environment).returncode == -9
    assert sorted(file.name for file in tmp_path.iterdir()) == ["ppo_last.pt", "ppo_last.pt.part"]
    assert checkpointing.find(tmp_path) == [path]  # the partial file is not a checkpoint
    assert checkpointing.read(path)["number"] == 1
    checkpointing.write(path, content(2))
    assert [file.name for file in tmp_path.iterdir()] == ["ppo_last.pt"]
    assert checkpointing.read(path)["number"] == 2


def test_only_a_complete_checkpoint_replaces_the_old_one(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    path = tmp_path / "ppo_last.pt"
    checkpointing.write(path, content())
    synced: list[int] = []
    replace, fsync = Path.replace, os.fsync

    def watch_replace(self: Path, target: Path) -> Path:
        assert synced == [self.stat().st_size], "renamed before all of it was on the disk"
        assert checkpointing.read(self)["number"] == 2  # complete before it replaces the old one
        assert checkpointing.read(path)["number"] == 1
        return replace(self, target)

    def watch_fsync(file: int) -> None:
        synced.append(os.fstat(file).st_size)
        fsync(file)

    monkeypatch.setattr(Path, "replace", watch_replace)
    monkeypatch.setattr(os, "fsync", watch_fsync)
    checkpointing.write(path, content(2))
    assert checkpointing.read(path)["number"] == 2


# Reading

OLDER, NOW, NEWER = checkpointing.FORMAT - 1, checkpointing.FORMAT, checkpointing.FORMAT + 1


class Bomb:
    """Pickled code: loading it would touch a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return (Path.touch, (self.path,))


def test_pickled_code_is_rejected_and_not_run(tmp_path: Path) -> None:
    path, trace = tmp_path / "ppo_last.pt", tmp_path / "trace"
    torch.save({"format": 1, "algorithm": "ppo", "state": Bomb(trace)}, path)
    with pytest.raises(CheckpointError, match=r"ppo_last.pt is damaged or not a checkpoint of Minerva"):
        checkpointing.read(path)
    assert not trace.exists()
    torch.load(path, weights_only=False)
    assert trace.exists()  # the code does run where it is allowed


@pytest.mark.parametrize("kept", [0.0, 0.1, 0.5, 0.9, 0.999])
def test_a_truncated_file(tmp_path: Path, kept: float) -> None:
    path = tmp_path / "ppo_last.pt"
    checkpointing.write(path, content(size=10_000))
    data = path.read_bytes()
    path.write_bytes(data[: int(kept * len(data))])
    with pytest.raises(CheckpointError, match="is damaged or not a checkpoint"):
        checkpointing.read(path)


def test_a_flipped_bit_in_any_tensor_or_value(tmp_path: Path) -> None:
    path = tmp_path / "ppo_last.pt"
    checkpointing.write(path, content(size=500))
    data = bytearray(path.read_bytes())
    with zipfile.ZipFile(path) as archive:
        spots = []
        for member in archive.infolist():
            name_length, extra_length = (
                int.from_bytes(data[member.header_offset + at : member.header_offset + at + 2], "little")
                for at in (26, 28)
            )
            start = member.header_offset + 30 + name_length + extra_length
            spots += [start + at for at in range(0, member.file_size, max(1, member.file_size // 5))]
    assert len(spots) > 10
    for spot in spots:
        data[spot] ^= 4
        path.write_bytes(data)
        with pytest.raises(CheckpointError, match="damaged"):
            checkpointing.read(path)
        data[spot] ^= 4
    path.write_bytes(data)
    assert checkpointing.read(path)["number"] == 1


def test_tensors_of_any_strides_come_back(tmp_path: Path) -> None:
    tensors = {"turned": torch.rand(3, 4).t(), "part": torch.rand(4, 6)[:, ::2], "wide": torch.rand(3, 1).expand(3, 5)}
    images = torch.rand(2, 3, 4, 5).to(memory_format=torch.channels_last)
    state: Any = torch.nn.BatchNorm1d(2).state_dict()  # with notes on versions
    checkpointing.write(tmp_path / "a.pt", {**content(), "tensors": tensors, "nested": [(images, state)]})
    read = checkpointing.read(tmp_path / "a.pt")
    ((again, module),) = read["nested"]
    assert torch.equal(again, images) and module._metadata == state._metadata
    assert all(torch.equal(read["tensors"][name], tensor) for name, tensor in tensors.items())
    assert not tensors["turned"].is_contiguous() and state["running_mean"].is_contiguous()


def test_a_newer_format_says_what_to_do(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    path = tmp_path / "ppo_last.pt"
    with monkeypatch.context() as future:
        future.setattr(checkpointing, "FORMAT", checkpointing.FORMAT + 1)
        checkpointing.write(path, content())
    with pytest.raises(CheckpointError, match=rf"format {NEWER}, but this Minerva reads up to {NOW}; update Minerva"):
        checkpointing.read(path)


def test_an_older_format_says_what_to_do(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    path = tmp_path / "ppo_last.pt"
    with monkeypatch.context() as past:
        past.setattr(checkpointing, "FORMAT", checkpointing.FORMAT - 1)
        checkpointing.write(path, content())
    with pytest.raises(CheckpointError, match=rf"format {OLDER} of an older Minerva, but this one reads {NOW}; train"):
        checkpointing.read(path)


def test_files_that_are_not_checkpoints(tmp_path: Path) -> None:
    path = tmp_path / "ppo_last.pt"
    with pytest.raises(CheckpointError, match="there is no file"):
        checkpointing.read(path)
    torch.save({"weights": torch.zeros(3)}, path)
    with pytest.raises(CheckpointError, match="was not written by Minerva"):
        checkpointing.read(path)
    torch.save([1, 2], path)
    with pytest.raises(CheckpointError, match="was not written by Minerva"):
        checkpointing.read(path)
    path.write_bytes(pickle.dumps({"format": 1, "algorithm": "ppo"}))
    with pytest.raises(CheckpointError, match="is damaged or not a checkpoint"):
        checkpointing.read(path)
    path.write_text("hello")
    with pytest.raises(CheckpointError, match="is damaged or not a checkpoint"):
        checkpointing.read(path)


# A run's folder


def test_find(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="there is no folder"):
        checkpointing.find(tmp_path / "nowhere")
    with pytest.raises(CheckpointError, match="holds no checkpoint"):
        checkpointing.find(tmp_path)
    for name in ("ppo_best.pt", "ppo_last.pt", "ppo_last.pt.part", "other.pt"):
        (tmp_path / name).touch()
    assert [path.name for path in checkpointing.find(tmp_path)] == ["ppo_last.pt", "ppo_best.pt"]


def test_look_up_uses_the_best_if_the_last_is_damaged_and_says_so(tmp_path: Path) -> None:
    last, best = tmp_path / "ppo_last.pt", tmp_path / "ppo_best.pt"
    checkpointing.write(last, content(2))
    checkpointing.write(best, content(1))
    path, checkpoint, note = checkpointing.look_up(tmp_path)
    assert (path, checkpoint["number"], note) == (last, 2, None)
    last.write_bytes(last.read_bytes()[:-50])
    path, checkpoint, note = checkpointing.look_up(tmp_path)
    assert (path, checkpoint["number"]) == (best, 1)
    assert note is not None and "ppo_last.pt is damaged" in note and "Using ppo_best.pt instead" in note
    best.write_bytes(b"")
    with pytest.raises(CheckpointError, match=r"ppo_last.pt is damaged.*ppo_best.pt is damaged"):
        checkpointing.look_up(tmp_path)


# Versions, commit and command


def test_versions_of_what_affects_a_result() -> None:
    versions = checkpointing.versions()
    assert {"python", "platform", "torch", "numpy", "gymnasium"} <= versions.keys()
    assert versions["numpy"] == np.__version__


def test_git_commit(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    assert checkpointing.git_commit() is None
    git = ["git", "-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false"]
    for command in (["init", "-q"], ["commit", "-q", "--allow-empty", "-m", "first"]):
        subprocess.run([*git, *command], check=True, capture_output=True)
    head = subprocess.run(["git", "rev-parse", "HEAD"], check=True, capture_output=True, text=True).stdout.strip()
    assert checkpointing.git_commit() == head
    (tmp_path / "file").write_text("1")
    subprocess.run([*git, "add", "file"], check=True)
    assert checkpointing.git_commit() == f"{head}-dirty"
    monkeypatch.setenv("PATH", "")
    assert checkpointing.git_commit() is None


def test_command_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["/somewhere/bin/minerva", "train", "ppo"])
    main = types.ModuleType("__main__")
    monkeypatch.setitem(sys.modules, "__main__", main)
    main.__spec__ = None
    assert checkpointing.command_line() == "minerva train ppo"
    main.__spec__ = importlib.machinery.ModuleSpec("minerva.cli.__main__", None)
    assert checkpointing.command_line() == "python -m minerva.cli train ppo"
