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

from minerva.environments.base import EnvironmentFailureError, Rows
from minerva.environments.ids import EnvFactory
from minerva.environments.masks import MaskError, find_masks, mask_source, write_mask
from minerva.environments.spaces import action_converter, category_counts, flat_size, flat_writer, row_dtype
from minerva.utils.cores import usable_cores

STEP = -1
"""Order: step this environment with its action. A number from 0 on means: reset it with that seed."""
IDLE = -2
"""Order: leave this environment alone."""
CONTINUE = -3
"""Order: reset this environment without a seed: its game goes on after a life was lost."""


class Outcome(NamedTuple):
    """What a group gave for one round of orders (rows of idle environments keep what they held)."""

    observations: Rows  # [n, O]
    rewards: NDArray[np.float64]  # [n]
    terminated: NDArray[np.bool_]  # [n]
    truncated: NDArray[np.bool_]  # [n]
    goes_on: NDArray[np.bool_]  # [n]: where an episode ended, only a life was lost
    scores: NDArray[np.float64]  # [n]: what counts for an episode's return; the rewards, but for clipped ones

    @classmethod
    def empty(cls, n: int, observation_space: gymnasium.Space[Any], mask_dim: int) -> Outcome:
        """Make room for n environments."""
        rows = np.zeros((n, flat_size(observation_space) + mask_dim), dtype=row_dtype(observation_space))
        terminated, truncated, goes_on = np.zeros((3, n), dtype=np.bool_)
        return cls(rows, np.zeros(n), terminated, truncated, goes_on, np.zeros(n))


class Group(Protocol):
    """Environments that take orders, wherever they live."""

    spaces: tuple[gymnasium.Space[Any], gymnasium.Space[Any]]
    mask_dim: int
    description: str

    def apply(self, actions: NDArray[np.float32], orders: NDArray[np.int64]) -> Outcome:
        """Carry out one order for each environment."""
        ...

    def replay(
        self,
        seeds: Sequence[int | None],
        actions: Sequence[NDArray[np.float32]],
        continued: Sequence[Sequence[int]],
    ) -> Rows:
        """Reset with the seeds and take the actions; returns the observations reached (None: leave alone).

        The actions at the places `continued` were none: there the environment was told to go on after a lost life.
        """
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
        self._for_environment = action_converter(env.action_space)
        self._plain_numbers = isinstance(env.action_space, gymnasium.spaces.Discrete) and _is_gymnasiums_own(env)
        self._counts = category_counts(env.action_space)
        try:
            self.mask_dim = sum(self._counts) if find_masks(env) else 0
        except Exception as error:
            raise self._failure(0, "reset", error) from error
        self._masks = [mask_source(env) for env in self.envs] if self.mask_dim else []
        self._outcome = Outcome.empty(len(self.envs), env.observation_space, self.mask_dim)
        self._rows = [row[: len(row) - self.mask_dim] for row in self._outcome.observations]
        # Clipped rewards are for learning; episodes are still counted in the game's own points.
        self._tells_score = env.has_wrapper_attr("tells_score")
        if not self._tells_score:
            self._outcome = self._outcome._replace(scores=self._outcome.rewards)

    def apply(self, actions: NDArray[np.float32], orders: NDArray[np.int64]) -> Outcome:
        """Carry out one order for each environment; the arrays returned are overwritten by the next call."""
        _, rewards, terminated, truncated, goes_on, scores = self._outcome
        envs, rows, write, masks, tells_score = self.envs, self._rows, self._write, self._masks, self._tells_score
        env_actions: Any = self._for_environment(actions)
        if self._plain_numbers:
            env_actions = env_actions.tolist()
        for i, order in enumerate(orders.tolist()):
            if order == IDLE:
                continue
            try:
                if order == STEP:
                    observation, rewards[i], over, cut, info = envs[i].step(env_actions[i])
                    terminated[i], truncated[i] = over, cut
                    ended = over or cut
                    if ended:
                        goes_on[i] = info.get("life_lost", False)
                    if tells_score:
                        scores[i] = info["score"]
                else:
                    observation, info = envs[i].reset(seed=None if order == CONTINUE else order)
                    rewards[i] = scores[i] = 0.0
                    terminated[i] = truncated[i] = goes_on[i] = ended = False
                write(observation, rows[i])
                if masks:
                    self._write_mask(i, info, ended)
            except Exception as error:
                raise self._failure(i, "step" if order == STEP else "reset", error) from error
        return self._outcome

    def replay(
        self,
        seeds: Sequence[int | None],
        actions: Sequence[NDArray[np.float32]],
        continued: Sequence[Sequence[int]],
    ) -> Rows:
        """Reset with the seeds and take the actions; returns the observations reached (None: leave alone)."""
        for i, seed in enumerate(seeds):
            if seed is None:
                continue
            resets = set(continued[i])
            try:
                observation, info = self.envs[i].reset(seed=seed)
                over = cut = False
                for t, action in enumerate(self._for_environment(actions[i])):
                    if t in resets:
                        observation, info = self.envs[i].reset()
                        over = cut = False
                    else:
                        observation, _, over, cut, info = self.envs[i].step(action)
                self._write(observation, self._rows[i])
                if self._masks:
                    self._write_mask(i, info, over or cut)
            except Exception as error:
                raise self._failure(i, "replay", error) from error
        return self._outcome.observations

    def close(self) -> None:
        """Close every environment."""
        envs, self.envs = self.envs, []  # closing twice is no error
        for env in envs:
            env.close()

    def _write_mask(self, i: int, info: dict[str, Any], ended: bool) -> None:
        row = self._outcome.observations[i, -self.mask_dim :]
        write_mask(self._masks[i](info), self._counts, row, ended)

    def _failure(self, i: int, what: str, error: Exception) -> EnvironmentFailureError:
        if isinstance(error, MaskError):
            return EnvironmentFailureError(f"environment {self.first_index + i}, in {what}: {error}")
        return EnvironmentFailureError(
            f"environment {self.first_index + i} raised {type(error).__name__} in {what}: {error}"
        )


