"""A ring buffer on disk, in pieces: write-once files, so that a save writes only what is new.

A segment is a run of consecutive steps. Its file is never written again: where it grows, a longer one with another name
takes its place, and the old one stays until `clean`. So whichever of two checkpoints a kill leaves behind, all of the
files that it names are there. Files are plain ``.npy`` (one structured value, its fields arrays; no pickled code).
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
"""Size of a whole segment: what a save writes again at most, and large enough for few files."""

Entry: TypeAlias = dict[str, Any]
"""What is known of a segment, as plain values: its file's name, size and checksum, its first step and its steps."""

_NAME = re.compile(r"segment-\d+-(\d+)\.npy(\.part)?")


class DamagedReplayError(ValueError):
    """The saved replay is not whole; the message says what is wrong with it."""


def save(
    folder: Path, known: list[Entry], begin: int, end: int, steps: int, copy: Callable[[int, int], NDArray[Any]]
) -> list[Entry]:
    """Write those of the steps ``[begin, end)`` that the folder does not hold yet.

    Args:
        folder: Where the files are; it is made if need be.
        known: What was written there before, of the same steps.
        begin: The oldest step that is held.
        end: One after the newest.
        steps: Length of a whole segment. The newest one may be shorter; it is written anew when it has grown.
        copy: Gives the steps ``[first, last)`` as a structured value, ``[]``.

    Returns:
        The segments that cover ``[begin, end)``, oldest first.

    Raises:
        OSError: They could not be written (a full disk, say); what the folder held is as it was.
    """
    folder.mkdir(parents=True, exist_ok=True)
    kept = [entry for entry in known if entry["first"] + entry["steps"] > begin and _is_there(folder, entry)]
    if kept and kept[-1]["steps"] < steps and kept[-1]["first"] + kept[-1]["steps"] < end:
        kept.pop()
    missing = [
        (first, min(first + steps, stop))
        for start, stop in _gaps(kept, begin, end)
        for first in range(start, stop, steps)
    ]
    if not missing:
        return kept
    # A name that no file of this folder bears, whichever run wrote it: another checkpoint may still need that one.
    number = 1 + max((int(match[1]) for _, match in _segment_files(folder)), default=0)
    written: list[Entry] = []
    try:
        for first, last in missing:
            name = f"segment-{first:012d}-{number:06d}.npy"
            size, checksum = _write(folder / name, copy(first, last))
            written.append({"name": name, "first": first, "steps": last - first, "bytes": size, "crc32": checksum})
        _sync_folder(folder)  # the checkpoint that names these files must not outlive them in a power cut
    except BaseException:
        for entry in written:  # no checkpoint will name them, and they may be what fills the disk
            with suppress(OSError):
                (folder / entry["name"]).unlink()
        raise
    return sorted(kept + written, key=lambda entry: int(entry["first"]))


def load(
    folder: Path, entries: list[Entry], begin: int, end: int, layout: Callable[[int], np.dtype[Any]]
) -> Iterator[tuple[int, NDArray[Any]]]:
    """Read segments, each checked against its checksum, one in memory at a time.

    Args:
        folder: Where the files are.
        entries: The segments.
        begin: The oldest step that they must hold.
        end: One after the newest.
        layout: Gives the type of a segment of so many steps.

    Yields:
        The first step of a segment and its steps; the oldest may begin before `begin`.

    Raises:
        DamagedReplayError: A file is missing, damaged, or not what it should be, or steps are missing.
    """
    gap = next(_gaps(entries, begin, end), None)
    if gap is not None:
        raise DamagedReplayError(
            f"replay: the steps {gap[0]:,} to {gap[1] - 1:,} are missing from the list of segments; it is damaged."
        )
    for entry in entries:
        yield entry["first"], _read(folder, entry, layout(entry["steps"]))


def clean(folder: Path, entries: list[Entry]) -> None:
    """Delete the folder's segments that are not among these, and what a kill has left half written.

    Other files are left alone, and so is a file that cannot be deleted: it does no harm.
    """
    names = {entry["name"] for entry in entries}
    for path, _ in _segment_files(folder):
        if path.name not in names:
            with suppress(OSError):
                path.unlink()


def _gaps(entries: list[Entry], begin: int, end: int) -> Iterator[tuple[int, int]]:
    at = begin
    for entry in entries:
        if entry["first"] > at:
            yield at, min(entry["first"], end)
        at = max(at, entry["first"] + entry["steps"])
    if at < end:
        yield at, end


def _segment_files(folder: Path) -> list[tuple[Path, re.Match[str]]]:
    if not folder.is_dir():
        return []
    return [(path, match) for path in folder.iterdir() if (match := _NAME.fullmatch(path.name))]


def _is_there(folder: Path, entry: Entry) -> bool:
    try:
        size = (folder / entry["name"]).stat().st_size
    except OSError:
        return False
    return bool(size == entry["bytes"])


def _write(path: Path, segment: NDArray[Any]) -> tuple[int, int]:
    buffer = io.BytesIO()
    np.save(buffer, segment, allow_pickle=False)
    content = buffer.getbuffer()
    temporary = path.with_name(path.name + ".part")
    try:
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
                f"replay: {path} could not be written ({os.strerror(number)}); what was saved before is as it was. "
                "Make room, or check the disk",
            ) from error
        raise
    return len(content), zlib.crc32(content)


def _read(folder: Path, entry: Entry, dtype: np.dtype[Any]) -> NDArray[Any]:
    path = folder / entry["name"]
    if _NAME.fullmatch(entry["name"]) is None:
        raise DamagedReplayError(f"replay: {entry['name']!r} is not the name of a segment; the list is damaged.")
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        raise DamagedReplayError(
            f"replay: there is no file {path}, which the checkpoint needs; "
            f"where a checkpoint was moved, its folder {folder.name} belongs with it."
        ) from None
    except OSError as error:
        raise DamagedReplayError(f"replay: {path} cannot be read ({error.strerror}).") from error
    if len(content) != entry["bytes"]:
        raise DamagedReplayError(
            f"replay: {path} is damaged (it has {len(content):,} bytes, {entry['bytes']:,} were written)."
        )
    if zlib.crc32(content) != entry["crc32"]:
        raise DamagedReplayError(f"replay: {path} is damaged (its checksum is not that of what was written).")
    try:
        segment: NDArray[Any] = np.load(io.BytesIO(content), allow_pickle=False)
    except (ValueError, EOFError) as error:
        raise DamagedReplayError(f"replay: {path} does not hold an array of plain numbers.") from error
    if segment.dtype != dtype or segment.shape != ():
        raise DamagedReplayError(f"replay: {path} holds {segment.dtype}, {segment.shape}, and not {dtype}, ().")
    return segment


def _sync_folder(folder: Path) -> None:
    with suppress(OSError):  # not every system lets a folder be opened
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
