"""The rollout workers of a run, as actors on Ray: started, given work, and replaced where one is lost."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from minerva import environments
from minerva.environments import BatchedEnvironment, EnvironmentFailureError, Step
from minerva.environments.history import EpisodeActions
from minerva.trainers.rollout_worker import RolloutWorker, Segment, Setup, Weights
from minerva.utils.ray_cluster import alive_nodes, connect, disconnect
from minerva.utils.structure import anything, check

try:
    import ray
    from ray import exceptions
except ImportError as missing:
    raise ValueError('rollout_workers: needs Ray, which is not installed: pip install "minerva-rl[ray]".') from missing

if TYPE_CHECKING:
    from minerva.environments.base import Rows

POLL_SECONDS = 0.2
"""How long a signal waits while the learner waits for its workers."""
ATTEMPTS = 3
"""Workers that may be lost one after the other over one segment; then something in it ends them."""

_LOST = (
    exceptions.RayActorError,
    exceptions.ObjectLostError,
    exceptions.NodeDiedError,
    exceptions.WorkerCrashedError,
    exceptions.OutOfMemoryError,
)


def start_workers(
    count: int, arguments: Mapping[str, Any], address: str | None, tell: Callable[[str, bool], None]
) -> RolloutWorkers:
    """Start rollout workers that share the environments of a run.

    Args:
        count: W.
        arguments: Of `environments.make`, for the share of one worker; but where it begins.
        address: As for `RolloutWorkers`, like the next.
        tell: Tells the user.

    Raises:
        ValueError: Ray cannot be used, has too few cores, or the environments cannot be made.
    """
    own = arguments["num_envs"]
    given = {**arguments, "pool_threads": arguments["pool_threads"] or 1}  # a worker has one core
    shares = [partial(environments.make, **given, first=w * own) for w in range(count)]
    return RolloutWorkers(shares, count * own, address, tell)


class _Task(NamedTuple):
    """A segment that a worker is to collect."""

    before: list[Any]  # references to what the worker does first: to take over from a lost one
    segment: Any  # reference to the segment and the state after it
    weights: Any  # reference to what it acts with


class _State:
    """The newest state of a worker, which sends only the newest actions of running episodes.

    Args:
        state: A whole one.
    """

    def __init__(self, state: dict[str, Any]) -> None:
        self._newest, self._actions = state, EpisodeActions()
        self._actions.begin(state["collector"]["env"])

    def follow(self, state: dict[str, Any], steps: int) -> None:
        """Take in the state after a segment of so many steps."""
        self._newest = state
        self._actions.add(state["collector"]["env"], steps)

    def whole(self) -> dict[str, Any]:
        """Return the state, with all actions."""
        collector = self._newest["collector"]
        return {**self._newest, "collector": {**collector, "env": self._actions.whole(collector["env"])}}


class RolloutWorkers:
    """Hold the environments of a run in W actors, which take whole segments of steps.

    To a trainer it is the environments: a `BatchedEnvironment` of all N that is stepped by `collect` or `take`, because
    the workers act.

    Args:
        make_envs: For each worker, a function that makes its environments.
        num_envs: Environments of all workers, N.
        address: Of a Ray cluster, HOST:PORT; by default RAY_ADDRESS or, without it, a Ray that is started here.
        tell: Tells the user about a lost worker that another one replaces: a sentence, and whether bits have changed.

    Raises:
        ValueError: Ray cannot be used, has too few cores, or the environments cannot be made.
    """

    def __init__(
        self,
        make_envs: Sequence[Callable[[], BatchedEnvironment]],
        num_envs: int,
        address: str | None,
        tell: Callable[[str, bool], None],
    ) -> None:
        self.count, self.num_envs = len(make_envs), num_envs
        self._make_envs, self._tell = make_envs, tell
        address = address or os.environ.get("RAY_ADDRESS")
        self._connected = connect(address, local_cores=self.count)
        self._cores = 1 if address else 0  # of an actor: here, nobody else needs to know
        self._setups: list[Setup] = []
        self._states: list[_State] = []  # after the newest segments that were handed over
        self._restarts_next = np.zeros(num_envs, np.bool_)
        self._queues: list[deque[_Task]] = [deque() for _ in make_envs]
        self._arrived: dict[int, tuple[Segment, dict[str, Any]]] = {}  # segments that are not handed over yet
        self._losses = [0] * self.count  # one after the other
        self._next = 0  # the worker whose turn it is in `take`
        self._actors: list[Any] = []
        try:
            self._check_cores()
            self._actors = [self._start(w) for w in range(self.count)]
            description = self._ask_all("describe")[0]
        except BaseException:
            self.close()
            raise
        self.raw_observation_space, self.action_space = description.raw_observation_space, description.action_space
        self.observation_dim, self.mask_dim = description.observation_dim, description.mask_dim
        self.observation_dtype = description.observation_dtype
        workers = f"{self.count} rollout worker{'s' * (self.count > 1)}"
        self.description = f"{num_envs} environments on {workers} (Ray), each: {description.description}"

    def _check_cores(self) -> None:
        cores = int(sum(node["Resources"].get("CPU", 0) for node in alive_nodes()))
        if self._cores * self.count > cores:
            raise ValueError(
                f"rollout_workers: must be at most {cores}, the cores of the Ray cluster, got {self.count}; ask for "
                "fewer, or add a node."
            )

    def _start(self, w: int) -> Any:
        actor: Any = ray.remote(RolloutWorker)
        return actor.options(num_cpus=self._cores, max_restarts=0).remote(self._make_envs[w])

    def prepare(self, setups: Sequence[Setup], weights: Callable[[], Weights]) -> None:
        """Let each worker build what acts.

        Args:
            setups: For each worker.
            weights: Returns what to act with now.
        """
        self._setups, self._weights = list(setups), weights
        self._ask_all("prepare", [(setup,) for setup in setups])

    def reset(self) -> Rows:
        """Start an episode in every environment and return the first observations, ``[N, O]``."""
        answers = self._ask_all("begin", [(ray.put(self._weights()),)] * self.count)
        self._states = [_State(state) for _, state in answers]
        self._restarts_next[:] = False
        observations: Rows = np.concatenate([rows for rows, _ in answers])
        return observations

    def step(self, actions: NDArray[np.float32]) -> Step:
        """Refuse: the workers act themselves."""
        raise RuntimeError("rollout workers take whole segments: use `collect` or `take`.")

    @property
    def restarts_next(self) -> NDArray[np.bool_]:
        """Return which environments start a new episode because their state could not be restored, ``[N]``."""
        return self._restarts_next

    # Segments

    def collect(self, stopping: Callable[[], bool]) -> Segment | None:
        """Let each worker collect a segment with the weights as they are now, and wait for all of them.

        Args:
            stopping: Whether to stop waiting.

        Returns:
            The segments side by side; None where it stopped. The next call then continues to wait.
        """
        if not any(self._queues) and not self._arrived:
            shared = ray.put(self._weights())
            for w in range(self.count):
                self._submit(w, shared)
        while len(self._arrived) < self.count:
            if stopping():
                return None
            for w in self._wait(POLL_SECONDS):
                if (answer := self._receive(w)) is not None:
                    self._arrived[w] = answer
        arrived, self._arrived = self._arrived, {}
        for w, state in enumerate(self._states):
            state.follow(arrived[w][1], self._setups[w].steps)
        return Segment.join([arrived[w][0] for w in range(self.count)])

    def take(self, stopping: Callable[[], bool], lead: int) -> tuple[int, Segment] | None:
        """Take the segment of a worker that has one, in turn if there are several, and let all collect more meanwhile.

        Args:
            stopping: Whether to stop waiting.
            lead: Segments that each worker may be ahead.

        Returns:
            The worker and its segment; None where it stopped.
        """
        shared = None
        for w, queue in enumerate(self._queues):
            while len(queue) < lead:
                shared = ray.put(self._weights()) if shared is None else shared
                self._submit(w, shared)
        while not stopping():
            ready = self._wait(POLL_SECONDS)
            for w in sorted(ready, key=lambda w: (w - self._next) % self.count)[:1]:
                if (answer := self._receive(w)) is not None:
                    self._next = w + 1
                    segment, state = answer
                    self._states[w].follow(state, self._setups[w].steps)
                    return w, segment
        return None

    def _submit(self, w: int, weights: Any, before: Sequence[Any] = ()) -> None:
        self._queues[w].append(_Task(list(before), self._actors[w].collect.remote(weights), weights))

    def _wait(self, seconds: float) -> list[int]:
        """Return which workers have ended the segment that they were to collect, or were lost."""
        heads = {queue[0].segment: w for w, queue in enumerate(self._queues) if queue}
        ready, _ = ray.wait(list(heads), timeout=seconds)
        if ready:  # and the others that have ended by now
            ready, _ = ray.wait(list(heads), num_returns=len(heads), timeout=0)
        return [heads[reference] for reference in ready]

    def _receive(self, w: int) -> tuple[Segment, dict[str, Any]] | None:
        """Return a worker's segment and the state after it; None where the worker was lost, and is replaced.

        Raises:
            EnvironmentFailureError: An environment has failed, or one worker after the other was lost.
        """
        task = self._queues[w][0]
        try:
            notes = [self._answer(w, reference) for reference in task.before]
            answer: tuple[Segment, dict[str, Any]] = self._answer(w, task.segment)
        except _LOST as error:
            self._replace(w, error)
            return None
        self._queues[w].popleft()
        self._losses[w] = 0
        if notes and notes[-1][0] is not None:
            self._tell(f"Rollout worker {w}: {notes[-1][0]}", True)
        return answer

    def _replace(self, w: int, error: Exception) -> None:
        """Start another worker where the lost one began its segment: it acts with the same weights and noise."""
        self._losses[w] += 1
        reason = type(error).__name__
        if self._losses[w] > ATTEMPTS:
            raise EnvironmentFailureError(
                f"rollout worker {w} was lost {self._losses[w]} times over one segment ({reason}): something in it "
                "ends the process, or its node has too little memory"
            ) from error
        self._tell(f"Rollout worker {w} was lost ({reason}); another one takes its segment from the beginning.", False)
        with suppress(Exception):
            ray.kill(self._actors[w])  # it may be out of reach and still alive
        self._actors[w] = actor = self._start(w)
        before = [actor.prepare.remote(self._setups[w]), actor.load_state_dict.remote(self._states[w].whole())]
        tasks, self._queues[w] = self._queues[w], deque()
        for task in tasks:
            self._submit(w, task.weights, before)
            before = []

    # State

    def state_dict(self) -> dict[str, Any]:
        """Return the state of each worker after its newest segment that was handed over."""
        return {"workers": [state.whole() for state in self._states]}

    def check_state(self, state: Any, name: str) -> None:
        """Raise a `StructureError` if loaded states cannot be those of these workers; nothing is changed."""
        check(state, {"workers": [anything] * self.count}, name)
        states = enumerate(state["workers"])
        self._ask_all("check_state", [(each, f"{name}.workers[{w}]") for w, each in states])

    def load_state_dict(self, state: dict[str, Any]) -> str | None:
        """Let each worker load its state; return a sentence if that is not exact, else None."""
        self._states = [_State(each) for each in state["workers"]]
        self._queues, self._arrived = [deque() for _ in self._states], {}
        answers = self._ask_all("load_state_dict", [(each,) for each in state["workers"]])
        self._restarts_next = np.concatenate([restarting for _, restarting in answers])
        notes = [f"rollout worker {w}: {note}" for w, (note, _) in enumerate(answers) if note is not None]
        return notes[0] if notes else None

    # Questions

    def _ask_all(self, method: str, arguments: Sequence[tuple[Any, ...]] | None = None) -> list[Any]:
        """Call a method of each worker at once, and return the answers."""
        own = arguments or [()] * self.count
        asked = [getattr(actor, method).remote(*own[w]) for w, actor in enumerate(self._actors)]
        answers = []
        for w, reference in enumerate(asked):
            try:
                answers.append(self._answer(w, reference))
            except _LOST as error:
                reason = next(reversed(str(error).strip().splitlines()), "").strip()
                raise EnvironmentFailureError(
                    f"rollout worker {w} was lost at the start ({type(error).__name__}: {reason})"
                ) from error
        return answers

    def _answer(self, w: int, reference: Any) -> Any:
        try:
            return ray.get(reference)
        except exceptions.RayTaskError as error:
            cause = error.cause
            if isinstance(cause, ValueError):
                raise cause from None
            known = isinstance(cause, EnvironmentFailureError)
            said = f"rollout worker {w}: {cause if known else f'{type(cause).__name__}: {cause}'}"
            raise (EnvironmentFailureError if known else RuntimeError)(said) from error

    def close(self) -> None:
        """End the workers, and Ray if it was started for them."""
        for actor in self._actors:
            with suppress(Exception):
                ray.kill(actor)
        self._actors = []
        if self._connected:
            self._connected = False
            disconnect()
