"""Checkpoints: complete, written atomically, and loaded without running code."""

from __future__ import annotations

import copy
import errno
import os
import pickle
import platform
import sys
import warnings
from contextlib import suppress
from importlib import metadata
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch

from minerva.utils.archives import ArchiveError, check_archive, check_tree
from minerva.utils.git import git_commit as git_commit  # beside the versions and the command
from minerva.utils.structure import StructureError, check

FORMAT = 7
"""Increased when an older Minerva can no longer read the files of this one."""

_PACKAGES = ("minerva-rl", "torch", "numpy", "gymnasium", "mujoco", "dm-control", "shimmy")


class CheckpointError(ValueError):
    """A file is not a usable checkpoint; the message says why."""


def write(path: Path, checkpoint: dict[str, Any]) -> None:
    """Write a checkpoint atomically: if the process dies, `path` holds the old or the new one, complete.

    Args:
        path: Destination in an existing folder.
        checkpoint: Tensors and plain values only.

    Raises:
        OSError: It could not be written (for example, the disk is full); `path` is unchanged.
    """
    temporary = path.with_name(path.name + ".part")
    try:
        with temporary.open("wb") as file:
            torch.save(_in_order({"format": FORMAT, "versions": versions(), **checkpoint}), file)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException as error:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)  # half a checkpoint is useless and may fill the disk
        if isinstance(error, (OSError, RuntimeError)):
            raise _write_error(path, error) from error
        raise


def _in_order(value: Any) -> Any:
    """Return the same values with contiguous tensors, which alone are read: others could overlap."""
    if isinstance(value, torch.Tensor):
        return value.contiguous()
    if isinstance(value, dict):
        copied = copy.copy(value)  # a module's state has attributes of its own
        copied.update((key, _in_order(part)) for key, part in value.items())
        return copied
    return type(value)(map(_in_order, value)) if type(value) in (list, tuple) else value


def _write_error(path: Path, error: OSError | RuntimeError) -> OSError:
    # torch raises its own RuntimeError over the system's error, which says more.
    cause: BaseException = error
    while not isinstance(cause, OSError) and cause.__context__ is not None:
        cause = cause.__context__
    number = (cause.errno if isinstance(cause, OSError) else None) or errno.EIO
    kept = "the previous checkpoint is unchanged" if path.exists() else "there is no previous checkpoint"
    return OSError(
        number,
        f"checkpoint: {path} could not be written ({os.strerror(number)}); {kept}. Free some space, or check the disk",
    )


def read(path: Path) -> dict[str, Any]:
    """Read a checkpoint (tensors and plain values only; pickled code is rejected).

    Raises:
        CheckpointError: The file is missing, damaged, not a checkpoint, or has another format.
    """
    if not path.is_file():
        raise CheckpointError(f"checkpoint: there is no file {path}.")
    try:
        sizes = check_archive(path)  # before anything is allocated
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            checkpoint = torch.load(path, map_location="cpu", weights_only=True)
        check_tree(checkpoint, sizes)
    except ArchiveError as error:
        raise CheckpointError(f"checkpoint: {path} is damaged or unsafe ({error}).") from error
    except Exception as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        if isinstance(error, pickle.UnpicklingError):
            reason = "it holds something other than tensors and plain values"
        raise CheckpointError(f"checkpoint: {path} is damaged or not a checkpoint of Minerva ({reason}).") from error
    if not isinstance(checkpoint, dict) or "format" not in checkpoint or "algorithm" not in checkpoint:
        raise CheckpointError(f"checkpoint: {path} was not written by Minerva.")
    for name, form in (("format", FORMAT), ("algorithm", "")):
        try:
            check(checkpoint[name], form, name)
        except StructureError as error:
            raise unusable(path, error) from error
    if checkpoint["format"] > FORMAT:
        raise CheckpointError(
            f"checkpoint: {path} has format {checkpoint['format']}, but this Minerva reads up to {FORMAT}; "
            "update Minerva."
        )
    if checkpoint["format"] < FORMAT:
        raise CheckpointError(
            f"checkpoint: {path} has format {checkpoint['format']} of an older Minerva, but this one reads {FORMAT}; "
            "train again, or use the Minerva that wrote it."
        )
    return checkpoint


def unusable(path: Path, error: ValueError) -> CheckpointError:
    """Return a `CheckpointError` that says in one sentence what is wrong inside a checkpoint."""
    reason = " ".join(str(error).split()).rstrip(".")
    return CheckpointError(f"checkpoint: {path} cannot be used, because of {reason}; use another one.")


def find(run: Path) -> list[Path]:
    """List the checkpoints in a run's folder: the last first, then the best.

    Raises:
        CheckpointError: There is no such folder, or no checkpoint in it.
    """
    if not run.is_dir():
        raise CheckpointError(f"run: there is no folder {run}.")
    found = sorted(run.glob("*_last.pt")) + sorted(run.glob("*_best.pt"))
    if not found:
        raise CheckpointError(
            f"run: {run} holds no checkpoint (*_last.pt or *_best.pt); give a folder that `minerva train` wrote."
        )
    return found


class LoadedCheckpoint(NamedTuple):
    """A checkpoint and the file it was read from."""

    path: Path
    checkpoint: dict[str, Any]
    note: str | None  # a sentence if the requested checkpoint was damaged


def look_up(path: Path, which: Literal["last", "best"] = "last") -> LoadedCheckpoint:
    """Read a checkpoint from a file or a run's folder: the last or the best, or the other one if that is damaged.

    Raises:
        CheckpointError: No checkpoint can be read.
    """
    if not path.exists():
        raise CheckpointError(f"run: there is no folder or checkpoint {path}.")
    if path.is_file():
        return LoadedCheckpoint(path, read(path), None)
    candidates = find(path)
    if which == "best":
        candidates.reverse()
        if not candidates[0].name.endswith("_best.pt"):
            raise CheckpointError(
                f"run: {path} holds no best checkpoint (*_best.pt), because it was not evaluated; use the last one."
            )
    problems: list[str] = []
    for candidate in candidates:
        try:
            checkpoint = read(candidate)
        except CheckpointError as error:
            problems.append(str(error))
            continue
        note = f"{problems[0]} Using {candidate.name} instead." if problems else None
        return LoadedCheckpoint(candidate, checkpoint, note)
    raise CheckpointError(" ".join(problems))


def replay_folder(checkpoint: Path) -> Path:
    """Return the folder beside a checkpoint that holds its replay buffer."""
    return checkpoint.with_name(checkpoint.name.removesuffix(".pt") + ".replay")


def versions() -> dict[str, str]:
    """Return the versions of Python, the platform and the packages that affect a result."""
    found = {"python": platform.python_version(), "platform": platform.platform()}
    for package in _PACKAGES:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return found


def command_line() -> str:
    """Return the command that started this process."""
    module = getattr(getattr(sys.modules["__main__"], "__spec__", None), "name", "__main__")
    # A script has no spec; a folder that is run is named "__main__".
    program = Path(sys.argv[0]).name if module == "__main__" else f"python -m {module.removesuffix('.__main__')}"
    return " ".join([program, *sys.argv[1:]])
