"""Runs as tasks of a Ray cluster: each task is on one node, where it starts a run's process and waits for its end.

Ray decides which node has room, and tells when a node has died. Everything else goes through the file system that all
nodes share: a task that is lost is submitted again, and resumes from the last checkpoint in the run's folder.
"""

from __future__ import annotations

import asyncio
import logging
import os
import select
import signal
import socket
import subprocess
import time
import uuid
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any

# Read when Ray is imported: no report to its makers, and a run that asks for no GPU sees those there are.
os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
try:
    import ray
    from ray import exceptions
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy
except ImportError as missing:
    raise ValueError('on: "ray" needs Ray, which is not installed: pip install "minerva-rl[ray]".') from missing

from minerva.sweeps.executor import ClusterLostError, Ended, Executor, RunFolder
from minerva.sweeps.local import PROGRAM, start_process
from minerva.sweeps.spec import Resources

_KNOCK_SECONDS = 10.0
_PROBE_SECONDS = 60.0
_CAPACITY_SECONDS = 2.0  # between two looks at how large the cluster is
_HEAD_SECONDS = 30.0  # without an answer from the head node; after 60, Ray ends the process without an exception
_LISTEN_SECONDS = 300.0  # a task asks again after so long whether it should stop
_LISTENERS = 100_000
_POLL_SECONDS = 1.0  # between two looks at the bell
_LOST = (
    exceptions.NodeDiedError,
    exceptions.WorkerCrashedError,
    exceptions.LocalRayletDiedError,
    exceptions.ObjectLostError,
)


