"""Archives of `torch.save`: refuse those that take more memory than their file is large."""

from __future__ import annotations

import os
import re
import zipfile
from collections import OrderedDict
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

MAX_BYTES = 8 * 2**30
"""Size up to which a checkpoint is loaded unless the user raises it."""
LIMIT_VARIABLE = "MINERVA_MAX_CHECKPOINT_GB"
"""Environment variable that raises it."""
MAX_DEPTH = 100
"""How deep the parts of a checkpoint may be nested."""

# Every function or class that a pickle names stands behind this opcode: torch reads no other one. Those that torch
# allows are of these packages.
_GLOBAL = re.compile(rb"c((?:torch|collections|builtins|_codecs)[\w.]*)\n([^\n]*)\n")
_NEEDED = re.compile(rb"collections\.OrderedDict|torch\._utils\._rebuild_tensor_v2|torch\.\w+Storage")


class ArchiveError(ValueError):
    """An archive could take too much memory, or holds something other than tensors and plain values."""


class Sizes(NamedTuple):
    """The sizes that an archive of `torch.save` may turn into when it is loaded."""

    storages: int  # bytes of all tensors
    pickle: int  # bytes of the description of the values; each takes at least one


def check_archive(path: Path) -> Sizes:
    """Check the directory and the description of an archive of `torch.save`, before anything of it is loaded.

    `torch.save` stores without compression, so what is loaded is no larger than the file. An archive of compressed or
    overlapping entries may be a thousand times as large.

    Raises:
        ArchiveError: It could take more memory than the file's size or the limit, or more than tensors is named in it.
        OSError: The file cannot be read.
        zipfile.BadZipFile: It is no archive, or damaged.
    """
    size, limit = path.stat().st_size, _limit()
    with path.open("rb") as file, zipfile.ZipFile(file) as archive:
        entries = archive.infolist()
        stored = all(entry.compress_type == zipfile.ZIP_STORED for entry in entries)
        total = sum(entry.file_size for entry in entries)
        names = {entry.filename for entry in entries}
        file.seek(0)
        if not stored or total > size or len(names) < len(entries) or file.read(4) != b"PK\x03\x04":
            raise ArchiveError(f"it was compressed or altered: {size:,} bytes that would become {total:,}")
        if total > limit:
            raise ArchiveError(
                f"it holds {total / 2**30:.2f} GiB, more than the {limit / 2**30:g} GiB that are loaded; if you trust "
                f"it, set the environment variable {LIMIT_VARIABLE} to a larger number"
            )
        damaged = archive.testzip()  # torch does not check the checksums
        if damaged is not None:
            raise ArchiveError(f"in {damaged}")
        (description,) = [name for name in names if name.endswith("/data.pkl")]
        pickle = archive.read(description)
    for match in _GLOBAL.finditer(pickle):
        name = b".".join(match.groups())
        if not _NEEDED.fullmatch(name):
            raise ArchiveError("it holds something other than tensors and plain values")
    storages = sum(entry.file_size for entry in entries if "/data/" in entry.filename)
    return Sizes(storages, len(pickle))


def _limit() -> float:
    given = os.environ.get(LIMIT_VARIABLE)
    if given is None:
        return MAX_BYTES
    try:
        limit = float(given) * 2**30
    except ValueError:
        limit = 0.0
    if not limit > 0:
        raise ArchiveError(f"{LIMIT_VARIABLE} must be a number of GiB greater than 0, got {given!r}")
    return limit


def check_tree(tree: Any, sizes: Sizes) -> None:
    """Check that loaded values are tensors and plain values, and no larger than the archive that they come from.

    Raises:
        ArchiveError: Parts are of another type, repeat themselves, overlap, or reach beyond what was stored.
    """
    storages: dict[int, int] = {}
    nodes, waiting = 0, [(tree, 0)]
    while waiting:
        node, depth = waiting.pop()
        children = _children(node)
        nodes += 1 + len(children)
        if nodes > 2 * sizes.pickle or depth > MAX_DEPTH:  # one part that is named in many places
            raise ArchiveError("its parts are nested too deeply or repeat themselves")
        if isinstance(node, Tensor):
            storage = node.untyped_storage()
            storages[storage.data_ptr()] = storage.nbytes()
            if node.layout != torch.strided or not node.is_contiguous():
                raise ArchiveError("it holds a tensor whose parts overlap or are not in order")
        waiting.extend((child, depth + 1) for child in children if type(child) not in _LEAVES)
    if sum(storages.values()) > sizes.storages:
        raise ArchiveError("it holds a tensor that is larger than what was stored of it")


def _children(node: Any) -> list[Any]:
    kind = type(node)
    if kind is list or kind is tuple:
        return node if kind is list else list(node)
    if kind is dict or kind is OrderedDict:
        _check_keys(node)
        attributes = vars(node) if kind is OrderedDict else {}
        if attributes.keys() - {"_metadata"}:
            raise ArchiveError("it holds something other than tensors and plain values")
        metadata = attributes.get("_metadata", {})  # torch.nn.Module.state_dict notes versions of modules there
        if not isinstance(metadata, dict) or not all(isinstance(versions, dict) for versions in metadata.values()):
            raise ArchiveError("it holds something other than tensors and plain values")
        return [*dict.values(node), metadata] if attributes else list(dict.values(node))
    if kind in _LEAVES or kind is Tensor:
        return []
    raise ArchiveError("it holds something other than tensors and plain values")


def _check_keys(node: dict[Any, Any]) -> None:
    for key in node:
        if type(key) is not str:
            raise ArchiveError(f"it holds a dict with the key {key!r:.40}, which is no text")


_LEAVES = frozenset((str, int, float, bool, type(None)))
