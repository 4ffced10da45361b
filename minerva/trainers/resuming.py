"""Continuing from a checkpoint: the whole run, a new run with its policy, or whichever run a folder holds."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from minerva import checkpointing
from minerva.checkpointing import CheckpointError
from minerva.environments.spaces import space_to_plain
from minerva.storage.segments import DamagedReplayError
from minerva.trainers.config import FREE_FIELDS, RunConfig
from minerva.trainers.run_folder import ImportantNote, holds_a_run, last_version
from minerva.trainers.saved import SavedRun
from minerva.utils.ranks import Ranks
from minerva.utils.structure import anything, check, dict_of, list_of, optional

if TYPE_CHECKING:
    from minerva.trainers.trainer import Trainer


class FoundRun(NamedTuple):
    """The run that a folder holds."""

    env_steps: int
    updates: int
    finished: bool  # it has taken all its steps
    seconds: float  # as in `RunState`, like the next
    evaluation_seconds: float


def find_run(
    folder: Path, algorithm: str, env_name: str, seed: int, config: RunConfig, total_steps: int
) -> FoundRun | None:
    """Find the run to resume in a folder; None where the folder holds no run.

    Args:
        folder: The folder, which may be missing.
        algorithm: What the run must have been made with, like the following.
        env_name: The environment's name.
        seed: The seed.
        config: The settings. Those in `FREE_FIELDS` may differ.
        total_steps: When the run ends: not sooner than it was to end before.

    Raises:
        ValueError: The run is another one; the message names the first difference.
        CheckpointError: It has no checkpoint that can be read.
    """
    if not holds_a_run(folder):
        return None
    path, checkpoint, _ = checkpointing.look_up(folder)
    _expect_same(folder, "algorithm", checkpoint["algorithm"], algorithm)
    saved = SavedRun.read(path, checkpoint, type(config))
    _expect_same(folder, "env", saved.env_id, env_name)
    _expect_same(folder, "seed", saved.seed, seed)
    its, ours = saved.config.to_plain(), config.to_plain()
    for name in ours:
        if name not in FREE_FIELDS:
            _expect_same(folder, name, its[name], ours[name])
    state = saved.run
    if state.total_steps is not None and total_steps < state.total_steps:
        raise ValueError(
            f"total_steps: must be at least {state.total_steps}, because {folder} holds a run of so many steps, got "
            f"{total_steps}; give as many or more, or choose another folder."
        )
    all_taken = state.started and state.env_steps >= config.final_step(total_steps)
    evaluated = not config.eval_episodes or state.evaluated_at == state.env_steps
    finished = all_taken and evaluated and total_steps == state.total_steps
    return FoundRun(state.env_steps, state.updates, finished, state.seconds, state.evaluation_seconds)


def _expect_same(folder: Path, name: str, its: Any, ours: Any) -> None:
    if its != ours:
        raise ValueError(
            f"out_dir: {folder} holds a run with {name} = {its!r}, got {ours!r}; give the same, or choose another "
            "folder."
        )


def resume(trainer: Trainer, path: Path) -> None:
    """Load a run from a checkpoint or a run's folder into a trainer.

    Raises:
        CheckpointError: As for `Trainer.load`; nothing is changed then.
    """
    last = last_version(path if path.is_dir() else path.parent, trainer.algorithm)  # before it is read
    file, checkpoint, damaged = checkpointing.look_up(path)
    folder = file.parent.absolute()  # before episodes are replayed: an environment may change the current folder
    saved = _own(_read(trainer, file, checkpoint, (*trainer.fixed_fields, *trainer.resumed_fields)), trainer.ranks)
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


def _own(saved: SavedRun, ranks: Ranks) -> SavedRun:
    """Return a saved run with the state of this process.

    Raises:
        CheckpointError: It was trained by another number of processes.
    """
    state = saved.state.copy()
    others = state.pop("ranks", [])
    with saved.explained():
        check(others, list_of(dict_of(anything)), "state.ranks")
    if len(others) + 1 != ranks.count:
        needed = len(others) + 1
        start = f"start it with torchrun --nproc-per-node {needed}" if needed > 1 else "start it without torchrun"
        raise CheckpointError(
            f"checkpoint: {saved.path} was written by a run of {needed} process{'es' * (needed > 1)} and resumes with "
            f"as many, got {ranks.count}; {start}, or use its policy alone (--init-from)."
        )
    own = {} if ranks.rank == 0 else others[ranks.rank - 1]
    return saved._replace(state={**state, **own})


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
