"""Groups of environments in this process or in worker processes, each stepped or reset on its own."""

from __future__ import annotations

import contextlib
import itertools
import os
import subprocess
import sys
import traceback
from collections.abc import Sequence
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import cloudpickle
import gymnasium
import numpy as np
from numpy.typing import NDArray

from minerva.environments.base import EnvironmentFailureError
from minerva.environments.ids import EnvFactory
from minerva.environments.spaces import flat_size, flat_writer

STEP = -1
"""Order: step this environment with its action. A number from 0 on means: reset it with that seed."""
IDLE = -2
"""Order: leave this environment alone."""


class Outcome(NamedTuple):
    """What a group gave for one round of orders (rows of idle environments keep what they held)."""

    observations: NDArray[np.float32]  # [n, O]
    rewards: NDArray[np.float64]  # [n]
    terminated: NDArray[np.bool_]  # [n]
    truncated: NDArray[np.bool_]  # [n]


class Group(Protocol):
    """Environments that take orders, wherever they live."""

    spaces: tuple[gymnasium.Space[Any], gymnasium.Space[Any]]
    description: str

    def apply(self, actions: NDArray[np.float32], orders: NDArray[np.int64]) -> Outcome:
        """Carry out one order for each environment."""
        ...

    def replay(self, seeds: Sequence[int | None], actions: Sequence[NDArray[np.float32]]) -> NDArray[np.float32]:
        """Reset with the seeds and take the actions; returns the observations reached (None: leave alone)."""
        ...

    def close(self) -> None:
        """Close every environment."""
        ...


class LocalGroup:
    """Environments of this process, stepped one after the other."""

    def __init__(self, factories: Sequence[EnvFactory], first_index: int = 0) -> None:
        self.envs = [factory() for factory in factories]
        self.first_index = first_index
        env = self.envs[0]
        if not isinstance(env, gymnasium.Env):
            raise ValueError(f"env: the factory must return a gymnasium.Env, got {type(env).__name__}.")
        self.spaces: tuple[gymnasium.Space[Any], gymnasium.Space[Any]] = (env.observation_space, env.action_space)
        self.description = "in process"
        self._write = flat_writer(env.observation_space)
        self._action_shape, self._action_dtype = env.action_space.shape, env.action_space.dtype
        n = len(self.envs)
        self._outcome = Outcome(
            np.zeros((n, flat_size(env.observation_space)), dtype=np.float32),
            np.zeros(n),
            np.zeros(n, dtype=np.bool_),
            np.zeros(n, dtype=np.bool_),
        )

    def apply(self, actions: NDArray[np.float32], orders: NDArray[np.int64]) -> Outcome:
        """Carry out one order for each environment; the arrays returned are overwritten by the next call."""
        observations, rewards, terminated, truncated = self._outcome
        env_actions = self._for_environment(actions)
        for i, order in enumerate(orders.tolist()):
            if order == IDLE:
                continue
            try:
                if order == STEP:
                    observation, reward, terminated[i], truncated[i], _ = self.envs[i].step(env_actions[i])
                    rewards[i] = reward
                else:
                    observation, _ = self.envs[i].reset(seed=order)
                    rewards[i], terminated[i], truncated[i] = 0.0, False, False
                self._write(observation, observations[i])
            except Exception as error:
                raise self._failure(i, "step" if order == STEP else "reset", error) from error
        return self._outcome

    def replay(self, seeds: Sequence[int | None], actions: Sequence[NDArray[np.float32]]) -> NDArray[np.float32]:
        """Reset with the seeds and take the actions; returns the observations reached (None: leave alone)."""
        observations = self._outcome.observations
        for i, seed in enumerate(seeds):
            if seed is None:
                continue
            try:
                observation, _ = self.envs[i].reset(seed=seed)
                for action in self._for_environment(actions[i]):
                    observation, *_ = self.envs[i].step(action)
                self._write(observation, observations[i])
            except Exception as error:
                raise self._failure(i, "replay", error) from error
        return observations

    def close(self) -> None:
        """Close every environment."""
        envs, self.envs = self.envs, []  # closing twice is no error
        for env in envs:
            env.close()

    def _for_environment(self, actions: NDArray[np.float32]) -> NDArray[Any]:
        # Always a copy: an environment may write into the action it is given, and the caller keeps a history of them.
        return actions.astype(self._action_dtype).reshape(len(actions), *(self._action_shape or ()))

    def _failure(self, i: int, what: str, error: Exception) -> EnvironmentFailureError:
        return EnvironmentFailureError(
            f"environment {self.first_index + i} raised {type(error).__name__} in {what}: {error}"
        )


