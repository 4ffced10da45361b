"""The record of a run on disk: one row a value, append only."""

from __future__ import annotations

import csv
import os
import time
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar

HEADER = b"step,name,value\n"
_FLUSH_BYTES = 1 << 16
_FLUSH_SECONDS = 5.0


def read_values(path: Path, name: str) -> list[float]:
    """Read the values that a record on disk holds of one metric, in the order in which they were logged."""
    with path.open(newline="", encoding="utf-8") as file:
        rows = csv.reader(file)
        next(rows, None)  # the header
        return [float(row[2]) for row in rows if len(row) == 3 and row[1] == name]


class CsvLogger:
    """Appends rows ``step,name,value`` to a file; a value reads back as the very float that was logged.

    Rows are gathered in memory and written in blocks: when there are many, after a few seconds, on `flush`, `position`
    and `close`. A killed run so loses rows of its last seconds only, all of them past its last checkpoint, whose
    `position` has put every row before it on the disk.

    Args:
        path: The file. An existing one is continued; a half-written last row, left by a kill, is dropped.

    Raises:
        ValueError: The file exists and is not such a record.
        OSError: The file cannot be written; likewise from every method here that writes.
    """

    required: ClassVar[bool] = True
    """In a `LoggerList`, its errors end the run."""

    def __init__(self, path: Path) -> None:
        self.path = Path(path)
        # No buffered file object, whose buffer would be written a second time by a child that an environment forked and
        # that ends with a copy of it. Rows wait in `_pending`, which only `flush` writes.
        self._file = self.path.open("a+b", buffering=0)
        self._pending = bytearray()
        self._names: dict[str, str] = {}
        self._next_flush = time.monotonic() + _FLUSH_SECONDS
        try:
            self._recover()
        except BaseException:
            self._file.close()
            raise

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        """Record values by name at an environment step."""
        if self._file.closed:
            raise ValueError(f"{self.path} has been closed: metrics cannot be logged at step {step}.")
        rows = [f"{step:d},{self._field(name)},{float(value)!r}\n" for name, value in metrics.items()]
        self._pending += "".join(rows).encode()
        if len(self._pending) >= _FLUSH_BYTES or time.monotonic() >= self._next_flush:
            self.flush()

    def flush(self) -> None:
        """Write the rows that are waiting."""
        while self._pending:
            # On a full disk a block may be written in part. What was written leaves the buffer at once, so that a later
            # attempt goes on in the middle of the row where this one stopped.
            written = self._file.write(self._pending)
            del self._pending[:written]
        self._next_flush = time.monotonic() + _FLUSH_SECONDS

    def position(self) -> int:
        """Put every row on the disk and give the file's length in bytes, for the checkpoint to keep."""
        self.flush()
        os.fsync(self._file.fileno())
        return self._size()

    def truncate(self, position: int) -> None:
        """Drop every row past a position that `position` gave, so that a resumed run logs them once.

        A file that does not reach that far, or a position that is no row's end, costs rows but not the run: what can be
        kept is kept, and a warning tells what is missing.

        Args:
            position: Length in bytes that the file had when the checkpoint was written.
        """
        self.flush()
        size = self._size()
        end = self._row_end(min(max(position, len(HEADER)), size))
        if position < len(HEADER):
            self._warn(f"its checkpoint points into the header (byte {position}), so all rows were dropped")
        elif size < position:
            self._warn(
                f"it has {size} bytes where its checkpoint saw {position}, so the earlier rows in between are gone"
            )
        elif end < position:
            self._warn(f"no row ends at byte {position}, where its checkpoint points, so one earlier row is gone")
        os.ftruncate(self._file.fileno(), end)
        os.fsync(self._file.fileno())

    def close(self) -> None:
        """Write the rows that are waiting and close the file; closing twice is harmless."""
        if self._file.closed:
            return
        try:
            self.flush()
        finally:
            self._file.close()

    def _recover(self) -> None:
        """Write the header of a new file, or cut off the half-written last row of one that is continued."""
        size = self._size()
        self._file.seek(0)
        start = self._file.read(len(HEADER)) or b""
        if size >= len(HEADER) and start == HEADER:
            os.ftruncate(self._file.fileno(), self._row_end(size))
        elif HEADER.startswith(start) and size < len(HEADER):  # new, or killed while the header was being written
            os.ftruncate(self._file.fileno(), 0)
            self._pending += HEADER
            self.flush()
        else:
            raise ValueError(
                f"{self.path} is not a record of metrics: its first line is not {HEADER.decode().strip()!r}. Move it "
                f"away or choose another output folder."
            )

    def _row_end(self, position: int) -> int:
        """Find the end of the last whole row within the first `position` bytes, which contain the header."""
        end = position
        while end > len(HEADER):
            start = max(end - 4096, len(HEADER))
            self._file.seek(start)
            newline = (self._file.read(end - start) or b"").rfind(b"\n")
            if newline >= 0:
                return start + newline + 1
            end = start
        return len(HEADER)

    def _field(self, name: str) -> str:
        """Give a metric's name as a CSV field."""
        field = self._names.get(name)
        if field is None:
            field = " ".join(name.splitlines())  # a row is a line: recovery after a kill depends on it
            if "," in field or '"' in field:
                field = '"' + field.replace('"', '""') + '"'
            self._names[name] = field
        return field

    def _size(self) -> int:
        return os.fstat(self._file.fileno()).st_size

    def _warn(self, what: str) -> None:
        warnings.warn(f"{self.path} is not as its checkpoint left it: {what}.", RuntimeWarning, stacklevel=3)
