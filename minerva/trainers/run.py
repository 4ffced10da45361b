"""A run: its folder, log, evaluations, checkpoints, callbacks and signals, and the state that belongs to these."""

from __future__ import annotations

import signal
import threading
import time
import warnings
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from minerva.callbacks import CallbackLike, CallbackList
from minerva.environments import Episode, Step
from minerva.evaluation import Evaluation
from minerva.loggers import ConsoleLogger, CsvLogger, Logger, LoggerList, open_tensorboard, open_wandb
from minerva.loggers.base import check_name
from minerva.trainers.result import TrainingResult
from minerva.trainers.run_clock import RunClock
from minerva.trainers.run_folder import (
    ImportantNote,
    Version,
    append_note,
    holds_a_run,
    last_version,
    make_folder,
    write_description,
)
from minerva.utils.folder_lock import FolderLock

if TYPE_CHECKING:
    from minerva.trainers.trainer import Trainer

EVALUATIONS_PER_RUN = 30
CLOCK_FIELDS = frozenset({"log_position", "seconds", "evaluation_seconds"})
"""Fields of `RunState` that depend on the clock: all others are the same in two runs of one seed. The log is longer or
shorter where its numbers of seconds are."""


@dataclass
class RunState:
    """How far a run has come: steps, updates, evaluations and the position in its log.

    It is saved beside the trainer's state.
    """

    started: bool = False  # whether the first episodes have begun
    env_steps: int = 0  # restarting steps included
    updates: int = 0
    next_evaluation: int = 0  # the environment step from which on an evaluation is due
    evaluated_at: int | None = None  # the environment step of the newest evaluation
    best_return: float = -float("inf")  # highest mean return of an evaluation so far
    log_position: int = 0  # length of the log in bytes
    total_steps: int | None = None  # of the newest call of `train`
    out_dir: Path | None = None  # absolute: an environment may change the current folder
    last_checkpoint: Version = None  # the last checkpoint in `out_dir` when this process read or wrote it
    seconds: float = 0.0  # wall time within `train`, over all resumes
    evaluation_seconds: float = 0.0  # the part of it that evaluations took

    def to_plain(self) -> dict[str, Any]:
        """Return what a checkpoint holds: everything but the folder and what is in it."""
        return {name: value for name, value in asdict(self).items() if name not in ("out_dir", "last_checkpoint")}


