"""A run that several processes train together (`minerva.utils.ranks`): rank 0 leads it, the others follow.

All ranks run the same loop, each on its own environments. They meet after the same number of steps, before a callback
runs, and after each update. At a meeting every rank is at the same step, and the others wait for what rank 0 asks of
them: their state, for a checkpoint, or to go on. So rank 0 alone decides, and what may happen to a single process at
any moment (a signal, a callback that stops, a checkpoint that is due) happens to all of them at one step.

How often they meet follows the clock, and changes nothing else: episodes are logged in the order of their steps.
"""

from __future__ import annotations

import dataclasses
import signal
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import numpy as np
from torch import Tensor

from minerva.callbacks import CallbackLike, CallbackList
from minerva.environments import EnvironmentFailureError, Episode, Step
from minerva.trainers.result import TrainingResult
from minerva.trainers.run import Run, RunState
from minerva.trainers.run_folder import ImportantNote
from minerva.utils.ranks import RankLostError

if TYPE_CHECKING:
    from minerva.trainers.on_policy import OnPolicyTrainer
    from minerva.trainers.trainer import Trainer

SECONDS_BETWEEN_MEETINGS = 0.2
"""About how long a signal waits, and how long a rank does not notice that another one has failed."""


class Finished(NamedTuple):
    """An episode that has ended."""

    at: int  # environment step of the run
    episode: Episode  # with its environment's number among those of all ranks


class Report(NamedTuple):
    """What a rank brings to a meeting."""

    finished: list[Finished]  # since the last meeting
    step: Step | None  # the newest one, where callbacks want to see it
    stop_signal: int | None
    failure: str | None
    notes: list[str]


# What rank 0 orders


class Weights(NamedTuple):
    """Begin with rank 0's weights: a user's own encoder may have been initialized by chance."""

    agent: dict[str, Tensor]


class SendState(NamedTuple):
    """Send what a checkpoint holds of a rank."""


class Proceed(NamedTuple):
    """Go on."""

    steps: int  # until the next meeting
    stopping: bool  # or leave the loop
    callbacks: bool  # whether there are any: the ranks meet before each of them runs


class End(NamedTuple):
    """The run is over."""

    failure: str | None
    mistake: bool  # whether the failure is the user's mistake
    stop_signal: int | None
    state: RunState
    result: TrainingResult


def make_run(
    trainer: Trainer, state: RunState, total_steps: int, out_dir: Path, callbacks: CallbackLike, shown: Path
) -> Run:
    """Build what a call of `train` is in this process."""
    kind: Callable[..., Run] = Run
    if trainer.ranks.count > 1:
        kind = LeadingRun if trainer.ranks.rank == 0 else FollowingRun
    return kind(trainer, state, total_steps, out_dir, callbacks, shown)


class ParallelRun(Run):
    """What the runs of all ranks share (arguments as for `Run`)."""

    trainer: OnPolicyTrainer

    def __init__(self, trainer: OnPolicyTrainer, *arguments: Any) -> None:
        super().__init__(trainer, *arguments)
        self._ranks = trainer.ranks
        self._num_envs = trainer.config.num_envs  # of all ranks
        self._order: Proceed | None = None  # the newest
        self._steps_left = 0  # until the next meeting
        self._finished: list[Finished] = []
        self._caught: int | None = None  # the signal that this process itself has received

    def stopping(self) -> bool:
        """Return whether it was agreed to stop. A signal alone is not enough: each rank receives it at another time."""
        return self._order is not None and self._order.stopping

    def _count(self, step: Step) -> bool:
        """Count a step and its episodes; return whether a meeting follows."""
        self.state.env_steps += self._num_envs
        first = self._ranks.rank * len(step.rewards)
        for episode in step.episodes:
            numbered = episode._replace(env_index=first + episode.env_index)
            self._finished.append(Finished(self.state.env_steps, numbered))
        self._steps_left -= 1
        return self._steps_left <= 0

    def _report(self, step: Step | None = None, failure: str | None = None, notes: list[str] | None = None) -> Report:
        finished, self._finished = self._finished, []
        return Report(finished, step, self._stop_signal, failure, notes or [])

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self._caught is not None:  # the second time; another rank's signal is none of this process
            raise KeyboardInterrupt
        self._caught = self._stop_signal = number


