from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from minerva.utils import folder_lock
from minerva.utils.folder_lock import FILE_NAME, FolderLock, FolderLostError, LockedError

HOLD = """
import sys, time
from pathlib import Path
from minerva.utils import folder_lock
folder_lock.HEARTBEAT_SECONDS = 0.02
folder, token, then = Path(sys.argv[1]), sys.argv[2], sys.argv[3]
lock = folder_lock.FolderLock(folder, folder, token or None)
lock.acquire()
exec(then)
print("held", flush=True)
while lock.lost is None:
    time.sleep(0.01)
print(lock.lost.strerror, flush=True)
time.sleep(60)
"""
LEAVE_CHILDREN = """
import os, subprocess
if os.fork() == 0:  # not one that was started by multiprocessing, which could close what it does not need
    os.close(1)
    time.sleep(60)
    os._exit(0)
subprocess.Popen(["sleep", "60"], close_fds=False, stdout=subprocess.DEVNULL)
"""

Hold = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def hold(tmp_path: Path) -> Iterator[Hold]:
    """Start processes that take the lock of `tmp_path`, and end them and their children afterwards."""
    processes: list[subprocess.Popen[str]] = []

    def start(token: str = "", then: str = "") -> subprocess.Popen[str]:
        command = [sys.executable, "-c", HOLD, str(tmp_path), token, then]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path or "." for path in sys.path)}
        process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True, start_new_session=True)
        processes.append(process)
        assert line_of(process) == "held"
        return process

    yield start
    for process in processes:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # a session of its own
        process.communicate()


def line_of(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def lock_of(folder: Path, token: str | None = None) -> FolderLock:
    return FolderLock(folder, folder, token)


def pretend(folder: Path, host: str, pid: int, age: float) -> Path:
    """Write a lock as a holder leaves it whose lock the operating system does not show, or who is dead."""
    path = folder / FILE_NAME
    path.write_text(json.dumps({"host": host, "pid": pid, "since": "2025-01-01T00:00:00+00:00", "id": "x"}))
    moment = time.time() - age
    os.utime(path, (moment, moment))
    return path


def test_two_locks_of_one_process_exclude_each_other(tmp_path: Path) -> None:
    first, second = lock_of(tmp_path), lock_of(tmp_path)
    first.acquire()
    with pytest.raises(
        LockedError, match=rf"is in use by process {os.getpid()} \(this one\) on {socket.gethostname()}"
    ):
        second.acquire()
    (tmp_path / FILE_NAME).read_bytes()  # closing a file releases some locks, but not this one
    with pytest.raises(LockedError):
        second.acquire()
    first.release()
    assert list(tmp_path.iterdir()) == []
    second.acquire()
    second.check()
    second.release()
    second.release()
    assert list(tmp_path.iterdir()) == []


def test_a_lock_goes_with_its_process_whatever_children_it_leaves(hold: Hold, tmp_path: Path) -> None:
    holder = hold(then=LEAVE_CHILDREN)
    with pytest.raises(
        LockedError, match=f"in use by process {holder.pid} on {socket.gethostname()}, since 20.* stop it"
    ):
        lock_of(tmp_path).acquire()
    holder.kill()
    holder.wait()
    lock = lock_of(tmp_path)
    begin = time.monotonic()
    lock.acquire()
    assert time.monotonic() - begin < 0.5
    os.killpg(holder.pid, 0)  # its children are there
    lock.release()


def test_a_child_that_keeps_the_file_open_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, hold: Hold) -> None:
    monkeypatch.setattr(folder_lock, "_SETTLE_SECONDS", 0.1)
    keep = "import subprocess; subprocess.Popen(['sleep', '60'], pass_fds=[lock._file], stdout=subprocess.DEVNULL)"
    holder = hold(then=keep)
    holder.kill()
    holder.wait()
    with pytest.raises(LockedError, match=f"a child process of process {holder.pid} .* or delete .*{FILE_NAME}"):
        lock_of(tmp_path).acquire()
    (tmp_path / FILE_NAME).unlink()
    lock = lock_of(tmp_path)
    lock.acquire()
    lock.release()


