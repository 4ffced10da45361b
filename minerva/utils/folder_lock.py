"""A lock on a folder: one process at a time writes into it, on one host or on a file system that several hosts share.

The lock is `flock` on a file in the folder. It belongs to the open file, so the operating system releases it when the
process ends, however that happens, and two trainers of one process exclude each other too. (POSIX record locks do
neither: they vanish when any part of the process reads and closes the file.) Programs that the process starts do not
inherit the file, and a forked child closes its copy at once, so that children that outlive the process hold nothing.

A shared file system may not show the lock to other hosts. For them the file says who holds the folder, and a thread
touches it every few seconds: a holder on another host whose file was not touched for a minute is dead.
"""

from __future__ import annotations

import errno
import json
import os
import socket
import sys
import tempfile
import threading
import time
import uuid
import weakref
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Any

if sys.platform != "win32":
    import fcntl

FILE_NAME = "run.lock"
TOKEN_VARIABLE = "MINERVA_LOCK_TOKEN"
"""Environment variable of whoever starts runs and knows when one is dead: a process takes over a folder at once from
one that was started with the same token."""
HEARTBEAT_SECONDS = 10.0
STALE_SECONDS = 60.0
"""A holder on another host is dead when its heartbeat is older than this."""
_SETTLE_SECONDS = 2.0  # how long a lock may be held by a process that has not written its name yet


class LockedError(ValueError):
    """Another process, or another trainer of this one, writes into the run's folder; the message says which."""


class FolderLostError(OSError):
    """The run's folder was deleted, or another process took it over: nothing more may be written into it."""