class SubprocessGroup:
    """Environments spread evenly over worker processes, which step at the same time.

    Workers are started as fresh interpreters, not forked from a process that holds threads and not spawned by
    importing the user's script again: a script needs no ``if __name__ == "__main__"``.
    """

    def __init__(self, factories: Sequence[EnvFactory], num_workers: int | None = None) -> None:
        n = len(factories)
        count = min(n, num_workers or os.cpu_count() or 1)
        edges = np.linspace(0, n, count + 1).astype(int).tolist()
        self._slices = [slice(start, stop) for start, stop in itertools.pairwise(edges)]
        self.description = f"{count} worker process{'es' * (count > 1)}"
        self._workers: list[tuple[subprocess.Popen[bytes], Connection]] = []
        try:
            for where in self._slices:
                self._workers.append(_start_worker(factories[where], where.start))
            spaces = [self._receive(k) for k in range(count)]
        except BaseException:
            self.close()
            raise
        self.spaces: tuple[gymnasium.Space[Any], gymnasium.Space[Any]] = spaces[0]
        self._outcome = Outcome(
            np.zeros((n, flat_size(self.spaces[0])), dtype=np.float32),
            np.zeros(n),
            np.zeros(n, dtype=np.bool_),
            np.zeros(n, dtype=np.bool_),
        )

    def apply(self, actions: NDArray[np.float32], orders: NDArray[np.int64]) -> Outcome:
        """Carry out one order for each environment; the arrays returned are overwritten by the next call."""
        for k, where in enumerate(self._slices):
            self._send(k, ("apply", actions[where], orders[where]))
        for where, outcome in zip(self._slices, self._receive_all(), strict=True):
            self._outcome.observations[where] = outcome.observations
            self._outcome.rewards[where] = outcome.rewards
            self._outcome.terminated[where] = outcome.terminated
            self._outcome.truncated[where] = outcome.truncated
        return self._outcome

    def replay(self, seeds: Sequence[int | None], actions: Sequence[NDArray[np.float32]]) -> NDArray[np.float32]:
        """Reset with the seeds and take the actions; returns the observations reached (None: leave alone)."""
        for k, where in enumerate(self._slices):
            self._send(k, ("replay", seeds[where], actions[where]))
        for where, observations in zip(self._slices, self._receive_all(), strict=True):
            self._outcome.observations[where] = observations
        return self._outcome.observations

    def close(self) -> None:
        """End the workers; one that does not answer within two seconds is killed."""
        for _, connection in self._workers:
            connection.close()  # a worker ends when its pipe does, also when this process is killed
        for process, _ in self._workers:
            try:
                process.wait(timeout=2)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self._workers = []

    def _send(self, k: int, message: Any) -> None:
        try:
            self._workers[k][1].send(message)
        except OSError as error:
            raise self._death(k) from error

    def _receive_all(self) -> list[Any]:
        # Every answer is fetched before a failure is raised: one left in its pipe would be taken for the next one's.
        answers, failure = [], None
        for k in range(len(self._workers)):
            try:
                answers.append(self._receive(k))
            except EnvironmentFailureError as error:
                failure = failure or error
        if failure is not None:
            raise failure
        return answers

    def _receive(self, k: int) -> Any:
        try:
            status, value = self._workers[k][1].recv()
        except (EOFError, OSError) as error:
            raise self._death(k) from error
        if status == "invalid":
            raise ValueError(value)
        if status == "failed":
            message, details = value
            raise EnvironmentFailureError(message) from RuntimeError(details)
        return value

    def _death(self, k: int) -> EnvironmentFailureError:
        process, where = self._workers[k][0], self._slices[k]
        try:
            code = process.wait(timeout=1)
        except subprocess.TimeoutExpired:
            code = None
        return EnvironmentFailureError(
            f"the worker process of environments {where.start} to {where.stop - 1} died (exit code {code})"
        )


def _start_worker(factories: Sequence[EnvFactory], first_index: int) -> tuple[subprocess.Popen[bytes], Connection]:
    luggage = cloudpickle.dumps((list(factories), first_index))  # first: what cannot be pickled starts no process
    ours, theirs = Pipe()
    command = f"from minerva.environments.workers import work; work({theirs.fileno()})"
    # One thread each: the workers are the parallelism.
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    # The package may be importable here only through this interpreter's own path (a script's folder, a test's).
    environment["PYTHONPATH"] = os.pathsep.join(path or str(Path.cwd()) for path in sys.path)
    process = subprocess.Popen(
        [sys.executable, "-c", command],
        pass_fds=[theirs.fileno()],
        env=environment,
        start_new_session=True,  # Ctrl-C is for the trainer, which finishes the step and saves
    )
    theirs.close()
    with contextlib.suppress(OSError):  # it has died already: whoever receives from it finds out and says so
        ours.send_bytes(luggage)
    return process, ours


def work(file_descriptor: int) -> None:
    """Serve one slice of the environments until the pipe closes (the body of a worker process)."""
    connection = Connection(file_descriptor)
    group = None
    try:
        group = _unpack(connection)
        while group is not None:
            verb, *arguments = connection.recv()
            try:
                answer = ("ok", getattr(group, verb)(*arguments))
            except EnvironmentFailureError as error:
                answer = ("failed", (str(error), traceback.format_exc()))
            connection.send(answer)
    except (EOFError, OSError):  # the trainer has closed the pipe, or is gone
        if group is not None:
            group.close()


def _unpack(connection: Connection) -> LocalGroup | None:
    luggage = connection.recv_bytes()
    try:
        factories, first_index = cloudpickle.loads(luggage)
        group = LocalGroup(factories, first_index)
        # The user's own spaces may be of classes that only cloudpickle can carry.
        answer = cloudpickle.dumps(("ok", group.spaces))
    except Exception as error:
        group = None
        if isinstance(error, ValueError):
            answer = cloudpickle.dumps(("invalid", str(error)))
        else:
            message = f"an environment could not be made in a worker process: {type(error).__name__}: {error}"
            answer = cloudpickle.dumps(("failed", (message, traceback.format_exc())))
    connection.send_bytes(answer)
    return group
