"""What every trainer is: environments, counters, evaluation, and a state that is saved and loaded whole."""

from __future__ import annotations

import itertools
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from numbers import Integral
from pathlib import Path
from typing import Any, ClassVar, overload

import numpy as np
import torch
from gymnasium import spaces
from numpy.typing import NDArray
from torch import Tensor, nn

from minerva import checkpointing, environments
from minerva.callbacks import CallbackLike
from minerva.checkpointing import CheckpointError
from minerva.environments.ids import EnvFactory
from minerva.environments.spaces import space_to_plain
from minerva.evaluation import Evaluation, Evaluator
from minerva.storage.replay import ReplayBuffer
from minerva.storage.segments import DamagedReplayError
from minerva.trainers.config import DEFAULT_TOTAL_STEPS, RunConfig
from minerva.trainers.run import Run, TrainingResult
from minerva.utils.cores import usable_cores

ROWS_A_THREAD = 256
"""Rows of a gradient step that occupy a thread of torch: with fewer, threads wait for each other too often."""


class Trainer(ABC):
    """The part of a trainer that is the same for every algorithm.

    An algorithm adds its networks and optimizers (`learning_state`, `load_learning_state`), how it acts, and the loop
    that it runs in.

    Attributes:
        env_steps: Environment steps taken, restarting ones included.
        updates: Updates made.
        last_step: What the newest step gave.
        best_return: Highest mean return of an evaluation so far.
    """

    algorithm: ClassVar[str]
    fixed_fields: ClassVar[tuple[str, ...]] = ()
    """Settings that a saved policy is shaped by: one made with others cannot be taken over."""
    resumed_fields: ClassVar[tuple[str, ...]] = ("num_envs",)
    """Settings that the rest of a saved run is shaped by: it cannot go on with others."""
    drops_non_finite: ClassVar[bool] = False
    """Whether a step that is not finite is left out of what is learned from; else the run ends there."""
    config: RunConfig
    agent: nn.Module
    log: Callable[[str, float | Tensor], None]
    """Log a number of a callback's own at the current step; there while a run is open."""
    memory: ReplayBuffer | None = None
    """What is too large to be written whole into each checkpoint; it is saved beside it."""

    def __init__(self, env_id: str | EnvFactory, seed: int, device: str, config: RunConfig) -> None:
        self.env_name = environments.display_name(env_id)
        self.seed = whole_number("seed", seed, at_least=0)
        self.device = resolve_device(device)
        self.config = config
        self.env_steps = 0
        self.updates = 0
        self.next_evaluation = 0
        self.evaluated_at: int | None = None  # the step of the newest evaluation
        self.best_return = -float("inf")
        self.last_step: environments.Step | None = None
        self.started = False  # whether there is anything to go on from
        self.total_steps: int | None = None  # of the newest call of `train`
        self.log_position = 0  # where the log stood when the state was saved
        self.locate_log: Callable[[], int] | None = None  # where it stands now, while a run is open
        self.out_dir: Path | None = None
        self.notes: list[str] = []  # said at the start of the next run
        self._factory = environments.resolve(env_id, config.env_kwargs)
        self.env = self._make_environment(env_id)
        self.notes.append(f"{self.env_name}: {self.env.description}; {self.device.type}.")
        self.evaluator = self._make_evaluator()
        with self.closing_on_error():
            self.action_dim = self._check_action_space()

    @contextmanager
    def closing_on_error(self) -> Iterator[None]:
        """Close the environments where a mistake is found after they were made."""
        try:
            yield
        except ValueError:
            self.close()
            raise

    def _make_environment(self, env_id: str | EnvFactory) -> environments.BatchedEnvironment:
        return environments.make(
            env_id,
            self.config.num_envs,
            self.seed,
            self.config.vectorization,
            self.config.num_workers,
            self.config.env_kwargs,
            self.drops_non_finite,
            self.config.backend,
            self.config.pool_threads,
        )

    def _make_evaluator(self) -> Evaluator:
        config = self.config
        return Evaluator(self._factory, config.eval_episodes, self.seed, config.eval_max_steps, self.drops_non_finite)

    def _check_action_space(self) -> int:
        """Give A.

        Raises:
            ValueError: The action space is not supported.
        """
        space = self.env.action_space
        if not isinstance(space, spaces.Box):
            raise ValueError(
                f"env: {self.env_name} has the action space {space}; {self.algorithm} is for a Box (continuous "
                "actions). Choose such an environment, or use ppo or vmpo."
            )
        return int(np.prod(space.shape))

    # What an algorithm provides

    @abstractmethod
    def useful_threads(self) -> int:
        """Give the number of torch's threads that its gradient steps are fastest with on a CPU of many cores."""

    @abstractmethod
    def begin(self) -> None:
        """Start the first episodes."""

    @abstractmethod
    def run_loop(self, run: Run) -> None:
        """Train until the run ends."""

    @abstractmethod
    def too_short(self, total_steps: int) -> str | None:
        """Say why a run of so many steps would learn nothing; None if it would."""

    @abstractmethod
    def final_step(self, total_steps: int) -> int:
        """Give the environment step at which a run of so many steps ends."""

    @abstractmethod
    def between_updates(self) -> bool:
        """Whether no experience has been collected since the newest update."""

    @abstractmethod
    def deterministic_action(self, obs: Tensor) -> Tensor:
        """Act in raw observations ``[B, O]`` with frozen normalizers: ``[B, A]``."""

    def evaluation_policy(self) -> Callable[[Tensor], Tensor]:
        """Give the policy for the episodes of one evaluation; one with a memory begins with an empty one."""
        return self.deterministic_action

    @abstractmethod
    def learning_state(self) -> dict[str, Any]:
        """Give everything of the algorithm that a run consists of."""

    @abstractmethod
    def load_learning_state(self, state: dict[str, Any]) -> str | None:
        """Take it back; returns a sentence where that is not exact."""

    def moved_from(self, device: str) -> str:
        """Say what a run loses that was on another kind of device before."""
        return (
            f"the run was on {device} and goes on on {self.device.type}, where its noise starts anew: it is not bit "
            "for bit what it would have been"
        )

    def remember_anew(self) -> str:
        """Go on from a checkpoint that was saved without `memory`; returns a sentence about it."""
        raise NotImplementedError

    # Training

    def train(
        self, total_steps: int | None = None, out_dir: str | Path | None = None, callbacks: CallbackLike = None
    ) -> TrainingResult:
        """Train until `total_steps` environment steps have been taken, counted from the run's start.

        Args:
            total_steps: Of all environments together; by default those of the run that was loaded, else a million.
            out_dir: The run's folder; by default a new one under ``runs/``, or the one that was loaded from.
            callbacks: A `Callback`, a function of the trainer that is called at every step, or a list of these.

        Raises:
            ValueError: The folder holds another run, or cannot be written to.
        """
        if total_steps is None:
            total_steps = self.total_steps or DEFAULT_TOTAL_STEPS
        total_steps = whole_number("total_steps", total_steps, at_least=1)
        folder = Path(out_dir) if out_dir is not None else self.out_dir or self.default_folder()
        reason = self.too_short(total_steps)
        if reason is not None:
            print(reason)
            return TrainingResult(folder, self.env_steps, self.updates, None, None, None)
        if self.started and self.out_dir is not None and self.out_dir.resolve() == folder.resolve():
            folder = self.out_dir
        elif holds_a_run(folder):
            raise ValueError(
                f"out_dir: {folder} holds a run already. Go on with it (--resume, or trainer.load), or choose another."
            )
        threads = torch.get_num_threads()
        useful = max(1, min(self.useful_threads(), threads, usable_cores()))
        torch.set_num_threads(self.config.torch_threads or useful)
        try:
            with Run(self, total_steps, folder, callbacks) as run:
                self.run_loop(run)
        finally:
            torch.set_num_threads(threads)
        return TrainingResult(
            folder, self.env_steps, self.updates, run.first_evaluation, run.last_evaluation, run.stopped_by
        )

    def default_folder(self) -> Path:
        """Name a new folder under ``runs/``."""
        moment = time.strftime("%Y%m%d-%H%M%S")
        name = self.env_name.replace("/", "-").replace(":", "-")
        folder = Path("runs") / self.algorithm / name / f"{moment}-seed{self.seed}"
        twins = (folder.with_name(f"{folder.name}-{k}") for k in itertools.count(2))
        return folder if not folder.exists() else next(twin for twin in twins if not twin.exists())

    @overload
    def evaluate(self) -> Evaluation: ...

    @overload
    def evaluate(self, should_stop: Callable[[], bool]) -> Evaluation | None: ...

    def evaluate(self, should_stop: Callable[[], bool] | None = None) -> Evaluation | None:
        """Run deterministic episodes in environments of their own; None where `should_stop` broke it off."""
        policy = self.evaluation_policy()

        @torch.no_grad()
        def act(observations: NDArray[Any]) -> NDArray[np.float32]:
            actions: NDArray[np.float32] = policy(torch.from_numpy(observations).to(self.device)).cpu().numpy()
            return actions

        return self.evaluator.run(act, should_stop or (lambda: False))

    def close(self) -> None:
        """Close the environments."""
        self.env.close()
        self.evaluator.close()

    # State

    def state_dict(self) -> dict[str, Any]:
        """Give the whole run: networks, optimizers, normalizers, counters, generators, rollout, environments."""
        if self.locate_log is not None:
            self.log_position = self.locate_log()
        return {
            "started": self.started,
            "env_steps": self.env_steps,
            "updates": self.updates,
            "next_evaluation": self.next_evaluation,
            "evaluated_at": self.evaluated_at,
            "best_return": self.best_return,
            "log_position": self.log_position,
            **self.learning_state(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> str | None:
        """Take a run back; returns a sentence where its environments could not do so exactly."""
        self.started = state["started"]
        self.env_steps = state["env_steps"]
        self.updates = state["updates"]
        self.next_evaluation = state["next_evaluation"]
        self.evaluated_at = state["evaluated_at"]
        self.best_return = state["best_return"]
        self.log_position = state["log_position"]
        return self.load_learning_state(state)

    def save(self, path: str | Path, memory: bool = True) -> None:
        """Write a checkpoint from which training goes on exactly.

        Args:
            path: The file. A replay is written into a folder beside it, ``<name>.memory``: only what is new in it.
            memory: Whether the replay is saved too. Without it a run that goes on from here has to collect anew.
        """
        path = Path(path)
        folder = memory_folder(path)
        index = self.memory.save(folder) if memory and self.memory is not None else None
        checkpointing.write(
            path,
            {
                "memory": index,
                "algorithm": self.algorithm,
                "env_id": self.env_name,
                "seed": self.seed,
                "device": self.device.type,
                "total_steps": self.total_steps,
                "config": self.config.to_plain(),
                "observation_space": space_to_plain(self.env.raw_observation_space),
                "action_space": space_to_plain(self.env.action_space),
                "mask_dim": self.env.mask_dim,
                "state": self.state_dict(),
            },
        )
        if index is not None and self.memory is not None:
            self.memory.clean(folder, index)  # not before: until here, the files were those of the old checkpoint

    def load(self, path: str | Path) -> None:
        """Go on from a checkpoint, or from the newest one in a run's folder.

        Raises:
            CheckpointError: It cannot be read, or belongs to another algorithm, environment or shape.
        """
        file, checkpoint, note = checkpointing.look_up(Path(path))
        self._check(file, checkpoint, (*self.fixed_fields, *self.resumed_fields))
        if note is not None:
            self.notes.append(note)
        if checkpoint["seed"] != self.seed:  # what is left of the constructor's seed are the evaluation's
            self.seed = checkpoint["seed"]
            self.evaluator.close()
            self.evaluator = self._make_evaluator()
        index, lost = checkpoint.get("memory"), "this checkpoint holds no replay"
        if self.memory is not None and index is not None:
            try:
                self.memory.load(memory_folder(file), index)
            except DamagedReplayError as error:  # what was learned is whole, and worth more than what was collected
                index, lost = None, str(error).rstrip(".")
        note = self.load_state_dict(checkpoint["state"])
        forgotten = f"{lost}: {self.remember_anew()}" if self.memory is not None and index is None else None
        self.out_dir = file.parent
        self.total_steps = checkpoint["total_steps"]
        self.notes.append(f"Going on from {file.name} at step {self.env_steps:,}.")
        self.notes.extend(f"Note: {text}." for text in (note, forgotten) if text is not None)

    def init_from(self, path: str | Path) -> None:
        """Start a new run with the policy (networks and observation normalizer) of another one.

        Raises:
            CheckpointError: As for `load`.
        """
        file, checkpoint, note = checkpointing.look_up(Path(path))
        self._check(file, checkpoint, self.fixed_fields)
        if note is not None:
            self.notes.append(note)
        self.agent.load_state_dict(checkpoint["state"]["agent"])
        self.notes.append(f"Starting from the policy in {file}.")

    def _check(self, file: Path, checkpoint: dict[str, Any], fixed_fields: tuple[str, ...]) -> None:
        if checkpoint["algorithm"] != self.algorithm:
            raise CheckpointError(
                f"checkpoint: {file} is one of {checkpoint['algorithm']}, not of {self.algorithm}; "
                f"use `minerva train {checkpoint['algorithm']}`."
            )
        for which, space in (
            ("observation_space", self.env.raw_observation_space),
            ("action_space", self.env.action_space),
        ):
            if checkpoint[which] != space_to_plain(space):
                raise CheckpointError(
                    f"checkpoint: {file} was made on {checkpoint['env_id']}, whose {which.replace('_', ' ')} is not "
                    f"that of {self.env_name} ({space}); choose the same environment."
                )
        plain = self.config.to_plain()
        for name in fixed_fields:
            if checkpoint["config"][name] != plain[name]:
                raise CheckpointError(
                    f"checkpoint: {file} was made with {name} = {checkpoint['config'][name]}, got {plain[name]}; "
                    "give the same."
                )


def whole_number(name: str, value: Any, at_least: int) -> int:
    """Take a whole number, NumPy's too.

    Raises:
        ValueError: It is none, or too small.
    """
    if not isinstance(value, Integral) or value < at_least:
        raise ValueError(f"{name}: must be a whole number from {at_least} on, got {value!r}.")
    return int(value)


def resolve_device(name: str) -> torch.device:
    """Turn "auto", "cpu", "cuda" or "cuda:1" into a device.

    Raises:
        ValueError: It does not exist here.
    """
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        raise ValueError(f"device: {name!r} is not to be had here; use auto or cpu.") from error
    return device


def memory_folder(checkpoint: Path) -> Path:
    """Name the folder beside a checkpoint that holds what is too large for it."""
    return checkpoint.with_name(checkpoint.name.removesuffix(".pt") + ".memory")


def holds_a_run(folder: Path) -> bool:
    """Whether a folder was written by a run."""
    return (folder / "config.json").exists() or any(folder.glob("*_last.pt"))
