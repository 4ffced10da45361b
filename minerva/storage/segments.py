"""Segments of the replay buffer on disk: write-once files, so that a save writes only what is new.

A segment is a sequence of consecutive steps. Its file is never changed: a longer segment gets a new name, and the old
file stays until `clean`. So if the process is killed, all files that the remaining checkpoint names exist. Files are
plain ``.npy`` (one structured value whose fields are arrays; no pickled code).
"""

from __future__ import annotations

import errno
import io
import os
import re
import zlib
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

SEGMENT_BYTES = 4_000_000
"""Size of a full segment: the most that a save writes again, and large enough to need few files."""

Entry: TypeAlias = dict[str, Any]
"""A segment as plain values: file name, size, checksum, first step and number of steps."""

FORM: Entry = {"name": "", "first": 0, "steps": 0, "bytes": 0, "crc32": 0}
"""The form of such values."""

HEADER_BYTES = 10_000
"""More than what stands before the numbers of a file."""

_NAME = re.compile(r"segment-\d+-(\d+)\.npy(\.part)?")


class DamagedReplayError(ValueError):
    """The saved replay buffer is damaged; the message says how."""


def save(
    folder: Path, known: list[Entry], begin: int, end: int, steps: int, copy: Callable[[int, int], NDArray[Any]]
) -> list[Entry]:
    """Write the steps ``[begin, end)`` of a replay buffer that the folder does not hold yet.

    Args:
        folder: Folder of the files; created if it does not exist.
        known: Segments of the same buffer that were written there before.
        begin: The oldest step.
        end: One after the newest step.
        steps: Length of a full segment. The newest may be shorter; it is written again when it has grown.
        copy: Returns the steps ``[first, last)`` as a structured value, ``[]``.

    Returns:
        The segments that cover ``[begin, end)``, oldest first.

    Raises:
        OSError: They could not be written (for example, the disk is full); the folder is unchanged.
    """
    folder.mkdir(exist_ok=True)  # not its parents: a run's folder that was deleted stays so
    kept = [entry for entry in known if entry["first"] + entry["steps"] > begin and _exists(folder, entry)]
    if kept and kept[-1]["steps"] < steps and kept[-1]["first"] + kept[-1]["steps"] < end:
        kept.pop()
    missing = [
        (first, min(first + steps, stop))
        for start, stop in _gaps(kept, begin, end)
        for first in range(start, stop, steps)
    ]
    if not missing:
        return kept
    # A number that no file of this folder has, even from another run: another checkpoint may still need that file.
    number = 1 + max((int(match[1]) for _, match in _segment_files(folder)), default=0)
    written: list[Entry] = []
    try:
        for first, last in missing:
            name = f"segment-{first:012d}-{number:06d}.npy"
            size, checksum = _write(folder / name, copy(first, last))
            written.append({"name": name, "first": first, "steps": last - first, "bytes": size, "crc32": checksum})
        _sync_folder(folder)  # after a power cut, no checkpoint may name files that are missing
    except BaseException:
        for entry in written:  # no checkpoint will name them, and they may fill the disk
            with suppress(OSError):
                (folder / entry["name"]).unlink()
        raise
    return sorted(kept + written, key=lambda entry: int(entry["first"]))


def load(
    folder: Path, entries: list[Entry], begin: int, end: int, layout: Callable[[int], np.dtype[Any]]
) -> Iterator[tuple[int, NDArray[Any]]]:
    """Read the segments of a saved replay buffer one at a time, and check each checksum.

    Args:
        folder: Folder of the files.
        entries: The segments.
        begin: The oldest step that they must hold.
        end: One after the newest step.
        layout: Returns the dtype of a segment for its number of steps.

    Yields:
        The first step of a segment and its content; the oldest segment may start before `begin`.

    Raises:
        DamagedReplayError: A file is missing, damaged or of another type, or steps are missing.
    """
    gap = next(_gaps(entries, begin, end), None)
    if gap is not None:
        raise DamagedReplayError(
            f"replay: the list of segments is damaged (steps {gap[0]:,} to {gap[1] - 1:,} are missing)."
        )
    covered = 0
    for entry in entries:
        if entry["steps"] < 1 or entry["first"] < covered or entry["first"] + entry["steps"] > end:
            raise DamagedReplayError(f"replay: the list of segments is damaged ({entry['name']!r} is out of place).")
        covered = entry["first"] + entry["steps"]
    for entry in entries:
        yield entry["first"], _read(folder, entry, layout)


