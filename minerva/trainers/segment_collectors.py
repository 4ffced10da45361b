"""Collecting experience with rollout workers: they act and step, and send segments that are stored here."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from minerva.environments import RewardNormalizer, Step
from minerva.environments.base import Rows
from minerva.storage.replay import ReplayBuffer
from minerva.storage.rollout import RolloutBuffer
from minerva.trainers.actor import Actor, BaseAgent
from minerva.trainers.collector import ReplayCollector, RolloutCollector
from minerva.trainers.rollout_worker import Segment, Setup, Weights, check_segment
from minerva.trainers.rollout_workers import RolloutWorkers
from minerva.utils.running_norm import FrozenNorm, RunningNorm
from minerva.utils.seeding import spawn_seed
from minerva.utils.structure import Check, check, expect, optional

if TYPE_CHECKING:
    from minerva.trainers.trainer import Trainer

LEAD = 2
"""Segments that an asynchronous worker may be ahead: it is never without one to collect while the learner learns."""
STEPS_AT_ONCE = 64
"""Steps that are normalized together: few enough to need little memory, whatever the length of a segment."""


def acting_weights(agent: BaseAgent) -> Weights:
    """Return copies of what a worker needs to act: without the critic, unless its recurrent state is computed too."""
    state = agent.state_dict()
    unneeded = () if agent.state_dim else ("policy.value_",)
    kept = ("policy.", "obs_normalizer.")
    names = [name for name in state if name.startswith(kept) and not name.startswith(unneeded)]
    return {name: state[name].detach().cpu().numpy().copy() for name in names}


def prepared_workers(trainer: Trainer, steps: int, log_probs: bool = False) -> RolloutWorkers:
    """Let a trainer's workers build what acts, for segments of so many steps; return them."""
    workers = trainer.env
    assert isinstance(workers, RolloutWorkers)
    build = partial(trainer.build_agent, trainer.config, trainer.shapes, torch.device("cpu"))
    seeds = [spawn_seed(trainer.seed, f"rollout worker {w}") for w in range(workers.count)]
    setups = [Setup(build, seed, steps, log_probs) for seed in seeds]
    workers.prepare(setups, lambda: acting_weights(trainer.agent))
    return workers


class SegmentRolloutCollector(RolloutCollector):
    """Fill a rollout buffer with whole segments, which the workers collect together.

    A segment is stored when it arrives, and its steps are handed out one at a time.

    Args:
        workers: The rollout workers, which have the environments.
        rollout: The buffer, on the CPU.
        actor: What acts in a run without workers.
        obs_normalizer: Frozen: the workers normalize with the same statistics. In `merge` it takes in what they have
            seen, one worker after the other.
        reward_normalizer: Runs in `merge`.
    """

    env: RolloutWorkers

    def __init__(
        self,
        workers: RolloutWorkers,
        rollout: RolloutBuffer,
        actor: Actor,
        obs_normalizer: FrozenNorm | None,
        reward_normalizer: RewardNormalizer | None,
    ) -> None:
        super().__init__(workers, rollout, actor, obs_normalizer, reward_normalizer)
        self._merges = True
        self._segment: Segment | None = None
        self._given = 0  # steps of the segment that were handed out
        self._steps: Iterator[Step] = iter(())

    def wait(self, stopping: Callable[[], bool]) -> bool:
        if self._segment is None:
            segment = self.env.collect(stopping)
            if segment is None:
                return False
            self._store(segment, self._see(segment.observations))
        return True

    def step(self) -> Step:
        """Return the next step of the segment, which is stored already."""
        step = next(self._steps)
        self._given += 1
        self.rollout.position += 1
        return step

    def merge(self) -> None:
        if self._reward_normalizer is not None:  # where a lost worker's episode could not be restored
            self._reward_normalizer.discounted_return[self.rollout.restarting[0] > 0] = 0
        super().merge()
        self._segment = None

    def _store(self, segment: Segment, normalized: NDArray[Any]) -> None:
        s = segment
        self.rollout.fill(s.actions, normalized, s.rewards, s.terminated, s.truncated, s.restarting, s.recurrent_state)
        self._segment, self._given, self._steps = segment, 0, segment.steps()

    def _see(self, observations: Rows) -> NDArray[Any]:
        """Take in what the workers have seen, ``[T, N, O]``, in their order, and return it normalized."""
        if self._frozen is None:
            return observations
        normalized = np.empty(observations.shape, np.float32)
        for rows in np.split(np.arange(self.env.num_envs), self.env.count):
            own = slice(rows[0], rows[-1] + 1)
            for start in range(0, len(observations), STEPS_AT_ONCE):
                seen = observations[start : start + STEPS_AT_ONCE, own]  # [t, n, O]
                flat = self._frozen.see(seen.reshape(-1, seen.shape[-1]))
                normalized[start : start + STEPS_AT_ONCE, own] = flat.reshape(seen.shape)
        return normalized

    # State

    @property
    def _collected(self) -> int:
        return 0 if self._segment is None else self.rollout.steps

    def state_dict(self) -> dict[str, Any]:
        """Return what `RolloutCollector` does, and the steps of the segment that were not handed out."""
        segment = None if self._segment is None else self._segment.rest(self._given).to_plain()
        return {**super().state_dict(), "segment": segment}

    def _own_checks(self, state: Any) -> dict[str, Check]:
        form = _form_of_segment(self.env, self.env.num_envs, self.rollout.actions, self.rollout.recurrent_state)

        def check_rest(value: Any, name: str) -> None:
            position = state["rollout"]["position"]
            expect(value is not None or position == 0, name, "must be given in the middle of a rollout", value)
            if value is not None:
                check_segment(value, name, form, self.env.num_envs, self.rollout.steps - position)

        return {"segment": check_rest}

    def _load_rollout(self, state: dict[str, Any]) -> None:
        super()._load_rollout(state)
        self._segment = None
        if state["segment"] is not None:
            segment = Segment.from_plain(state["segment"])
            observations: Any = segment.observations
            if self._frozen is not None:  # they were taken in before
                observations = self._frozen.norm(torch.from_numpy(observations)).numpy()
            self._store(segment, observations)


