"""The interface of loggers, and a list of loggers that works as one."""

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
"""The groups of metric names that are reserved for the run; reports rely on them."""


class Logger(Protocol):
    """Record the metrics of a run."""

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        """Record values by name at an environment step."""

    def flush(self) -> None:
        """Write everything that is still buffered."""

    def close(self) -> None:
        """Flush, then close files and connections; a second call does nothing."""


@runtime_checkable
class ArrayLogger(Logger, Protocol):
    """A logger that also records arrays; the others never receive one."""

    def write_histogram(self, step: int, name: str, array: NDArray[Any]) -> None:
        """Record a histogram of an array of any shape."""

    def write_image(self, step: int, name: str, array: NDArray[np.uint8]) -> None:
        """Record an image ``[H, W, C]``: grayscale (C = 1) or RGB (C = 3)."""


class LoggerList:
    """Use several loggers as one.

    A run that cannot write its metrics must stop, so errors of a logger with ``required = True`` (the CSV file)
    propagate. All other loggers are optional: one that raises is removed with a message, and the run continues.

    Args:
        loggers: The loggers; None stands for one that could not be opened.
        note: Called with one sentence about each removed logger; `warnings.warn` by default.
    """

    def __init__(self, loggers: Iterable[Logger | None], note: Callable[[str], None] | None = None) -> None:
        present = [logger for logger in loggers if logger is not None]
        self.required: list[Logger] = [logger for logger in present if getattr(logger, "required", False)]
        self.optional: list[Logger] = [logger for logger in present if not getattr(logger, "required", False)]
        self._note = note

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        """Record values by name at an environment step, in every logger."""
        # Required loggers first: if an optional one fails at this row, the row is already recorded.
        for logger in self.required:
            logger.log(metrics, step)
        self._attempt(lambda logger: logger.log(metrics, step))

    def write_histogram(self, step: int, name: str, array: NDArray[Any]) -> None:
        """Record a histogram of an array in every logger that supports it."""

        def write(logger: Logger) -> None:
            if isinstance(logger, ArrayLogger):
                logger.write_histogram(step, name, array)

        self._attempt(write)

    def write_image(self, step: int, name: str, array: NDArray[np.uint8]) -> None:
        """Record an image ``[H, W, C]`` in every logger that supports it."""

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
        """Close every logger, then raise the first error of a required one."""
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
        """Apply a function to each optional logger and remove those that raise."""
        for logger in tuple(self.optional):
            try:
                action(logger)
            except Exception as error:
                # Removed before the message, so that it stays removed if the message itself raises.
                self.optional.remove(logger)
                with contextlib.suppress(Exception):  # the first error is the one to report
                    logger.close()
                self._report(
                    f"{type(logger).__name__} failed and is disabled for the rest of the run: {one_line(error)}"
                )

    def _report(self, text: str) -> None:
        if self._note is not None:
            self._note(text)
        else:
            warnings.warn(text, RuntimeWarning, stacklevel=4)


def check_name(name: str) -> None:
    """Check the name of a metric that a user logs.

    Raises:
        ValueError: The name has other characters than letters, digits, ``_``, ``-``, ``.`` and ``/``, or its group is
            reserved.
    """
    if not isinstance(name, str) or re.fullmatch(r"\w([\w./-]*\w)?", name) is None:
        raise ValueError(
            f"name: must consist of letters, digits, '_', '-', '.' and '/', such as 'policy/std'; got {name!r}."
        )
    if name.split("/")[0] in OWN_GROUPS:
        raise ValueError(f"name: the groups {', '.join(OWN_GROUPS)} are reserved, got {name!r}; choose another.")


def one_line(error: BaseException) -> str:
    """Return an error as one line of text: its type and the first line of its message."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
