"""The files of a run's folder that describe it: ``config.json``, ``notes.log``, and whether it holds a run."""

from __future__ import annotations

import itertools
import json
import os
import re
import time
from collections.abc import Sequence
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from minerva import checkpointing

if TYPE_CHECKING:
    from minerva.trainers.trainer import Trainer

DESCRIPTION = "config.json"
NOTES = "notes.log"


class ImportantNote(str):
    """A note that must reach the user whatever the console setting, such as how a damaged run was resumed."""

    __slots__ = ()


Version: TypeAlias = tuple[int, int, int] | None
"""Which file it is that has a name: compare to see whether it was replaced."""


def default_folder(algorithm: str, env_name: str, seed: int) -> Path:
    """Return the name of a new folder under ``runs/``."""
    folder = Path("runs") / algorithm / folder_name(env_name) / f"{time.strftime('%Y%m%d-%H%M%S')}-seed{seed}"
    others = (folder.with_name(f"{folder.name}-{k}") for k in itertools.count(2))
    return folder if not folder.exists() else next(other for other in others if not other.exists())


def folder_name(env_name: str) -> str:
    """Return an environment's name as part of a path, of letters, digits, "_", "." and "-"."""
    return re.sub(r"-?\.-?", ".", re.sub(r"[^\w.]+", "-", env_name)).strip("-.")


def make_folder(folder: Path, shown: Path) -> None:
    """Create a run's folder, which the user gave as `shown`.

    Raises:
        ValueError: It cannot be written to.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        writable = os.access(folder, os.W_OK)
    except OSError as error:
        raise ValueError(f"out_dir: {shown} cannot be created ({error.strerror}); choose another folder.") from error
    if not writable:
        raise ValueError(f"out_dir: {shown} cannot be written to; choose another folder.")


def holds_a_run(folder: Path) -> bool:
    """Return whether a folder was written by a run."""
    return (folder / DESCRIPTION).exists() or any(folder.glob("*_last.pt"))


def last_version(folder: Path, algorithm: str) -> Version:
    """Return which version of a run's last checkpoint is in a folder; None if there is none."""
    try:
        status = (folder / f"{algorithm}_last.pt").stat()
    except OSError:
        return None
    return status.st_ino, status.st_mtime_ns, status.st_size


def append_note(folder: Path, text: str, env_steps: int) -> None:
    """Append a line with time and step to the run's ``notes.log``; a disk that is full does not stop the run."""
    moment = datetime.now().astimezone().isoformat(timespec="seconds")
    with suppress(OSError), (folder / NOTES).open("a", encoding="utf-8", errors="replace") as file:
        file.write(f"{moment}  step {env_steps}  {' '.join(text.splitlines())}\n")


def write_description(
    folder: Path, trainer: Trainer, total_steps: int, resumed: bool, notes: Sequence[str]
) -> str | None:
    """Write ``config.json``: what the run was started with, and each time that it was resumed.

    Args:
        folder: The run's folder.
        trainer: What is trained.
        total_steps: When the run ends.
        resumed: Whether the folder holds the run already.
        notes: What is worth knowing about how it was started or resumed.

    Returns:
        A sentence if the description that was there cannot be read, and its start is lost.
    """
    session: dict[str, Any] = {
        "versions": checkpointing.versions(),
        "git_commit": checkpointing.git_commit(),
        "command": checkpointing.command_line(),
    }
    if notes:
        session["notes"] = [str(note) for note in notes]
    description = {
        "algorithm": trainer.algorithm,
        "env_id": trainer.env_name,
        "seed": trainer.seed,
        "total_steps": total_steps,
        "config": trainer.config.to_plain(),
    }
    if trainer.ranks.count > 1:
        description["ranks"] = trainer.ranks.count
    path, problem = folder / DESCRIPTION, None
    if resumed:
        first, problem = _read_description(path)
        sessions = [*first.get("resumed", []), {"from_step": trainer.env_steps, **session}]
        # What the run was started with stays.
        changed = {"total_steps": total_steps, "config": description["config"], "resumed": sessions}
        description = {**description, **(first or session), **changed}
    else:
        description.update(session)
    temporary = path.with_name(f"{DESCRIPTION}.part")
    temporary.write_text(json.dumps(description, indent=2, default=str) + "\n")
    temporary.replace(path)
    return problem


def _read_description(path: Path) -> tuple[dict[str, Any], str | None]:
    """Return the run's description; nothing, and a sentence why, where it cannot be read."""
    try:
        description = json.loads(path.read_text())
        if isinstance(description, dict) and isinstance(description.get("resumed", []), list):
            return description, None
        reason = "it does not describe a run"
    except FileNotFoundError:  # killed just before it was written
        return {}, None
    except (OSError, ValueError, RecursionError) as error:
        reason = f"{type(error).__name__}: {error}"
    return {}, f"{path} cannot be read ({reason}); it is written again, without what the run was started with."
