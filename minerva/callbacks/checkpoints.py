"""A callback that saves extra checkpoints."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

from minerva.callbacks.base import Callback
from minerva.callbacks.checks import positive_int
from minerva.callbacks.every_n_steps import reached_multiple


class CheckpointCallback(Callback):
    """Save a checkpoint every `every` steps: ``<algo>_step<steps>.pt`` in the run's folder.

    The run still writes its own checkpoints, last and best. `trainer.load` resumes from any of them. Put this callback
    after those that log, so that the checkpoint includes what they log at the same step.

    Args:
        every: Environment steps between checkpoints.
        keep: Number of checkpoints to keep; older ones are deleted. None keeps all.
        replay: Whether to save MPO's replay buffer with each checkpoint. Without it, a resumed run has to fill the
            buffer again.

    Raises:
        ValueError: An argument is not a positive integer.
    """

    def __init__(self, every: int, keep: int | None = None, replay: bool = False) -> None:
        self.every = positive_int("every", every)
        self.keep = None if keep is None else positive_int("keep", keep)
        self.replay = replay

    def on_step(self, trainer: Any) -> None:
        """Save a checkpoint if one is due, then delete the oldest beyond `keep`."""
        if reached_multiple(trainer, self.every):
            trainer.save(trainer.out_dir / f"{trainer.algorithm}_step{trainer.env_steps}.pt", replay=self.replay)
            if self.keep is not None:
                self._delete_older(trainer, self.keep)

    def _delete_older(self, trainer: Any, keep: int) -> None:
        # Counts the files in the folder, so that a resumed run includes those written before. Files of later steps were
        # left by a run that was killed after its last checkpoint; they will be overwritten.
        written: list[tuple[int, Path]] = []
        for path in trainer.out_dir.iterdir():
            match = re.fullmatch(rf"{re.escape(trainer.algorithm)}_step(\d+)\.pt", path.name)
            if match is not None and int(match[1]) <= trainer.env_steps:
                written.append((int(match[1]), path))
        for _, path in sorted(written)[:-keep]:
            path.unlink(missing_ok=True)
            shutil.rmtree(path.with_suffix(".replay"), ignore_errors=True)