class LeadingRun(ParallelRun):
    """The run of rank 0: it owns folder, log, evaluations, callbacks and checkpoints."""

    def __init__(self, trainer: OnPolicyTrainer, *arguments: Any) -> None:
        super().__init__(trainer, *arguments)
        self._waiting = False  # whether the others wait for an order
        self._level = True  # whether all ranks are at one step when they do
        self._stride = 1  # steps between meetings
        self._has_callbacks = bool(self.callbacks.callbacks)
        if self._has_callbacks:
            self.callbacks = _Led(self.callbacks, self._at_meeting)

    def __enter__(self) -> Self:
        try:
            self._meet(self._report())
            agent = self.trainer.agent.state_dict()
            self._send(Weights({name: tensor.cpu() for name, tensor in agent.items()}))
            super().__enter__()
        except BaseException as error:
            self._end(error)
            raise
        self._proceed()
        return self

    def step_done(self, step: Step) -> None:
        if not self._count(step):
            return
        assert self._order is not None
        self._stride = int(self._order.steps * SECONDS_BETWEEN_MEETINGS / max(time.perf_counter() - self._began, 1e-9))
        reports = self._meet(self._report(step if self._has_callbacks else None))
        if self._lock.lost is not None:
            raise self._lock.lost
        finished = sorted(one for report in reports for one in report.finished)
        newest = [episode for at, episode in finished if at == self.state.env_steps]
        for at, episode in finished[: len(finished) - len(newest)]:
            self._log_episode(episode, at)
        if self._has_callbacks:
            step = self.trainer.last_step = _side_by_side([report.step for report in reports], newest)
        self._after_step(step._replace(episodes=newest))
        self._proceed()

    def update_done(self, metrics: Mapping[str, float]) -> None:
        self._at_meeting(partial(super().update_done, metrics))

    def ask_for_states(self) -> None:
        if not self._complete:
            raise RuntimeError("trainer.save: works while all ranks are at one step; they are not.")
        self._send(SendState())

    @property
    def _complete(self) -> bool:
        return self._waiting and self._level  # they wait between two steps alone

    # Meetings

    def _at_meeting(self, action: Callable[[], None]) -> None:
        """Do something while the others wait; they know that it comes."""
        self._waiting = True
        action()
        self._proceed()

    def _meet(self, own: Report) -> list[Report]:
        """Wait until all ranks have come, and return what they bring.

        Raises:
            EnvironmentFailureError: One of them has failed.
        """
        reports = self._collect(own)
        for rank, report in enumerate(reports):
            self.trainer.notes.extend(ImportantNote(f"Rank {rank}: {note}") for note in report.notes)
            self._stop_signal = self._stop_signal or report.stop_signal
            if report.failure is not None:
                self._level = False
                raise EnvironmentFailureError(f"rank {rank}: {report.failure}")
        return reports

    def _collect(self, own: Report) -> list[Report]:
        self._waiting = False
        reports: list[Report] = self._ranks.collect(own)
        self._waiting = True
        return reports

    def _send(self, order: Weights | SendState | Proceed | End) -> None:
        self._waiting = False
        self._ranks.share(order)
        self._waiting = not isinstance(order, Proceed | End)

    def _proceed(self) -> None:
        """Let all ranks go on to the next meeting, or stop."""
        stopping = self._stop_signal is not None or self.stopped_by is not None
        steps = self._steps_to_meeting()
        self._order = Proceed(steps, stopping, self._has_callbacks)
        self._steps_left = steps
        self._send(self._order)
        self._began = time.perf_counter()

    def _steps_to_meeting(self) -> int:
        if self._has_callbacks:
            return 1
        rollout = self.trainer.collector.rollout
        steps = min(self._stride, rollout.steps - rollout.position)
        if self._next_checkpoint is not None:
            steps = min(steps, -(-(self._next_checkpoint - self.state.env_steps) // self._num_envs))
        return max(1, steps)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        outcome = error
        try:
            if error is None:
                self._waiting = True  # the others have left the loop as well
            elif not self._waiting and self._between_steps and _is_own(error):
                self._collect(self._report())  # the others still come to their next meeting
                self._level = False
            if error is not None and not self._complete:
                self.say(f"Stopped at step {self.state.env_steps:,}; the last checkpoint in {self.shown} is as it was.")
            super().__exit__(kind, error, traceback)
        except BaseException as last:
            outcome = last
            raise
        finally:
            self._end(outcome)

    def _end(self, error: BaseException | None) -> None:
        """Let the others end as this rank does."""
        if not self._waiting:
            return  # they are lost, or end by themselves
        stopped = isinstance(error, KeyboardInterrupt | SystemExit) and self._stop_signal is not None
        failure = None if error is None or stopped else explain(error)
        stop_signal = self._stop_signal if stopped else None
        self._send(End(failure, isinstance(error, ValueError), stop_signal, self.state, self.result()))


class FollowingRun(ParallelRun):
    """The run of any other rank: it does what rank 0 orders, and writes and says nothing."""

    def __init__(self, trainer: OnPolicyTrainer, *arguments: Any) -> None:
        super().__init__(trainer, *arguments)
        self.callbacks = _Following(self._follow_callbacks)
        self._result: TrainingResult | None = None  # rank 0's, when it has ended

    def __enter__(self) -> Self:
        trainer = self.trainer
        important, trainer.notes = [str(note) for note in trainer.notes if isinstance(note, ImportantNote)], []
        try:
            self._catch_signals()
            try:
                if not self.state.started:
                    trainer.begin()
            except Exception as error:
                self._ranks.collect(self._report(failure=explain(error)))
                self._attend()
                raise
            self._ranks.collect(self._report(notes=important))
            self._follow()
        except BaseException:
            self._closing.close()
            raise
        self.state.started, self.state.total_steps = True, self.total_steps
        self._between_steps = True
        return self

    def step_done(self, step: Step) -> None:
        if self._count(step):
            assert self._order is not None
            self._ranks.collect(self._report(step if self._order.callbacks else None))
            self._follow()

    def update_done(self, metrics: Mapping[str, float]) -> None:
        self._follow()

    def _follow_callbacks(self) -> None:
        if self._order is not None and self._order.callbacks:
            self._follow()

    def _follow(self) -> None:
        """Follow the orders of rank 0 until it lets all go on.

        Raises:
            ValueError: It has found a mistake of the user.
            RankLostError: It has failed.
        """
        end = self._attend()
        if end is not None and end.failure is not None:
            raise ValueError(end.failure) if end.mistake else RankLostError(f"rank 0: {end.failure}")

    def _attend(self) -> End | None:
        """Follow the orders of rank 0 until it lets all go on, or end."""
        while True:
            order = self._ranks.share(None)
            if isinstance(order, Weights):
                self.trainer.agent.load_state_dict(order.agent)
            elif isinstance(order, SendState):
                self._ranks.collect(self.trainer.own_state())
            elif isinstance(order, Proceed):
                self._order, self._steps_left = order, order.steps
                return None
            else:
                self._stop_signal, self._result = order.stop_signal, order.result
                for field in dataclasses.fields(order.state):
                    setattr(self.state, field.name, getattr(order.state, field.name))
                return order  # type: ignore[no-any-return]

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            if error is None:
                self._follow()
            elif self._result is None and self._between_steps and _is_own(error):
                self._ranks.collect(self._report(failure=explain(error)))
                self._attend()
        finally:
            self._closing.close()
        if error is None and self._stop_signal is not None:
            if self._stop_signal == signal.SIGINT:
                raise KeyboardInterrupt
            raise SystemExit(128 + self._stop_signal)

    # What rank 0 does for all

    @property
    def takes_arrays(self) -> bool:
        return False

    def result(self) -> TrainingResult:
        return super().result() if self._result is None else self._result

    def say(self, text: str) -> None:
        """Leave it to rank 0."""

    def warn(self, text: str) -> None:
        """Leave it to rank 0."""


class _Led(CallbackList):
    """The callbacks of rank 0, which run while the others wait; they do so anyway in those not named here."""

    def __init__(self, callbacks: CallbackList, at_meeting: Callable[[Callable[[], None]], None]) -> None:
        super().__init__(callbacks.callbacks)
        self._at_meeting = at_meeting

    def on_rollout_start(self, trainer: Any) -> None:
        self._at_meeting(partial(super().on_rollout_start, trainer))

    def on_rollout_end(self, trainer: Any) -> None:
        self._at_meeting(partial(super().on_rollout_end, trainer))


class _Following(CallbackList):
    """Wait while rank 0 runs its callbacks."""

    def __init__(self, follow: Callable[[], None]) -> None:
        super().__init__()
        self._follow = follow

    def on_rollout_start(self, trainer: Any) -> None:
        self._follow()

    def on_rollout_end(self, trainer: Any) -> None:
        self._follow()


def explain(error: BaseException) -> str:
    """Return what an error says, in one sentence."""
    text = " ".join(str(error).split())
    known = isinstance(error, EnvironmentFailureError | ValueError | OSError) and text
    return text if known else f"{type(error).__name__}: {text}".rstrip(": ")


def _is_own(error: BaseException) -> bool:
    """Return whether an error is one of this rank alone, which the others still wait for."""
    return isinstance(error, Exception) and not isinstance(error, RankLostError)


def _side_by_side(steps: list[Step | None], episodes: list[Episode]) -> Step:
    """Return the step of all ranks' environments."""
    given = [step for step in steps if step is not None]
    arrays = {name: np.concatenate([getattr(step, name) for step in given]) for name in Step._fields[:-1]}
    return Step(**arrays, episodes=episodes)