class RayExecutor(Executor):
    """Start each run as a task of a Ray cluster.

    Args:
        address: The cluster's, HOST:PORT; None for the one that this machine belongs to.
        jobs: How many run at once (default: as many as the cluster has room for).
        resources: What each run may use.
        program: What takes a run's words as `minerva` does.
    """

    name = "ray"

    def __init__(
        self, address: str | None, jobs: int | None, resources: Resources, program: Sequence[str] = PROGRAM
    ) -> None:
        self._address = address
        self._program = program
        self._jobs = jobs
        self._resources = resources
        self._tasks: dict[Any, Path] = {}  # by the reference to what the task returns
        self._ready: SimpleQueue[Any] = SimpleQueue()  # references to tasks that have ended
        self._room = 0
        self._next_count = 0.0
        self._opened = False
        self._head = ""  # HOST:PORT
        self._silent_since: float | None = None
        self._lost = False

    def open(self, folder: Path) -> None:
        """Connect to the cluster.

        Raises:
            ValueError: There is none, a node of it does not see the folder, or no node is large enough.
        """
        if not ray.is_initialized():
            where = f"at {self._address}" if self._address else "to which this machine belongs"
            try:
                if self._address is not None:
                    _knock(self._address)
                ray.init(address=self._address or "auto", log_to_driver=False, logging_level=logging.ERROR)
            except (OSError, RuntimeError, ValueError, AssertionError) as error:
                raise ValueError(
                    f"address: there is no Ray cluster {where} that can be used ({_first_line(error)}); start one with "
                    "`ray start --head`, and this command on one of its nodes."
                ) from error
            self._opened = True
        self._head = ray.get_runtime_context().gcs_address
        self._check_nodes()
        self._token = folder / f".shared-{uuid.uuid4().hex}"
        self._probe(folder)
        here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
        bell: Any = ray.remote(_StopBell)
        self._bell = bell.options(num_cpus=0, max_concurrency=_LISTENERS, scheduling_strategy=here).remote()

    def has_room(self, resources: Resources) -> bool:
        now = time.monotonic()
        if now >= self._next_count:
            self._next_count = now + _CAPACITY_SECONDS
            # Not asked while the head node is silent: Ray would wait for its answer.
            self._room = sum(_fit(node, resources) for node in _nodes()) if self._head_answers(now) else 0
        return len(self._tasks) < min(self._room, self._jobs or self._room)

    def submit(self, run: RunFolder, resources: Resources) -> None:
        options = {"num_cpus": resources.cores, "num_gpus": resources.gpu, "max_retries": 0, "name": run.path.name}
        task = _supervise.options(**options)
        reference = task.remote(run, resources, str(self._token), self._bell, self._program)
        self._tasks[reference] = run.path
        # Told by Ray's own thread: `ray.wait` would look at all tasks for each that ends.
        reference.future().add_done_callback(lambda _: self._ready.put(reference))

    def wait(self, seconds: float) -> list[Ended]:
        if self._lost:
            paths, self._tasks = list(self._tasks.values()), {}
            return [Ended(path, -signal.SIGKILL, "the cluster's head node was lost", lost=True) for path in paths]
        try:
            ready = [self._ready.get(timeout=seconds)]
        except Empty:
            return []
        ready += [self._ready.get() for _ in range(self._ready.qsize())]  # and the others that have ended by now
        return [self._end_of(task) for task in ready]

    def stop(self, paths: Collection[Path] | None = None, kill: bool = False) -> None:
        if self._lost:
            return
        if not kill:
            with suppress(exceptions.RayError):
                ray.get(self._bell.ring.remote(None if paths is None else [str(path) for path in paths]), timeout=10)
            return
        for task, path in self._tasks.items():
            if paths is not None and path not in paths:
                continue
            with suppress(exceptions.RayError, ValueError):
                ray.cancel(task, force=True)

    def close(self) -> None:
        with suppress(OSError, AttributeError):
            self._token.unlink()
        if self._opened:
            ray.shutdown()

    def _head_answers(self, now: float) -> bool:
        """Return whether the head node answers.

        Raises:
            ClusterLostError: It has not for a while.
        """
        try:
            _knock(self._head)
        except OSError as error:
            self._silent_since = now if self._silent_since is None else self._silent_since
            if time.monotonic() - self._silent_since < _HEAD_SECONDS:
                return False
            self._lost = True
            raise ClusterLostError(
                f"address: the head node of the Ray cluster at {self._head} has not answered for {_HEAD_SECONDS:.0f} "
                "seconds, so its runs end at their last checkpoints; start the cluster and then this command again, "
                "which goes on from there."
            ) from error
        self._silent_since = None
        return True

    def _end_of(self, task: Any) -> Ended:
        path = self._tasks.pop(task)
        try:
            return Ended(path, ray.get(task))
        except exceptions.TaskCancelledError:
            return Ended(path, -signal.SIGTERM)
        except exceptions.OutOfMemoryError:
            return Ended(path, -signal.SIGKILL, "its node ran out of memory, and Ray ended it")
        except _LOST as error:
            return Ended(path, -signal.SIGKILL, f"its node died ({type(error).__name__})", lost=True)
        except exceptions.RayError as error:
            return Ended(path, 1, f"its task failed: {_last_line(error)}")

    def _check_nodes(self) -> None:
        cores, gpus = ([node["Resources"].get(name, 0) for node in _nodes()] for name in ("CPU", "GPU"))
        for name, most, wanted in zip(Resources._fields, (max(cores), max(gpus)), self._resources, strict=True):
            if wanted > most:
                raise ValueError(f"{name}: the cluster's largest node has {most:g}, got {wanted:g}; ask for less.")

    def _probe(self, folder: Path) -> None:
        """Check that each node sees the token that is written here, and that what it writes is seen here.

        Raises:
            ValueError: A node does not.
        """
        self._token.write_text(socket.gethostname(), encoding="utf-8")
        asked = {}
        for node in _nodes():
            only = NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
            answer = folder / f".answer-{node['NodeID']}"
            options = {"num_cpus": 0, "max_retries": 0, "scheduling_strategy": only}
            asked[_answer.options(**options).remote(str(self._token), str(answer))] = (node, answer)
        ray.wait(list(asked), num_returns=len(asked), timeout=_PROBE_SECONDS)
        for task, (node, answer) in asked.items():
            try:
                shared = ray.get(task, timeout=0) and answer.exists()
                problem = "does not see it"
            except exceptions.RayError as error:
                died = all(node["NodeID"] != other["NodeID"] for other in _nodes())  # while it was asked
                shared, problem = died, f"did not answer ({type(error).__name__})"
            answer.unlink(missing_ok=True)
            if not shared:
                self._token.unlink(missing_ok=True)
                raise ValueError(
                    f"out: must be in a file system that all nodes of the cluster share, got {folder}, but node "
                    f"{node['NodeManagerAddress']} ({node['NodeManagerHostname']}) {problem}; choose another folder."
                )


