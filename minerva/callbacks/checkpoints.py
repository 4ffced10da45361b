"""Checkpoints of one's own beside those of the run."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

from minerva.callbacks.base import Callback
from minerva.callbacks.checks import whole_number
from minerva.callbacks.every_n_steps import reached_multiple


class CheckpointCallback(Callback):
    """Keeps the run as it was every so many steps: ``<algo>_step<steps>.pt`` in its folder.

    The run's own checkpoints, last and best, are written besides. `trainer.load` goes on from any of them; put this
    callback after those that log, so that what they log at the same step is kept with it.

    Args:
        every: Environment steps between checkpoints.
        keep: How many to keep, the oldest of more are deleted; None for all.
        memory: Whether MPO's replay is saved with each of them. Without it, training can still go on from one, but has
            to collect anew.

    Raises:
        ValueError: An argument breaks a rule.
    """

    def __init__(self, every: int, keep: int | None = None, memory: bool = False) -> None:
        self.every = whole_number("every", every)
        self.keep = None if keep is None else whole_number("keep", keep)
        self.memory = memory

    def on_step(self, trainer: Any) -> None:
        """Write one, if it is time, and then delete what is too many."""
        if reached_multiple(trainer, self.every):
            trainer.save(trainer.out_dir / f"{trainer.algorithm}_step{trainer.env_steps}.pt", memory=self.memory)
            if self.keep is not None:
                self._delete_older(trainer, self.keep)

    def _delete_older(self, trainer: Any, keep: int) -> None:
        # By what is in the folder, not by what this object has written: a resumed run counts the earlier ones, too.
        # Those of a later step were left by a run that was killed beyond its last checkpoint, and are written anew.
        written: list[tuple[int, Path]] = []
        for path in trainer.out_dir.iterdir():
            match = re.fullmatch(rf"{re.escape(trainer.algorithm)}_step(\d+)\.pt", path.name)
            if match is not None and int(match[1]) <= trainer.env_steps:
                written.append((int(match[1]), path))
        for _, path in sorted(written)[:-keep]:
            path.unlink(missing_ok=True)
            shutil.rmtree(path.with_suffix(".memory"), ignore_errors=True)
