"""The CSV file of a run's metrics: one row per value, append only."""

from __future__ import annotations

import csv
import io
import os
import time
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path

from minerva.loggers.base import Logger

HEADER = b"step,name,value\n"
_FLUSH_BYTES = 1 << 16
_FLUSH_SECONDS = 5.0


def read_values(path: Path, name: str) -> list[float]:
    """Read the values of one metric from a CSV file, in the order in which they were logged."""
    with path.open(newline="", encoding="utf-8") as file:
        rows = csv.reader(file)
        next(rows, None)  # the header
        return [float(row[2]) for row in rows if len(row) == 3 and row[1] == name]


class CsvLogger(Logger):
    """Append rows ``step,name,value`` to a file; values keep every digit of the float.

    Rows are buffered and written in blocks: when there are many, after a few seconds, and on `flush`, `position` and
    `close`. A killed run loses only rows of its last seconds, all of them after its last checkpoint, because the
    checkpoint's `position` wrote every earlier row to disk.

    Args:
        path: The file. An existing one is continued; an incomplete last row of a killed run is removed.
        warn: Called with one sentence where rows are missing; `warnings.warn` by default.

    Raises:
        ValueError: The file exists and has another header.
        OSError: The file cannot be written; also raised by every method that writes.
    """

    required = True

    def __init__(self, path: Path, warn: Callable[[str], None] | None = None) -> None:
        self.path = Path(path)
        self._report = warn
        # Unbuffered: a child process that an environment forks would write its copy of a buffer again at exit. Rows
        # wait in `_pending`, which only `flush` writes.
        self._file = self.path.open("a+b", buffering=0)
        self._pending = bytearray()
        self._next_flush = time.monotonic() + _FLUSH_SECONDS
        try:
            self._recover()
        except BaseException:
            self._file.close()
            raise

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        if self._file.closed:
            raise ValueError(f"{self.path} has been closed, so metrics of step {step} cannot be logged.")
        rows = io.StringIO()
        # One line per row: recovery after a kill depends on it.
        values = [(step, " ".join(name.splitlines()), float(value)) for name, value in metrics.items()]
        csv.writer(rows, lineterminator="\n").writerows(values)
        self._pending += rows.getvalue().encode()
        if len(self._pending) >= _FLUSH_BYTES or time.monotonic() >= self._next_flush:
            self.flush()

    def flush(self) -> None:
        """Write the buffered rows."""
        while self._pending:
            # A full disk may accept part of a block. The written part leaves the buffer at once, so that the next
            # attempt continues in the middle of the row.
            written = self._file.write(self._pending)
            del self._pending[:written]
        self._next_flush = time.monotonic() + _FLUSH_SECONDS

    def discard(self) -> None:
        """Forget the buffered rows: the file may belong to another process now."""
        self._pending.clear()

    def position(self) -> int:
        """Write every row to disk and return the file's length in bytes, for the checkpoint."""
        self.flush()
        os.fsync(self._file.fileno())
        return self._size()

    def truncate(self, position: int) -> None:
        """Remove every row after a checkpoint's `position`, so that a resumed run does not log them twice.

        If the file is shorter, or no row ends at that position, a warning says which rows are missing and the run
        continues with the others.

        Args:
            position: Length of the file in bytes when the checkpoint was written.
        """
        self.flush()
        size = self._size()
        end = self._row_end(min(max(position, len(HEADER)), size))
        if position < len(HEADER):
            self._warn(f"its checkpoint points into the header (byte {position}), so all rows were removed")
        elif size < position:
            self._warn(
                f"it has {size} bytes instead of the checkpoint's {position}, so the rows in between are missing"
            )
        elif end < position:
            self._warn(f"no row ends at byte {position}, as its checkpoint says, so one earlier row is missing")
        os.ftruncate(self._file.fileno(), end)
        os.fsync(self._file.fileno())

    def close(self) -> None:
        """Write the buffered rows and close the file; a second call does nothing."""
        if self._file.closed:
            return
        try:
            self.flush()
        finally:
            self._file.close()

    def _recover(self) -> None:
        """Write the header of a new file, or remove the incomplete last row of an existing one."""
        self._file.seek(0)
        start = self._file.read(len(HEADER)) or b""
        if start == HEADER:
            os.ftruncate(self._file.fileno(), self._row_end(self._size()))
        elif HEADER.startswith(start):  # new, or killed while the header was being written
            os.ftruncate(self._file.fileno(), 0)
            self._pending += HEADER
            self.flush()
        else:
            raise ValueError(
                f"{self.path} is not a file of metrics: its first line must be {HEADER.decode().strip()!r}; move it or "
                "choose another output folder."
            )

    def _row_end(self, position: int) -> int:
        """Return the end of the last complete row within the first `position` bytes, which contain the header."""
        end = position
        while end > len(HEADER):
            start = max(end - 4096, len(HEADER))
            self._file.seek(start)
            newline = (self._file.read(end - start) or b"").rfind(b"\n")
            if newline >= 0:
                return start + newline + 1
            end = start
        return len(HEADER)

    def _size(self) -> int:
        return os.fstat(self._file.fileno()).st_size

    def _warn(self, what: str) -> None:
        text = f"{self.path} does not match its checkpoint: {what}."
        if self._report is not None:
            self._report(text)
        else:
            warnings.warn(text, RuntimeWarning, stacklevel=3)