def _is_gymnasiums_own(env: gymnasium.Env[Any, Any]) -> bool:
    """Whether an environment and all its wrappers are Gymnasium's.

    These take a choice as a plain number too, and check it several times as fast as one of NumPy's, which is what
    others may count on.
    """
    while isinstance(env, gymnasium.Wrapper):
        if not type(env).__module__.startswith("gymnasium."):
            return False
        env = env.env
    return type(env).__module__.startswith("gymnasium.")


class SubprocessGroup:
    """Environments spread evenly over worker processes, which step at the same time.

    Workers are started as fresh interpreters, not forked from a process that holds threads and not spawned by
    importing the user's script again: a script needs no ``if __name__ == "__main__"``.
    """

    def __init__(self, factories: Sequence[EnvFactory], num_workers: int | None = None) -> None:
        n = len(factories)
        count = min(n, num_workers or usable_cores())
        edges = np.linspace(0, n, count + 1).astype(int).tolist()
        self._slices = [slice(start, stop) for start, stop in itertools.pairwise(edges)]
        self.description = f"{count} worker process{'es' * (count > 1)}"
        self._workers: list[tuple[subprocess.Popen[bytes], Connection]] = []
        try:
            for where in self._slices:
                self._workers.append(_start_worker(factories[where], where.start))
            answers = [self._receive(k) for k in range(count)]
        except BaseException:
            self.close()
            raise
        self.spaces: tuple[gymnasium.Space[Any], gymnasium.Space[Any]]
        self.spaces, self.mask_dim = answers[0]
        self._outcome = Outcome.empty(n, self.spaces[0], self.mask_dim)

    def apply(self, actions: NDArray[np.float32], orders: NDArray[np.int64]) -> Outcome:
        """Carry out one order for each environment; the arrays returned are overwritten by the next call."""
        for k, where in enumerate(self._slices):
            self._send(k, ("apply", actions[where], orders[where]))
        for where, outcome in zip(self._slices, self._receive_all(), strict=True):
            for whole, part in zip(self._outcome, outcome, strict=True):
                whole[where] = part
        return self._outcome

    def replay(
        self,
        seeds: Sequence[int | None],
        actions: Sequence[NDArray[np.float32]],
        continued: Sequence[Sequence[int]],
    ) -> Rows:
        """Reset with the seeds and take the actions; returns the observations reached (None: leave alone)."""
        for k, where in enumerate(self._slices):
            self._send(k, ("replay", seeds[where], actions[where], continued[where]))
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
        answer = cloudpickle.dumps(("ok", (group.spaces, group.mask_dim)))
    except Exception as error:
        group = None
        if isinstance(error, ValueError):
            answer = cloudpickle.dumps(("invalid", str(error)))
        else:
            message = f"an environment could not be made in a worker process: {type(error).__name__}: {error}"
            answer = cloudpickle.dumps(("failed", (message, traceback.format_exc())))
    connection.send_bytes(answer)
    return group
