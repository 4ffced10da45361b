"""Where the runs of a sweep are started: one interface, for this machine and for a cluster."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection
from pathlib import Path
from typing import NamedTuple

from minerva.sweeps.spec import Resources


class RunFolder(NamedTuple):
    """A run's folder, and the command that starts the run or resumes it there."""

    path: Path
    """Absolute."""
    words: tuple[str, ...]
    """Arguments of `minerva`."""
    variables: dict[str, str]
    """Environment variables, on top of the sweep's own."""
    start: Path
    """The folder in which the command was given: paths in its words are seen from there."""


class Ended(NamedTuple):
    """A process of a run that has ended."""

    path: Path
    """The run's folder."""
    code: int
    """Its exit code: 0 for a finished run, 2 for a wrong command, negative for the signal that killed it."""
    error: str | None = None
    """What is known of its end besides."""
    lost: bool = False
    """Whether its machine has died, and not the run."""


class ClusterLostError(OSError):
    """What starts the runs no longer answers; each run has its last checkpoint."""


class Executor(ABC):
    """Starts processes, each of which starts or resumes the run of a folder."""

    name: str
    """For messages."""

    @abstractmethod
    def open(self, folder: Path) -> None:
        """Prepare to run a sweep in a folder, which exists; nothing has been started.

        Raises:
            ValueError: That is not possible; the message says why.
        """

    @abstractmethod
    def has_room(self, resources: Resources) -> bool:
        """Return whether one more run may be submitted now.

        Raises:
            ClusterLostError: None may be submitted any more; `wait` tells that those that were running have ended.
        """

    @abstractmethod
    def submit(self, run: RunFolder, resources: Resources) -> None:
        """Start or resume the run of a folder."""

    @abstractmethod
    def wait(self, seconds: float) -> list[Ended]:
        """Return the processes that have ended since the last call; wait at most so long for the first."""

    @abstractmethod
    def stop(self, paths: Collection[Path] | None = None, kill: bool = False) -> None:
        """Ask processes to save and to end; their ends are told by `wait`.

        Args:
            paths: The folders of the runs; by default all.
            kill: End them at once.
        """

    @abstractmethod
    def close(self) -> None:
        """Release what the executor holds; nothing is running any more."""
