"""Ray nodes on this machine, each a `ray start` of its own that can be killed as a machine fails."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

STORE_BYTES = 80_000_000
_STARTED = "Ray runtime started"
_RUN = b"--resume-or-start"  # in the command of a run
_START_SECONDS = 120.0
_ENVIRONMENT = {
    **os.environ,
    # A token in the home folder, which `ray.init` leaves there, would turn authentication on for the head alone.
    "RAY_AUTH_MODE": "disabled",
    # On a busy machine, a worker process may take longer to start than the minute that Ray allows.
    "RAY_worker_register_timeout_seconds": "300",
    # By default workers, and runs with them, give way to all other processes: their sleep would take longer.
    "RAY_worker_niceness": "0",
    # Each node reports on this machine, which they share.
    "REPORTER_UPDATE_INTERVAL_MS": "60000",
}


class Node:
    """A node: `ray start` in the foreground, and what it has started.

    Args:
        log: File for what it prints.
        words: Arguments of `ray start`.
        cores: How many it claims to have.
        store: Bytes of its object store.
    """

    def __init__(self, log: Path, *words: str, cores: int = 2, store: int = STORE_BYTES) -> None:
        command = [str(Path(sys.executable).with_name("ray")), "start", *words, f"--num-cpus={cores}", "--block"]
        command += ["--disable-usage-stats", "--include-log-monitor=false", f"--object-store-memory={store}"]
        self.log = log
        with log.open("w") as out:
            # A background job of a shell without job control ignores Ctrl-C, and Ray's workers with it.
            self.process = subprocess.Popen(command, env=_ENVIRONMENT, stdout=out, stderr=out, start_new_session=True)

    def wait(self) -> None:
        """Return when it has started.

        Raises:
            RuntimeError: It has not; the message is what it printed.
        """
        wait_until(self._has_started_or_ended, self.log.read_text, _START_SECONDS)
        if _STARTED not in self.log.read_text():
            raise RuntimeError(self.log.read_text())

    def _has_started_or_ended(self) -> bool:
        return self.process.poll() is not None or _STARTED in self.log.read_text()

    def processes(self) -> list[int]:
        """Return the ids of the node's processes, but not of the runs on it."""
        parents: dict[int, list[int]] = {}
        for stat in Path("/proc").glob("[0-9]*/stat"):
            try:
                parent = int(stat.read_text().rpartition(")")[2].split()[1])
            except OSError:
                continue
            parents.setdefault(parent, []).append(int(stat.parent.name))
        found, left = [self.process.pid], [self.process.pid]
        while left:
            children = [child for child in parents.get(left.pop(), []) if _RUN not in _command_line(child)]
            found += children
            left += children
        return found

    def kill(self) -> None:
        """End the node without a word; its runs are not asked. A second call does nothing."""
        if self.process.returncode is not None:  # its id may be another process's by now
            return
        for pid in self.processes():
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        self.process.wait()


class Cluster:
    """A cluster on this machine: a head node, to which others are added.

    Args:
        folder: For the logs of its nodes.
        cores: What each node claims to have, the head included.
        head_cores: What the head claims to have, if that differs.
        store: Bytes of each node's object store.
    """

    def __init__(self, folder: Path, cores: int = 2, head_cores: int | None = None, store: int = STORE_BYTES) -> None:
        self.folder, self._cores, self._store = folder, cores, store
        port = free_port()
        self.address = f"127.0.0.1:{port}"
        # The path of a socket is limited to about a hundred characters.
        self.temporary = Path(tempfile.mkdtemp(prefix="ray-", dir="/tmp"))
        words = ["--head", f"--port={port}", "--include-dashboard=false", f"--temp-dir={self.temporary}"]
        self.nodes: list[Node] = []
        self.head = self._start(*words, cores=cores if head_cores is None else head_cores)
        try:
            self.head.wait()
        except BaseException:
            self.close()
            raise

    def add(self) -> Node:
        """Add a node."""
        node = self._start(f"--address={self.address}", cores=self._cores)
        node.wait()
        return node

    def _start(self, *words: str, cores: int) -> Node:
        log = self.folder / f"node-{len(self.nodes)}.log"
        self.nodes.append(Node(log, *words, cores=cores, store=self._store))
        return self.nodes[-1]

    def close(self) -> None:
        """Kill all nodes."""
        for node in reversed(self.nodes):
            node.kill()
        shutil.rmtree(self.temporary, ignore_errors=True)


def free_port() -> int:
    """Return a port that nobody listens on."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port: int = one.getsockname()[1]
        return port


def wait_until(there: Callable[[], bool], what: Callable[[], str], seconds: float = 120) -> None:
    """Return when something is there.

    Raises:
        TimeoutError: It was not, in time; the message says what.
    """
    deadline = time.monotonic() + seconds
    while not there():
        if time.monotonic() > deadline:
            raise TimeoutError(what())
        time.sleep(0.05)


def _command_line(pid: int) -> bytes:
    try:
        return (Path("/proc") / str(pid) / "cmdline").read_bytes()
    except OSError:
        return b""
