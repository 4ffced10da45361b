"""The interface of loggers, and a list of loggers that works as one."""

from __future__ import annotations

import contextlib
import re
import warnings
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


OWN_GROUPS = ("charts", "eval", "losses", "time", "train")
"""The groups of metric names that are reserved for the run; reports rely on them."""


class Logger:
    """Record the metrics of a run. A logger overrides what it supports; the rest does nothing."""

    required: ClassVar[bool] = False
    """Whether a run must stop where this logger fails."""

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        """Record values by name at an environment step."""

    def write_histogram(self, step: int, name: str, array: NDArray[Any]) -> None:
        """Record a histogram of an array of any shape."""

    def write_image(self, step: int, name: str, array: NDArray[np.uint8]) -> None:
        """Record an image ``[H, W, C]``: grayscale (C = 1) or RGB (C = 3)."""

    def flush(self) -> None:
        """Write everything that is still buffered."""

    def close(self) -> None:
        """Flush, then close files and connections; a second call does nothing."""


class LoggerList(Logger):
    """Use several loggers as one.

    A run that cannot write its metrics must stop, so errors of a required logger (the CSV file) are raised, after every
    other logger was called. One that is not required is removed with a message when it raises, and the run continues.

    Args:
        loggers: The loggers; None stands for one that could not be opened.
        note: Called with one sentence about each removed logger; `warnings.warn` by default.
    """

    def __init__(self, loggers: Iterable[Logger | None], note: Callable[[str], None] | None = None) -> None:
        present = [logger for logger in loggers if logger is not None]
        # Required ones first: if another one ends the process at this row, the row is already recorded.
        self.loggers = sorted(present, key=lambda logger: not logger.required)
        self._note = note or partial(warnings.warn, category=RuntimeWarning, stacklevel=4)

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        self._each(lambda logger: logger.log(metrics, step))

    def write_histogram(self, step: int, name: str, array: NDArray[Any]) -> None:
        self._each(lambda logger: logger.write_histogram(step, name, array))

    def write_image(self, step: int, name: str, array: NDArray[np.uint8]) -> None:
        self._each(lambda logger: logger.write_image(step, name, array))

    def flush(self) -> None:
        self._each(lambda logger: logger.flush())

    def close(self) -> None:
        self._each(lambda logger: logger.close())

    def _each(self, action: Callable[[Logger], None]) -> None:
        """Apply a function to each logger, remove those that raise, and raise the first error of a required one."""
        failure: Exception | None = None
        for logger in tuple(self.loggers):
            try:
                action(logger)
            except Exception as error:
                if logger.required:
                    failure = failure or error
                    continue
                # Removed before the message, so that it stays removed if the message itself raises.
                self.loggers.remove(logger)
                with contextlib.suppress(Exception):  # the first error is the one to report
                    logger.close()
                name = type(logger).__name__
                self._note(f"{name} failed and is disabled for the rest of the run: {one_line(error)}")
        if failure is not None:
            raise failure


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