class SegmentReplayCollector(ReplayCollector):
    """Fill a replay buffer with segments of the workers, one step at a time.

    Together, the workers wait for each other, and a step is one of all environments. Asynchronously, segments are
    stored one after the other as they arrive, each a step of its worker's environments at a time; where another
    worker's segment follows, the buffer has a restarting step in between, which ends windows and n-step returns.

    Args:
        workers: The rollout workers, which have the environments.
        replay: The buffer; asynchronously, of as many environments as a worker has.
        actor: What acts in a run without workers.
        obs_normalizer: Takes in every observation once, as it is stored.
        asynchronous: Whether workers and learner do not wait for each other.
    """

    env: RolloutWorkers

    def __init__(
        self,
        workers: RolloutWorkers,
        replay: ReplayBuffer,
        actor: Actor,
        obs_normalizer: RunningNorm | None,
        asynchronous: bool,
    ) -> None:
        super().__init__(workers, replay, actor, obs_normalizer)
        self._asynchronous = asynchronous
        self._segment: Segment | None = None
        self._given = 0  # steps of the segment that were stored
        self._steps: Iterator[Step] = iter(())
        self._worker = 0  # whose observations are the newest of the buffer; 0 if they are of all
        groups = workers.count if asynchronous else 1
        self._latest = np.zeros((groups, replay.num_envs, workers.observation_dim), np.float32)  # of each worker

    def begin(self) -> None:
        self._segment, self._worker = None, 0
        self._latest[:] = self._take_in(self.env.reset()).reshape(self._latest.shape)
        self.replay.begin(self._latest[0])

    def wait(self, stopping: Callable[[], bool]) -> bool:
        if self._segment is not None:
            return True
        if self._asynchronous:
            taken = self.env.take(stopping, LEAD)
            if taken is not None:
                self._follow_with(*taken)
        else:
            segment = self.env.collect(stopping)
            if segment is not None:
                self._play(segment)
        return self._segment is not None

    def _follow_with(self, worker: int, segment: Segment) -> None:
        n = self.replay.num_envs
        if worker != self._worker:
            nothing, all_of_them = np.zeros(n), np.ones(n, np.bool_)
            cut = Step(self._latest[worker], nothing, ~all_of_them, ~all_of_them, all_of_them, [])
            self._add(np.zeros_like(segment.actions[0]), cut, np.zeros_like(segment.log_probs[0]))
        self._worker = worker
        self._latest[worker] = segment.observations[-1]
        self._play(segment.numbered_from(worker * n))

    def _play(self, segment: Segment) -> None:
        self._segment, self._given, self._steps = segment, 0, segment.steps()

    def step(self) -> Step:
        """Store the next step of the segment and return it."""
        segment, t = self._segment, self._given
        assert segment is not None
        step = next(self._steps)
        self._take_in(step.observations)
        self._add(segment.actions[t], step, segment.log_probs[t])
        self._given += 1
        if self._given == len(segment.rewards):
            self._segment = None
        return step

    # State

    def state_dict(self) -> dict[str, Any]:
        """Return what `ReplayCollector` does, and the steps of the segment that are not stored yet."""
        segment = None if self._segment is None else self._segment.rest(self._given).to_plain()
        latest = torch.from_numpy(self._latest.copy())
        return {**super().state_dict(), "segment": segment, "worker": self._worker, "latest": latest}

    def _own_checks(self) -> dict[str, Check]:
        actions, workers = torch.from_numpy(self.replay.actions), len(self._latest)
        form = _form_of_segment(self.env, self.replay.num_envs, actions, torch.zeros(self.replay.num_envs, 0))

        def check_worker(value: Any, name: str) -> None:
            check(value, 0, name)
            expect(value < workers, name, f"must be below {workers}", value)

        segment = optional(lambda value, name: check_segment(value, name, form, self.env.num_envs))
        return {"segment": segment, "worker": check_worker}

    def load_state_dict(self, state: dict[str, Any]) -> str | None:
        self._segment, self._worker = None, state["worker"]
        self._latest = state["latest"].numpy().copy()
        if state["segment"] is not None:
            self._play(Segment.from_plain(state["segment"]))
        return super().load_state_dict(state)


def _form_of_segment(env: RolloutWorkers, count: int, actions: Tensor, recurrent_state: Tensor) -> Segment:
    """Return a segment of one step of `count` environments."""
    flags = np.zeros((1, count), np.bool_)
    return Segment(
        np.zeros((1, count, env.observation_dim), env.observation_dtype),
        np.zeros((1, count, actions.shape[-1]), np.float32),
        np.zeros((1, count), np.float32),
        np.zeros((1, count)),
        flags,
        flags,
        flags,
        recurrent_state.cpu().numpy(),
        [],
    )