@pytest.mark.parametrize(("age", "free"), [(-5, False), (3, False), (50, False), (70, True)])
def test_a_holder_on_another_host_is_dead_after_a_minute(age: float, free: bool, tmp_path: Path) -> None:
    path, lock = pretend(tmp_path, "elsewhere", 12, age), lock_of(tmp_path)
    before = path.read_bytes()
    if free:
        lock.acquire()
        assert json.loads(path.read_text())["pid"] == os.getpid()
        lock.release()
        assert list(tmp_path.iterdir()) == []
    else:
        with pytest.raises(LockedError, match=rf"process 12 on elsewhere.* sign of life {max(age, 0)}\d? seconds ago"):
            lock.acquire()
        assert path.read_bytes() == before and list(tmp_path.iterdir()) == [path]


def test_a_dead_holder_on_this_host_is_dead_at_once(tmp_path: Path) -> None:
    pretend(tmp_path, socket.gethostname(), 2**22 + 1, age=0)
    lock = lock_of(tmp_path)
    lock.acquire()
    lock.release()


@pytest.mark.parametrize("content", ["", "{", "[" * 10_000, "[1]", '{"pid": "12"}'])
def test_a_damaged_file_that_nobody_holds_is_free(content: str, tmp_path: Path) -> None:
    (tmp_path / FILE_NAME).write_text(content)
    lock = lock_of(tmp_path)
    lock.acquire()
    lock.release()


def test_without_locks_of_the_system_the_heartbeat_counts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(folder_lock, "_try_flock", lambda file: None)
    lock = lock_of(tmp_path)
    lock.acquire()
    with pytest.raises(LockedError, match="sign of life 0 seconds ago"):
        lock_of(tmp_path).acquire()
    lock.release()
    pretend(tmp_path, socket.gethostname(), os.getpid(), age=70)
    lock = lock_of(tmp_path)
    lock.acquire()
    lock.release()


def test_a_token_takes_over_at_once_and_the_other_notices(
    hold: Hold, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    holder = hold("task-7")
    for token in (None, "task-8"):
        with pytest.raises(LockedError, match=f"in use by process {holder.pid}"):
            lock_of(tmp_path, token).acquire()
    monkeypatch.setenv(folder_lock.TOKEN_VARIABLE, "task-7")
    lock = lock_of(tmp_path)
    lock.acquire()
    assert f"was taken over by process {os.getpid()}" in line_of(holder)
    holder.kill()
    holder.wait()
    lock.check()
    with pytest.raises(LockedError, match="this one"):  # the token does not make two runs of one process one
        lock_of(tmp_path).acquire()
    lock.release()
    assert list(tmp_path.iterdir()) == []


def test_the_heartbeat_touches_the_file_and_ends_with_the_lock(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(folder_lock, "HEARTBEAT_SECONDS", 0.01)
    path, lock, threads = tmp_path / FILE_NAME, lock_of(tmp_path), threading.active_count()
    lock.acquire()
    os.utime(path, (1, 1))
    deadline = time.monotonic() + 5
    while path.stat().st_mtime < time.time() - 3:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    lock.release()
    assert threading.active_count() == threads and lock.lost is None


@pytest.mark.parametrize("what", ["folder", "file"])
def test_what_was_deleted_is_noticed_and_not_written_again(
    what: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(folder_lock, "HEARTBEAT_SECONDS", 0.01)
    folder = tmp_path / "run"
    folder.mkdir()
    lock = FolderLock(folder, Path("shown"))
    lock.acquire()
    (folder / FILE_NAME).unlink()
    missing = "shown/run.lock"
    if what == "folder":
        folder.rmdir()
        missing = "shown"
    with pytest.raises(FolderLostError, match=f"out_dir: {missing} was deleted or moved"):
        lock.check()
    deadline = time.monotonic() + 5
    while lock.lost is None:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    lock.release()
    assert list(tmp_path.rglob("*")) == ([] if what == "folder" else [folder])


def test_a_file_that_is_removed_while_another_opens_it_is_no_lock(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    first, second = lock_of(tmp_path), lock_of(tmp_path)
    first.acquire()
    flock = folder_lock._try_flock

    def released_in_between(file: int) -> bool | None:
        first.release()
        return flock(file)

    monkeypatch.setattr(folder_lock, "_try_flock", released_in_between)
    second.acquire()
    second.check()  # the file that it has locked is the one in the folder
    with pytest.raises(LockedError):
        lock_of(tmp_path).acquire()
    second.release()