class FolderLock:
    """The lock of one folder, held from `acquire` to `release`.

    Args:
        folder: An existing folder, as an absolute path.
        shown: The folder as the user gave it, for messages.
        token: Take over at once from a holder that was given the same one; by default `TOKEN_VARIABLE`.
        rule: What the message of a refusal begins with.

    Attributes:
        lost: Set by `check`, which the heartbeat calls too, when the folder is no longer this process's.
    """

    def __init__(
        self,
        folder: Path,
        shown: Path,
        token: str | None = None,
        rule: str = "out_dir: one process at a time may train in a folder",
    ) -> None:
        self.folder = folder
        self.shown = shown
        self._rule = rule
        self.path = folder / FILE_NAME
        self.lost: FolderLostError | None = None
        self._token = token or os.environ.get(TOKEN_VARIABLE) or None
        self._file: int | None = None  # descriptor
        self._name = b""  # what the file holds while it is this one's
        self._released = threading.Event()
        self._heart: threading.Thread | None = None

    def acquire(self) -> None:
        """Take the lock, and keep it alive until `release`.

        Raises:
            LockedError: Another holds it.
            OSError: The folder cannot be written to.
        """
        deadline = time.monotonic() + _SETTLE_SECONDS
        while self._file is None:
            file = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o666)
            try:
                free = _try_flock(file)
                holder = _read_holder(file)
                if not _is_at(file, self.path):  # it was released or taken over in the meantime
                    continue
                if self._token is not None and holder.get("token") == self._token and not _is_this_process(holder):
                    self._take(file, replace=free is False)
                elif free is not False or _is_settled(holder) or time.monotonic() > deadline:
                    self._check_free(free, holder, os.fstat(file).st_mtime)
                    self._take(file)
                else:
                    time.sleep(0.005)
            finally:
                if self._file != file:
                    os.close(file)
        _held.add(self)
        heart = threading.Thread(target=self._beat, name="heartbeat of a run's folder", daemon=True)
        heart.start()
        self._heart = heart  # not before: a thread that did not start cannot be joined

    def check(self) -> None:
        """Check that the folder is still this process's; due before anything is written that others rely on.

        Raises:
            FolderLostError: It is not; `lost` is set.
        """
        try:
            self._check_name()
        except FolderLostError as error:
            self.lost = error
            raise

    def _check_name(self) -> None:
        try:
            name = self.path.read_bytes()
        except (FileNotFoundError, NotADirectoryError):
            missing = self.shown / FILE_NAME if self.folder.is_dir() else self.shown
            raise FolderLostError(
                errno.ENOENT,
                f"out_dir: {missing} was deleted or moved while the run was in progress, so the run has stopped and "
                "writes nothing more there; start it again, or resume it where its folder is now",
            ) from None
        except OSError:  # a file server that does not answer now: if it stays like this, writing will fail
            return
        if name != self._name:
            raise FolderLostError(
                errno.EBUSY,
                f"out_dir: {self.shown} was taken over by {_describe(_parse(name))}; this process has stopped and "
                "writes nothing more there",
            )

    def release(self) -> None:
        """Release the lock and remove its file; a second call does nothing."""
        file, self._file = self._file, None
        if file is None:  # also in a forked child
            return
        self._released.set()
        if self._heart is not None:
            self._heart.join(timeout=1)
        _held.discard(self)
        with suppress(OSError):  # a file that is no longer this one's stays
            if self.path.read_bytes() == self._name:
                os.ftruncate(file, 0)  # enough where an open file cannot be removed
                self.path.unlink()
        os.close(file)

    def _check_free(self, free: bool | None, holder: dict[str, Any], touched: float) -> None:
        """Raise a `LockedError` if the holder lives."""
        here = holder.get("host") == socket.gethostname()
        if free is not False and (not holder or (here and free)):
            return
        rule = f"{self._rule}, and {self.shown} is in use by"
        who = _describe(holder)
        if free is False and here and not _is_alive(holder["pid"]):
            raise LockedError(
                f"{rule} a child process of {who}, which has ended itself; end that child too, or delete "
                f"{self.shown / FILE_NAME}."
            )
        if free is False:
            raise LockedError(f"{rule} {who}; wait for its end, stop it, or choose another folder.")
        age = self._now() - touched
        if age <= STALE_SECONDS:
            raise LockedError(
                f"{rule} {who}, which gave a sign of life {max(age, 0):.0f} seconds ago; wait for its end, or stop it. "
                f"If it is dead, try again when {STALE_SECONDS:.0f} seconds have passed."
            )

    def _take(self, file: int, replace: bool = False) -> None:
        """Write this process's name into the file, or into one that replaces it where another still has it locked."""
        moment = datetime.now().astimezone().isoformat(timespec="seconds")
        holder = {"host": socket.gethostname(), "pid": os.getpid(), "since": moment, "id": uuid.uuid4().hex}
        self._name = json.dumps(holder if self._token is None else {**holder, "token": self._token}).encode()
        if not replace:
            self._write_name(file)
            self._file = file
            return
        temporary = self.path.with_name(f"{FILE_NAME}.{holder['id']}")
        file = os.open(temporary, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            _try_flock(file)
            self._write_name(file)
            temporary.replace(self.path)
        except BaseException:
            os.close(file)
            temporary.unlink(missing_ok=True)
            raise
        self._file = file

    def _write_name(self, file: int) -> None:
        os.ftruncate(file, 0)
        os.lseek(file, 0, os.SEEK_SET)
        os.write(file, self._name)
        os.fsync(file)  # other hosts do not see what is only in this one's cache

    def _beat(self) -> None:
        while not self._released.wait(HEARTBEAT_SECONDS):
            try:
                self.check()
                os.utime(self.path)
            except FolderLostError:
                return
            except OSError:  # it may come back
                continue

    def _now(self) -> float:
        """Return the time by the clock of the file system: those of hosts differ."""
        with tempfile.TemporaryFile(dir=self.folder) as file:
            return os.fstat(file.fileno()).st_mtime

    def _forget(self) -> None:
        """Close a forked child's copy, without releasing the lock of its parent."""
        if self._file is not None:
            os.close(self._file)
            self._file = None


_held: weakref.WeakSet[FolderLock] = weakref.WeakSet()


def _forget_all() -> None:
    for lock in list(_held):
        lock._forget()
    _held.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_all)


def _try_flock(file: int) -> bool | None:
    """Lock an open file; return whether that succeeded, or None where the system or the file system has no locks."""
    if sys.platform == "win32":
        return None
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno in (errno.EACCES, errno.EAGAIN):
            return False
        return None
    return True


def _is_at(file: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(file), path.stat())
    except OSError:
        return False


def _read_holder(file: int) -> dict[str, Any]:
    os.lseek(file, 0, os.SEEK_SET)
    return _parse(os.read(file, 1 << 16))


def _parse(name: bytes) -> dict[str, Any]:
    """Return who a lock's file names; nothing where it is empty or damaged."""
    try:
        holder = json.loads(name)
    except (ValueError, RecursionError):
        return {}
    if not isinstance(holder, dict) or not isinstance(holder.get("pid"), int):
        return {}
    return holder


def _is_this_process(holder: dict[str, Any]) -> bool:
    return holder.get("pid") == os.getpid() and holder.get("host") == socket.gethostname()


def _is_settled(holder: dict[str, Any]) -> bool:
    """Return whether the file names a process that can have the lock: a new holder may not have written its name."""
    return bool(holder) and (holder.get("host") != socket.gethostname() or _is_alive(holder["pid"]))


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except OSError:  # another user's
        return True
    return True


def _describe(holder: dict[str, Any]) -> str:
    if not holder:
        return "another process"
    process = f"process {holder['pid']}" + (" (this one)" if _is_this_process(holder) else "")
    return f"{process} on {holder.get('host', 'another host')}, since {holder.get('since', 'a while ago')}"
