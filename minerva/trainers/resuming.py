"""Continuing from a checkpoint: the whole run, or a new run with its policy."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Any

from minerva import checkpointing
from minerva.checkpointing import CheckpointError
from minerva.environments.spaces import space_to_plain
from minerva.storage.segments import DamagedReplayError
from minerva.trainers.run_folder import ImportantNote, last_version
from minerva.trainers.saved import SavedRun
from minerva.utils.structure import check, optional

if TYPE_CHECKING:
    from minerva.trainers.trainer import Trainer


def resume(trainer: Trainer, path: Path) -> None:
    """Load a run from a checkpoint or a run's folder into a trainer.

    Raises:
        CheckpointError: As for `Trainer.load`; nothing is changed then.
    """
    last = last_version(path if path.is_dir() else path.parent, trainer.algorithm)  # before it is read
    file, checkpoint, damaged = checkpointing.look_up(path)
    folder = file.parent.absolute()  # before episodes are replayed: an environment may change the current folder
    saved = _read(trainer, file, checkpoint, (*trainer.fixed_fields, *trainer.resumed_fields))
    replay, index = trainer.replay, saved.replay
    with saved.explained():
        trainer.check_state(saved.state)
        check(index, None if replay is None else optional(replay.check_index), "replay")
    if saved.seed != trainer.seed:  # only the evaluation still uses the constructor's seed
        trainer.seed = saved.seed
        trainer.evaluator.close()
        trainer.evaluator = trainer.make_evaluator()
    lost = "this checkpoint holds no replay buffer"
    if replay is not None and index is not None:
        try:
            replay.load(checkpointing.replay_folder(file), index)
        except DamagedReplayError as error:  # what was learned is intact, and worth more than what was collected
            index, lost = None, str(error).rstrip(".")
    note = trainer.load_state_dict(saved.state)
    trainer.run_state = dataclasses.replace(saved.run, out_dir=folder, last_checkpoint=last)
    forgotten = f"{lost}: {trainer.restart_with_empty_replay()}" if replay is not None and index is None else None
    inexact = note if saved.run.started else None  # otherwise there is no episode yet to return to
    trainer.notes.append(f"Resuming from {file.name} at step {trainer.env_steps:,}.")
    notes = (damaged, *(f"Note: {sentence}." for sentence in (inexact, forgotten) if sentence is not None))
    trainer.notes.extend(ImportantNote(sentence) for sentence in notes if sentence is not None)


def start_from(trainer: Trainer, path: Path) -> None:
    """Load only the policy of another run into a trainer, to start a new run with it.

    Raises:
        CheckpointError: As for `Trainer.load`; nothing is changed then.
    """
    file, checkpoint, damaged = checkpointing.look_up(path)
    saved = _read(trainer, file, checkpoint, trainer.fixed_fields)
    with saved.explained():
        trainer.check_policy(saved.state)
    if damaged is not None:
        trainer.notes.append(ImportantNote(damaged))
    trainer.load_policy(saved.state)
    trainer.notes.append(f"Starting from the policy in {file}.")


def _read(trainer: Trainer, file: Path, checkpoint: dict[str, Any], fixed_fields: tuple[str, ...]) -> SavedRun:
    """Read a checkpoint of the trainer's algorithm, environment and shape."""
    algorithm, env = trainer.algorithm, trainer.env
    if checkpoint["algorithm"] != algorithm:
        raise CheckpointError(
            f"checkpoint: {file} is one of {checkpoint['algorithm']}, not of {algorithm}; "
            f"use `minerva train {checkpoint['algorithm']}`."
        )
    saved = SavedRun.read(file, checkpoint, type(trainer.config))
    for which, ours, theirs in (
        ("observation space", env.raw_observation_space, saved.observation_space),
        ("action space", env.action_space, saved.action_space),
    ):
        if space_to_plain(theirs) != space_to_plain(ours):
            raise CheckpointError(
                f"checkpoint: {file} was made on {saved.env_id}, whose {which} is not that of {trainer.env_name} "
                f"({ours}); choose the same environment."
            )
    its, plain = saved.config.to_plain(), trainer.config.to_plain()
    for name in fixed_fields:
        if its[name] != plain[name]:
            raise CheckpointError(
                f"checkpoint: {file} was made with {name} = {its[name]}, got {plain[name]}; give the same."
            )
    return saved
