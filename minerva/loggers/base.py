"""What a logger is, and a list of them that behaves as one."""

from __future__ import annotations

import contextlib
import re
import warnings
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


OWN_GROUPS = ("charts", "eval", "losses", "train")
"""The groups of names that a run logs in itself; what reads its record relies on them."""


class Logger(Protocol):
    """Takes in the numbers of a run as they come."""

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        """Record values by name at an environment step."""

    def flush(self) -> None:
        """Hand on whatever is still held back."""

    def close(self) -> None:
        """Flush and let go of files and connections; closing twice is harmless."""


@runtime_checkable
class ArrayLogger(Logger, Protocol):
    """A logger that takes in arrays, too; the others never get to see one."""

    def write_histogram(self, step: int, name: str, array: NDArray[Any]) -> None:
        """Record how the numbers of an array of any shape are distributed."""

    def write_image(self, step: int, name: str, array: NDArray[np.uint8]) -> None:
        """Record an image ``[H, W, C]``: grey (C = 1) or red, green and blue (C = 3)."""


class LoggerList:
    """Many loggers as one.

    A run whose record cannot be written must stop, so the errors of a logger that says ``required = True`` (the CSV
    file) propagate. Any other is a convenience: one that raises is dropped with a note, and the run goes on without it.

    Args:
        loggers: The loggers; `None` stands for one that could not be opened.
        note: Told in one sentence about a dropped logger; `warnings.warn` by default.
    """

    def __init__(self, loggers: Iterable[Logger | None], note: Callable[[str], None] | None = None) -> None:
        present = [logger for logger in loggers if logger is not None]
        self.required: list[Logger] = [logger for logger in present if getattr(logger, "required", False)]
        self.optional: list[Logger] = [logger for logger in present if not getattr(logger, "required", False)]
        self._note = note

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        """Record values by name at an environment step, in every logger."""
        # Required first: when a tracker fails at this row, the row is on record already.
        for logger in self.required:
            logger.log(metrics, step)
        self._attempt(lambda logger: logger.log(metrics, step))

    def write_histogram(self, step: int, name: str, array: NDArray[Any]) -> None:
        """Record how the numbers of an array are distributed, where that can be shown."""

        def write(logger: Logger) -> None:
            if isinstance(logger, ArrayLogger):
                logger.write_histogram(step, name, array)

        self._attempt(write)

    def write_image(self, step: int, name: str, array: NDArray[np.uint8]) -> None:
        """Record an image ``[H, W, C]``, where that can be shown."""

        def write(logger: Logger) -> None:
            if isinstance(logger, ArrayLogger):
                logger.write_image(step, name, array)

        self._attempt(write)

    def flush(self) -> None:
        """Flush every logger."""
        for logger in self.required:
            logger.flush()
        self._attempt(lambda logger: logger.flush())

    def close(self) -> None:
        """Close every logger, whichever of them fails; a required one's error is raised when all have been closed."""
        failure: Exception | None = None
        for logger in self.required:
            try:
                logger.close()
            except Exception as error:
                failure = failure or error
        self._attempt(lambda logger: logger.close())
        if failure is not None:
            raise failure

    def _attempt(self, action: Callable[[Logger], None]) -> None:
        """Do something with each optional logger and drop those that raise."""
        for logger in tuple(self.optional):
            try:
                action(logger)
            except Exception as error:
                # Dropped before anything is said, so that it stays dropped if the note itself raises.
                self.optional.remove(logger)
                with contextlib.suppress(Exception):  # its first error is the one worth telling
                    logger.close()
                self._tell(f"{type(logger).__name__} failed and is off for the rest of the run: {one_line(error)}")

    def _tell(self, text: str) -> None:
        if self._note is not None:
            self._note(text)
        else:
            warnings.warn(text, RuntimeWarning, stacklevel=4)


def check_name(name: str) -> None:
    """Look at a name that somebody else than the run itself wants to log under.

    Raises:
        ValueError: It is not of letters, digits, ``_``, ``-``, ``.`` and ``/``, or in a group of the run's own.
    """
    if not isinstance(name, str) or re.fullmatch(r"\w([\w./-]*\w)?", name) is None:
        raise ValueError(
            f"name: must be of letters, digits, '_', '-', '.' and '/', such as 'policy/std'; got {name!r}."
        )
    if name.split("/")[0] in OWN_GROUPS:
        raise ValueError(f"name: the groups {', '.join(OWN_GROUPS)} are the run's own, got {name!r}; choose another.")


def one_line(error: BaseException) -> str:
    """Give an error as one line of text: its kind and the first line of its message."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