def _knock(address: str) -> None:
    """Check that something answers at an address; Ray would try for minutes."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit():
        raise ValueError("an address is HOST:PORT, such as 127.0.0.1:6379")
    socket.create_connection((host.strip("[]"), int(port)), timeout=_KNOCK_SECONDS).close()


def _nodes() -> list[dict[str, Any]]:
    return [node for node in ray.nodes() if node["Alive"]]  # type: ignore[no-untyped-call]


def _fit(node: dict[str, Any], resources: Resources) -> int:
    """Return how many runs a node has room for."""
    has = node["Resources"]
    count = int(has.get("CPU", 0) // resources.cores)
    return count if resources.gpu == 0 else min(count, int((has.get("GPU", 0) + 1e-9) // resources.gpu))


class _StopBell:
    """Rings for some tasks or for all: each then lets its run save and stop."""

    def __init__(self) -> None:
        self._all = False
        self._rung: set[str] = set()
        self._changed = asyncio.Condition()

    async def ring(self, paths: list[str] | None) -> None:
        async with self._changed:
            self._all = self._all or paths is None
            self._rung.update(paths or ())
            self._changed.notify_all()

    async def listen(self, path: str, seconds: float) -> bool:
        """Return whether it has rung for a run, at the latest after so many seconds."""
        async with self._changed:
            with suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._changed.wait_for(lambda: self._rings(path)), seconds)
            return self._rings(path)

    def _rings(self, path: str) -> bool:
        return self._all or path in self._rung


@ray.remote
def _answer(token: str, answer: str) -> bool:
    """Return whether this node sees a file; write another one."""
    if not Path(token).exists():
        return False
    with suppress(OSError):
        Path(answer).write_text(socket.gethostname(), encoding="utf-8")
    return True


@ray.remote
def _supervise(run: RunFolder, resources: Resources, token: str, bell: Any, program: Sequence[str]) -> int:
    """Start or resume a run on this node, and return its exit code."""
    if not Path(token).exists():  # a node that has joined since the sweep was started
        raise ValueError(f"the node {socket.gethostname()} does not share {Path(token).parent}")
    process = start_process(run, resources, program)
    rung = bell.listen.remote(str(run.path), _LISTEN_SECONDS)
    with _watched(process) as wait:
        while (code := wait(_POLL_SECONDS)) is None:
            heard, _ = ray.wait([rung], timeout=0) if rung is not None else ([], None)
            if heard:
                try:
                    ringing = ray.get(rung)
                except exceptions.RayError:  # the sweep itself is gone; Ray is about to end this task
                    rung = None
                    continue
                rung = None if ringing else bell.listen.remote(str(run.path), _LISTEN_SECONDS)
                if ringing:
                    process.send_signal(signal.SIGTERM)
    return code


@contextmanager
def _watched(process: subprocess.Popen[bytes]) -> Iterator[Callable[[float], int | None]]:
    """Yield a function that waits for a process, so many seconds, and returns its exit code if it has ended.

    `Popen.wait` looks twenty times per second, which with a run per core adds up to much of one core.
    """

    def look(seconds: float) -> int | None:
        with suppress(subprocess.TimeoutExpired):
            return process.wait(seconds)
        return None

    def sleep(seconds: float) -> int | None:
        end.poll(1000 * seconds)
        return process.poll()

    try:
        descriptor = os.pidfd_open(process.pid)
    except (AttributeError, OSError):  # not Linux, or an old one
        yield look
        return
    try:
        end = select.poll()
        end.register(descriptor, select.POLLIN)
        yield sleep
    finally:
        os.close(descriptor)


def _first_line(error: BaseException) -> str:
    return next(iter(str(error).strip().splitlines()), type(error).__name__).rstrip(".")


def _last_line(error: BaseException) -> str:
    return next(reversed(str(error).strip().splitlines()), type(error).__name__).rstrip(".")