def clean(folder: Path, entries: list[Entry]) -> None:
    """Delete all segments in the folder of a replay buffer except these, including partly written ones.

    Other files stay. A file that cannot be deleted is ignored.
    """
    names = {entry["name"] for entry in entries}
    for path, _ in _segment_files(folder):
        if path.name not in names:
            with suppress(OSError):
                path.unlink()


def _gaps(entries: list[Entry], begin: int, end: int) -> Iterator[tuple[int, int]]:
    covered = begin
    for entry in entries:
        if entry["first"] > covered:
            yield covered, min(entry["first"], end)
        covered = max(covered, entry["first"] + entry["steps"])
    if covered < end:
        yield covered, end


def _segment_files(folder: Path) -> list[tuple[Path, re.Match[str]]]:
    return [(path, match) for path in folder.glob("segment-*") if (match := _NAME.fullmatch(path.name))]


def _exists(folder: Path, entry: Entry) -> bool:
    try:
        size = (folder / entry["name"]).stat().st_size
    except OSError:
        return False
    return bool(size == entry["bytes"])


def _write(path: Path, segment: NDArray[Any]) -> tuple[int, int]:
    buffer = io.BytesIO()
    np.save(buffer, segment, allow_pickle=False)
    temporary = path.with_name(path.name + ".part")
    try:
        # The view ends here, whatever happens: a buffer with views left cannot be closed, which Python 3.13 reports.
        with buffer.getbuffer() as content:
            size, checksum = len(content), zlib.crc32(content)
            with temporary.open("wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException as error:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
        if isinstance(error, OSError):
            number = error.errno or errno.EIO
            raise OSError(
                number,
                f"replay: {path} could not be written ({os.strerror(number)}); the previous save is unchanged. "
                "Free some space, or check the disk",
            ) from error
        raise
    return size, checksum


def _read(folder: Path, entry: Entry, layout: Callable[[int], np.dtype[Any]]) -> NDArray[Any]:
    path = folder / entry["name"]
    if _NAME.fullmatch(entry["name"]) is None:
        raise DamagedReplayError(f"replay: the list of segments is damaged ({entry['name']!r} is no segment name).")
    try:
        dtype = layout(entry["steps"])
    except (ValueError, OverflowError, MemoryError):  # no file is that large
        raise DamagedReplayError(f"replay: the list of segments is damaged ({entry['steps']:,} steps).") from None
    try:
        with path.open("rb") as opened:
            size = os.fstat(opened.fileno()).st_size
            # What is not as large as it must be is not read: it could fill the memory.
            content = opened.read() if size == entry["bytes"] <= dtype.itemsize + HEADER_BYTES else b""
    except FileNotFoundError:
        raise DamagedReplayError(
            f"replay: there is no file {path}, which the checkpoint needs; "
            f"if you moved the checkpoint, move its folder {folder.name} too."
        ) from None
    except OSError as error:
        raise DamagedReplayError(f"replay: {path} cannot be read ({error.strerror}).") from error
    if size != entry["bytes"]:
        raise DamagedReplayError(f"replay: {path} is damaged (it has {size:,} bytes instead of {entry['bytes']:,}).")
    if zlib.crc32(content) != entry["crc32"]:
        raise DamagedReplayError(f"replay: {path} is damaged (its checksum is wrong).")
    header = io.BytesIO(content)
    try:  # the header alone: it may name an array that is far larger than the file
        if np.lib.format.read_magic(header) != (1, 0):
            raise ValueError("another version")
        shape, _, held = np.lib.format.read_array_header_1_0(header, max_header_size=HEADER_BYTES)
        if held.hasobject:
            raise ValueError("pickled objects")
    except Exception as error:
        raise DamagedReplayError(f"replay: {path} does not hold an array of plain numbers.") from error
    if held != dtype or shape != () or len(content) - header.tell() != dtype.itemsize:
        raise DamagedReplayError(f"replay: {path} holds {held}, {shape} instead of {dtype}, ().")
    segment: NDArray[Any] = np.frombuffer(content, dtype, 1, header.tell()).reshape(())
    return segment


def _sync_folder(folder: Path) -> None:
    with suppress(OSError):  # not every system can open a folder
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