class Run:
    """One call of `train`, from opening the folder to closing it.

    An error saves the run first, if it comes between two steps. In the middle of an update it does not, and the last
    checkpoint stays as it was.

    Args:
        trainer: What is trained. The run asks it to begin, to evaluate and to save.
        state: How far the run has come; kept up to date.
        total_steps: When the run ends.
        out_dir: The folder, as an absolute path.
        callbacks: The user's.
        shown: The folder as the user gave it, for messages.
    """

    def __init__(
        self,
        trainer: Trainer,
        state: RunState,
        total_steps: int,
        out_dir: Path,
        callbacks: CallbackLike,
        shown: Path,
    ) -> None:
        self.trainer = trainer
        self.state = state
        self.total_steps = total_steps
        self.out_dir = out_dir
        self.shown = shown
        self.callbacks = CallbackList(callbacks)
        self.first_evaluation: Evaluation | None = None
        self.last_evaluation: Evaluation | None = None
        self.stopped_by: str | None = None
        self._stop_signal: int | None = None
        self._console: ConsoleLogger | None = None
        self._lock = FolderLock(out_dir, shown)
        self._closing = ExitStack()
        self._between_steps = False
        self._eval_interval = trainer.config.eval_interval or max(1, total_steps // EVALUATIONS_PER_RUN)

    # Opening and closing

    def __enter__(self) -> Self:
        self.clock = RunClock(self.state)
        make_folder(self.out_dir, self.shown)
        self._closing.callback(self._lock.release)  # first: an interrupt may come between the two
        try:
            self._lock.acquire()
            resumed = self._check_folder()
            self._open(resumed)
            self._start(resumed)
        except BaseException:
            self._closing.close()
            raise
        return self

    def _check_folder(self) -> bool:
        """Return whether the folder holds this run; only now, because before the lock another may have trained in it.

        Raises:
            ValueError: It holds another run, or more of this one than was loaded.
        """
        state = self.state
        if not (state.started and state.out_dir == self.out_dir):
            if holds_a_run(self.out_dir):
                raise ValueError(
                    f"out_dir: {self.shown} holds a run already. Resume it (--resume, or trainer.load), or choose "
                    "another."
                )
            return False
        version = last_version(self.out_dir, self.trainer.algorithm)
        if version not in (None, state.last_checkpoint):
            raise ValueError(
                f"out_dir: another process has trained the run in {self.shown} since it was loaded at step "
                f"{state.env_steps:,}; load it again."
            )
        return True

    def _open(self, resumed: bool) -> None:
        trainer, state = self.trainer, self.state
        self._csv = CsvLogger(self.out_dir / "metrics.csv", self.warn)
        self._closing.callback(self._csv.close)
        if trainer.config.console:
            title = f"{trainer.algorithm} {trainer.env_name}"
            self._console = ConsoleLogger(trainer.final_step(self.total_steps), state.env_steps, title)
            self._closing.callback(self._console.close)
        if resumed:
            self._csv.truncate(state.log_position)
        state.total_steps = self.total_steps
        self._tensorboard = LoggerList([self._open_tensorboard()], self.warn)
        self._log = LoggerList([self._csv, self._console, self._tensorboard, self._open_wandb()], self.warn)
        self._closing.callback(self._log.close)
        self._catch_signals()
        self._last_save = time.perf_counter()
        self._next_checkpoint = self._next_multiple(self.trainer.config.checkpoint_interval)

    def _start(self, resumed: bool) -> None:
        trainer, state = self.trainer, self.state
        notes, trainer.notes = trainer.notes, []
        for note in notes:
            tell = self.warn if isinstance(note, ImportantNote) else self.say
            tell(note)
        final = trainer.final_step(self.total_steps)
        if final != self.total_steps:
            self.say(f"The run ends at step {final:,}, not {self.total_steps:,}: it consists of whole {trainer.unit}.")
        if not state.started:
            trainer.begin()
            state.started = True
        state.out_dir = self.out_dir
        if not resumed:  # a new run, or one that continues in another folder
            state.best_return = -float("inf")
            self.save_last()
        # Only now, with a checkpoint beside it: a folder that holds a run can always be resumed.
        important = [note for note in notes if isinstance(note, ImportantNote)]
        problem = write_description(self.out_dir, trainer, self.total_steps, resumed, important)
        if problem is not None:
            self.warn(problem)
        self._between_steps = True
        if self._evaluation_due() and trainer.between_updates():  # the first one, or one that a signal interrupted
            self.evaluate()
            self.first_evaluation = self.last_evaluation if state.env_steps == 0 else None
        self.callbacks.on_training_start(trainer)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            if error is None:
                self._finish()
            elif (
                self._lock.lost is None
                and self._complete
                and not (self._stop_signal is not None and isinstance(error, KeyboardInterrupt))
            ):
                self.save_last()
                self.say(f"Stopped at step {self.state.env_steps:,}; everything up to here is saved in {self.shown}.")
            if self._between_steps:
                self.callbacks.on_training_end(self.trainer)
        finally:
            if self._lock.lost is not None:  # nothing may be written
                self._csv.discard()
            self._closing.close()
        if error is None and self._stop_signal is not None:
            if self._stop_signal == signal.SIGINT:
                raise KeyboardInterrupt
            raise SystemExit(128 + self._stop_signal)

    @property
    def _complete(self) -> bool:
        """Whether the trainer's state can be saved now."""
        return self._between_steps

    def _finish(self) -> None:
        at_end = self.state.evaluated_at == self.state.env_steps
        if self._stop_signal is None and self.trainer.config.eval_episodes and not at_end:
            # After a callback's stop it is an extra one, which the schedule of a resumed run does not know.
            self.evaluate(scheduled=self.stopped_by is None)
        self.save_last()
        if self._stop_signal is not None:
            name = signal.Signals(self._stop_signal).name
            self.say(f"{name}: saved at step {self.state.env_steps:,} in {self.shown}.")

    def result(self) -> TrainingResult:
        """Return how far the run came, and where its files are."""
        return TrainingResult(
            algorithm=self.trainer.algorithm,
            env_id=self.trainer.env_name,
            seed=self.trainer.seed,
            out_dir=self.shown,
            env_steps=self.state.env_steps,
            updates=self.state.updates,
            first_evaluation=self.first_evaluation,
            last_evaluation=self.last_evaluation,
            stopped_by=self.stopped_by,
            seconds=self.state.seconds,
            evaluation_seconds=self.state.evaluation_seconds,
        )

    # What the loops call

    def stopping(self) -> bool:
        """Return whether a signal or a callback has asked for the end."""
        return self._stop_signal is not None or self.stopped_by is not None

    def step_done(self, step: Step) -> None:
        """Count a step of all environments, log its episodes, and call callbacks and checkpoints."""
        if self._lock.lost is not None:
            raise self._lock.lost
        self.state.env_steps += len(step.rewards)
        self._after_step(step)

    def _after_step(self, step: Step) -> None:
        trainer = self.trainer
        for episode in step.episodes:
            self._log_episode(episode, self.state.env_steps)
        if self.callbacks.callbacks and not self.callbacks.on_step(trainer):
            self.stopped_by = "callback"
        if self._console is not None:
            self._console.progress(self.state.env_steps)
        minutes = trainer.config.checkpoint_minutes
        due = self._next_checkpoint is not None and self.state.env_steps >= self._next_checkpoint
        if due or (minutes > 0 and time.perf_counter() - self._last_save > 60 * minutes):
            self.save_last()

    def _log_episode(self, episode: Episode, at: int) -> None:
        self._log.log({"train/episode_return": episode.episode_return, "train/episode_length": episode.length}, at)

    @contextmanager
    def updating(self, count: int) -> Iterator[None]:
        """Count updates that are made within a `with` block; until its end the trainer's state must not be saved."""
        self._between_steps = False
        yield
        self.state.updates += count
        self._between_steps = True

    def update_done(self, metrics: Mapping[str, float]) -> None:
        """Log the metrics of updates, if there are any, and evaluate if it is due."""
        if metrics:
            self.log({**metrics, **self.clock.metrics()})
        if self._evaluation_due():
            self.evaluate()

    def log(self, metrics: Mapping[str, float]) -> None:
        """Log at the current environment step."""
        self._log.log(metrics, self.state.env_steps)

    def log_value(self, name: str, value: float | Tensor) -> None:
        """Log a number of a callback's own at the current environment step, for `trainer.log`.

        Args:
            name: Such as "policy/std".
            value: A number, or a tensor or array of one; what is not finite is logged as it is.

        Raises:
            ValueError: The name cannot be used (see `check_name`), or the value is no number.
        """
        check_name(name)
        received: Any = value.detach() if isinstance(value, Tensor) else value
        try:
            number = None if isinstance(received, str) else float(received)
        except (TypeError, ValueError, RuntimeError):  # a tensor of several numbers raises the last of them
            number = None
        if number is None:
            raise ValueError(f"{name}: must be one number, got {received!r}.")
        self.log({name: number})

    @property
    def takes_arrays(self) -> bool:
        """Return whether `histograms` and `images` write anything: ask before computing what is expensive."""
        return self.trainer.config.full_tensorboard_log

    def histograms(self, arrays: Mapping[str, Tensor | NDArray[Any]]) -> None:
        """Write histograms of arrays to TensorBoard; nothing without `full_tensorboard_log`."""
        if self.takes_arrays:
            for name, array in arrays.items():
                values = array.detach().cpu().numpy() if isinstance(array, Tensor) else array
                self._tensorboard.write_histogram(self.state.env_steps, name, values)

    def images(self, arrays: Mapping[str, NDArray[np.uint8]]) -> None:
        """Write images ``[H, W, C]``, uint8 and C 1 or 3, to TensorBoard; nothing without `full_tensorboard_log`.

        Raises:
            ValueError: One is no such image.
        """
        if self.takes_arrays:
            for name, array in arrays.items():
                if array.dtype != np.uint8 or array.ndim != 3 or array.shape[2] not in (1, 3):
                    raise ValueError(
                        f"{name}: must be an image [H, W, C] of uint8 with C 1 or 3, got {array.dtype} {array.shape}."
                    )
                self._tensorboard.write_image(self.state.env_steps, name, array)

    def say(self, text: str) -> None:
        """Tell the user how the run proceeds, on the console and in ``notes.log``."""
        self._note(text)
        if self._console is not None:
            self._console.message(text)

    def warn(self, text: str) -> None:
        """Tell the user what must not be missed: as `say`, and as a Python warning where there is no console."""
        self._note(f"Warning: {text}")
        if self._console is not None:
            self._console.message(text)
        else:  # without a registry, which would suppress the same warning of a second run
            warnings.warn_explicit(text, RuntimeWarning, __file__, 0, __name__)

    def _note(self, text: str) -> None:
        if self._lock.lost is None:
            append_note(self.out_dir, text, self.state.env_steps)

    # Evaluations and checkpoints

    def _evaluation_due(self) -> bool:
        return self.trainer.config.eval_episodes > 0 and self.state.env_steps >= self.state.next_evaluation

    def evaluate(self, scheduled: bool = True) -> None:
        """Evaluate, log it, and write the checkpoints that follow an evaluation.

        If a signal interrupts it, nothing has happened: it is still due when the run resumes.
        """
        state = self.state
        evaluation = self.trainer.evaluate(should_stop=lambda: self._stop_signal is not None)
        if evaluation is None:
            return
        self.last_evaluation = evaluation
        state.evaluated_at = state.env_steps
        metrics = evaluation.metrics()
        self.log({**metrics, **self.clock.metrics()})
        if scheduled:
            state.next_evaluation = self._next_multiple(self._eval_interval) or 0
        is_best = metrics["eval/return_mean"] > state.best_return
        if is_best:
            state.best_return = metrics["eval/return_mean"]
            self._save("best")  # first: a `last` that knows of a better return than `best` holds would never repair it
        self.save_last()

    def save_last(self) -> None:
        """Write the last checkpoint."""
        self._save("last")
        self._last_save = time.perf_counter()
        self._next_checkpoint = self._next_multiple(self.trainer.config.checkpoint_interval)

    def _save(self, which: str) -> None:
        path = self.out_dir / f"{self.trainer.algorithm}_{which}.pt"
        self.trainer.save(path, replay=which == "last")

    def ask_for_states(self) -> None:
        """Let the other processes send what they collect, before this one collects it; there are none."""

    def before_save(self) -> None:
        """Note in the run's state where the log and the clock stand, as is due before it is saved.

        Raises:
            FolderLostError: The run's folder was deleted, or another process took it over.
        """
        self._lock.check()
        self.clock.read()
        self.state.log_position = self._csv.position()

    def _next_multiple(self, interval: int | None) -> int | None:
        return None if interval is None else (self.state.env_steps // interval + 1) * interval

    # Loggers, signals

    def _open_tensorboard(self) -> Logger | None:
        if not self.trainer.config.tensorboard:
            return None
        purge = self.state.env_steps + 1 if self.state.started else None
        return open_tensorboard(self.out_dir / "tensorboard", purge)

    def _open_wandb(self) -> Logger | None:
        config = self.trainer.config
        if config.wandb == "off":
            return None
        name = f"{self.trainer.algorithm}-{self.trainer.env_name}-seed{self.trainer.seed}".replace("/", "-")
        return open_wandb(config.wandb, self.out_dir, config.wandb_project, name, config.to_plain())

    def _catch_signals(self) -> None:
        if threading.current_thread() is not threading.main_thread():
            return  # Python delivers signals to the main thread alone
        for number in (signal.SIGINT, signal.SIGTERM):
            self._closing.callback(signal.signal, number, signal.signal(number, self._on_signal))

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self._stop_signal is not None:  # the second time: the user does not want to wait
            raise KeyboardInterrupt
        self._stop_signal = number
