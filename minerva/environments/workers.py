"""Step and reset groups of environments, in this process or in worker processes."""

from __future__ import annotations

import contextlib
import itertools
import os
import pickle
import subprocess
import sys
import traceback
import warnings
from collections.abc import Callable, Sequence
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import cloudpickle
import gymnasium
import numpy as np
from numpy.typing import NDArray

from minerva.environments.base import EnvironmentFailureError
from minerva.environments.checks import (
    PLAIN_NUMBERS,
    WrongValueError,
    check_info,
    check_reset,
    check_step,
    described,
    error_text,
    one_flag,
    one_number,
)
from minerva.environments.groups import CONTINUE, IDLE, STEP, Outcome, Replayed, RunningEpisode
from minerva.environments.ids import EnvFactory
from minerva.environments.masks import find_masks, mask_source, write_mask
from minerva.environments.spaces import action_converter, category_counts, flat_writer
from minerva.utils.cores import usable_cores


class LocalGroup:
    """Environments in this process, stepped one after the other."""

    def __init__(self, factories: Sequence[EnvFactory], first_index: int = 0) -> None:
        self.first_index = first_index
        self.current = 0  # the environment that the newest call is busy with
        self.envs: list[gymnasium.Env[Any, Any]] = []
        for factory in factories:
            self.envs.append(self._make(factory))
        env = self.envs[0]
        self.spaces: tuple[gymnasium.Space[Any], gymnasium.Space[Any]] = (
            _space_of(env, "observation_space"),
            _space_of(env, "action_space"),
        )
        self.description = "in process"
        self._write = flat_writer(env.observation_space)
        self._convert_actions = action_converter(env.action_space)
        self._int_actions = isinstance(env.action_space, gymnasium.spaces.Discrete) and is_from_gymnasium(env)
        self._counts = category_counts(env.action_space)
        try:
            self.mask_dim = sum(self._counts) if find_masks(env) else 0
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            raise self._failure(0, "reset", error) from error
        self._masks = [mask_source(env) for env in self.envs] if self.mask_dim else []
        self._outcome = Outcome.empty(len(self.envs), env.observation_space, self.mask_dim)
        self._rows = [row[: len(row) - self.mask_dim] for row in self._outcome.observations]
        # Learning uses clipped rewards; episode returns are still the sum of the game's own scores.
        self._tells_score = env.has_wrapper_attr("tells_score")
        if not self._tells_score:
            self._outcome = self._outcome._replace(scores=self._outcome.rewards)

    def apply(self, actions: NDArray[np.float32], orders: NDArray[np.int64]) -> Outcome:
        """Apply one order to each environment; the next call overwrites the returned arrays."""
        _, rewards, terminated, truncated, goes_on, scores = self._outcome
        envs, rows, write, masks, tells_score = self.envs, self._rows, self._write, self._masks, self._tells_score
        env_actions: Any = self._convert_actions(actions)
        if self._int_actions:
            env_actions = env_actions.tolist()
        for i, order in enumerate(orders.tolist()):
            if order == IDLE:
                continue
            self.current = i
            try:
                if order == STEP:
                    result: Any = envs[i].step(env_actions[i])
                    if result.__class__ is not tuple or len(result) != 5:
                        result = check_step(result)
                    observation, reward, is_terminal, is_truncated, info = result
                    # Types that most environments return are looked at here, where it takes no call.
                    if reward.__class__ not in PLAIN_NUMBERS:
                        reward = one_number(reward)
                    if is_terminal.__class__ is not bool:
                        is_terminal = one_flag(is_terminal, "terminated")
                    if is_truncated.__class__ is not bool:
                        is_truncated = one_flag(is_truncated, "truncated")
                    if info.__class__ is not dict:
                        check_info(info)
                    rewards[i], terminated[i], truncated[i] = reward, is_terminal, is_truncated
                    ended = is_terminal or is_truncated
                    if ended:
                        goes_on[i] = info.get("life_lost", False)
                    if tells_score:
                        scores[i] = info["score"]
                else:
                    observation, info = check_reset(envs[i].reset(seed=None if order == CONTINUE else order))
                    rewards[i] = scores[i] = 0.0
                    terminated[i] = truncated[i] = goes_on[i] = ended = False
                write(observation, rows[i])
                if masks:
                    self._write_mask(i, info, ended)
            except KeyboardInterrupt:
                raise
            except BaseException as error:  # sys.exit in an environment too
                raise self._failure(i, "step" if order == STEP else "reset", error) from error
        return self._outcome

    def replay(self, episodes: Sequence[RunningEpisode | None]) -> Replayed:
        """Reset each environment with its episode's seed and repeat the actions (None: leave it alone)."""
        problems: list[str | None] = []
        for i, episode in enumerate(episodes):
            self.current = i
            try:
                problems.append(None if episode is None else self._replay(i, episode))
            except KeyboardInterrupt:
                raise
            except WrongValueError as error:
                problems.append(f"while its actions were repeated, {error}")
            except BaseException as error:
                problems.append(f"it raised {type(error).__name__} while its actions were repeated")
        return Replayed(self._outcome.observations, problems)

    def _replay(self, i: int, episode: RunningEpisode) -> str | None:
        env, resets = self.envs[i], set(episode.continued)
        observation, info = check_reset(env.reset(seed=episode.seed))
        ended = False
        for t, action in enumerate(self._convert_actions(episode.actions)):
            if t in resets:
                observation, info = check_reset(env.reset())
                ended = False
            else:
                observation, _, is_terminal, is_truncated, info = check_step(env.step(action))
                ended = bool(is_terminal or is_truncated)
            if ended and t + 1 not in resets:
                return "its episode ended earlier than it did before"
        self._write(observation, self._rows[i])
        if self._masks:
            self._write_mask(i, info, ended)
        return None

    def where(self) -> str:
        """Return which environment the newest call is busy with."""
        return f"environment {self.first_index + self.current}"

    def close(self) -> None:
        """Close every environment; one that cannot be closed is a warning, because the run is saved by then."""
        envs, self.envs = self.envs, []  # a second close does nothing
        failures = []
        for i, env in enumerate(envs):
            try:
                env.close()
            except KeyboardInterrupt:
                raise
            except BaseException as error:
                failures.append(str(self._failure(i, "close", error)))
        if failures:
            warnings.warn("; ".join(failures), RuntimeWarning, stacklevel=2)

    def _make(self, factory: EnvFactory) -> gymnasium.Env[Any, Any]:
        try:
            return make_env(factory, self.first_index + len(self.envs))
        except BaseException:
            self.close()
            raise

    def _write_mask(self, i: int, info: dict[str, Any], ended: bool) -> None:
        row = self._outcome.observations[i, -self.mask_dim :]
        write_mask(self._masks[i](info), self._counts, row, ended)

    def _failure(self, i: int, what: str, error: BaseException) -> EnvironmentFailureError:
        name = f"environment {self.first_index + i}"
        if isinstance(error, WrongValueError):
            return EnvironmentFailureError(f"{name}, in {what}: {error}")
        text = error_text(error)
        return EnvironmentFailureError(f"{name} raised {type(error).__name__} in {what}{': ' * bool(text)}{text}")


def make_env(factory: EnvFactory, index: int = 0) -> gymnasium.Env[Any, Any]:
    """Make one environment.

    Args:
        factory: Makes it.
        index: Its number among the environments of a run, for errors.

    Raises:
        ValueError: The factory refuses its arguments, or returns something else.
        EnvironmentFailureError: The factory failed.
    """
    try:
        env: Any = factory()
    except BaseException as error:
        text = error_text(error)
        if isinstance(error, KeyboardInterrupt) or (isinstance(error, ValueError) and text):  # the user's mistake
            raise
        raise EnvironmentFailureError(
            f"environment {index} could not be made by its factory: {type(error).__name__}{': ' * bool(text)}{text}"
        ) from error
    if not isinstance(env, gymnasium.Env):
        raise ValueError(f"env: the factory must return a gymnasium.Env, got {type(env).__name__}.")
    return env


def _space_of(env: gymnasium.Env[Any, Any], name: str) -> gymnasium.Space[Any]:
    space = getattr(env, name, None)
    if not isinstance(space, gymnasium.Space):
        raise ValueError(f"env: its {name} must be a gymnasium.Space, got {described(space)}.")
    return space


def is_from_gymnasium(env: Any) -> bool:
    """Return whether an environment and all its wrappers are classes of Gymnasium.

    These accept a discrete action as a Python int, which they check several times faster than a NumPy integer. Other
    classes may rely on a NumPy integer.
    """
    while isinstance(env, gymnasium.Wrapper):
        if not type(env).__module__.startswith("gymnasium."):
            return False
        env = env.env
    return type(env).__module__.startswith("gymnasium.")


class SubprocessGroup:
    """Environments spread evenly over worker processes that step in parallel.

    Each worker is a new Python interpreter: it is not forked from a process with threads, and it does not import the
    user's script again. A script therefore needs no ``if __name__ == "__main__"``.

    Args:
        factories: One function per environment.
        num_workers: Worker processes (default: one per core).
        local: What a worker holds: a class like `LocalGroup`, made of its factories and the index of the first.
    """

    def __init__(
        self, factories: Sequence[EnvFactory], num_workers: int | None = None, local: Callable[..., Any] = LocalGroup
    ) -> None:
        n = len(factories)
        count = min(n, num_workers or usable_cores())
        edges = np.linspace(0, n, count + 1).astype(int).tolist()
        self.slices = [slice(start, stop) for start, stop in itertools.pairwise(edges)]
        self.description = f"{count} worker process{'es' * (count > 1)}"
        self._workers: list[tuple[subprocess.Popen[bytes], Connection]] = []
        self._current = 0  # the worker whose answer is awaited
        try:
            for part in self.slices:
                self._workers.append(_start_worker(local, factories[part], part.start))
            answers = [self._receive(k) for k in range(count)]
        except BaseException:
            self.close()
            raise
        self.spaces: tuple[gymnasium.Space[Any], gymnasium.Space[Any]]
        self.spaces, self.mask_dim = answers[0]
        self._outcome = Outcome.empty(n, self.spaces[0], self.mask_dim)

    def apply(self, actions: NDArray[np.float32], orders: NDArray[np.int64]) -> Outcome:
        """Apply one order to each environment; the next call overwrites the returned arrays."""
        outcomes = self.ask("apply", [(actions[part], orders[part]) for part in self.slices])
        for part, outcome in zip(self.slices, outcomes, strict=True):
            for whole, values in zip(self._outcome, outcome, strict=True):
                whole[part] = values
        return self._outcome

    def replay(self, episodes: Sequence[RunningEpisode | None]) -> Replayed:
        """Reset each environment with its episode's seed and repeat the actions (None: leave it alone)."""
        parts: list[Replayed] = self.ask("replay", [(episodes[part],) for part in self.slices])
        self._outcome.observations[:] = np.concatenate([part.observations for part in parts])
        return Replayed(self._outcome.observations, list(itertools.chain(*(part.problems for part in parts))))

    def close(self) -> None:
        """Stop the workers; kill any that has not exited after two seconds."""
        for _, connection in self._workers:
            connection.close()  # a worker exits when its pipe closes, also when this process is killed
        for process, _ in self._workers:
            try:
                process.wait(timeout=2)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self._workers = []

    def ask(self, method: str, arguments: Sequence[tuple[Any, ...]]) -> list[Any]:
        """Call a method of the group in each worker and return the answers."""
        # All are pickled before the first is sent: if one cannot be, no worker has received a request.
        messages = [_pack(method, (method, *own)) for own in arguments]
        for k, message in enumerate(messages):
            try:
                self._workers[k][1].send_bytes(message)
            except OSError as error:
                raise self._dead_worker_error(k) from error
        # Receive every answer before raising an error: one left in its pipe would be read as the next request's answer.
        answers, failure = [], None
        for k in range(len(self._workers)):
            try:
                answers.append(self._receive(k))
            except EnvironmentFailureError as error:
                failure = failure or error
        if failure is not None:
            raise failure
        return answers

    def where(self) -> str:
        """Return which worker's answer is awaited."""
        process, part = self._workers[self._current][0], self.slices[self._current]
        return f"the worker process of {_environments(part)} (process {process.pid})"

    def _receive(self, k: int) -> Any:
        self._current = k
        try:
            status, value = self._workers[k][1].recv()
        except (EOFError, OSError) as error:
            raise self._dead_worker_error(k) from error
        if status == "invalid":
            raise ValueError(value)
        if status == "failed":
            message, details = value
            raise EnvironmentFailureError(message) from RuntimeError(details)
        return value

    def _dead_worker_error(self, k: int) -> EnvironmentFailureError:
        process, part = self._workers[k][0], self.slices[k]
        try:
            code = process.wait(timeout=1)
        except subprocess.TimeoutExpired:
            code = None
        return EnvironmentFailureError(f"the worker process of {_environments(part)} died (exit code {code})")


def _environments(part: slice) -> str:
    return f"environments {part.start} to {part.stop - 1}"


def _start_worker(
    local: Callable[..., Any], factories: Sequence[EnvFactory], first_index: int
) -> tuple[subprocess.Popen[bytes], Connection]:
    payload = cloudpickle.dumps((local, list(factories), first_index))  # before the process starts: this may raise
    ours, theirs = Pipe()
    command = f"from minerva.environments.workers import work; work({theirs.fileno()})"
    # One thread per worker: the workers already run in parallel.
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    environment["PYTHONPATH"] = os.pathsep.join(_import_folders())
    process = subprocess.Popen(
        [sys.executable, "-c", command],
        pass_fds=[theirs.fileno()],
        env=environment,
        start_new_session=True,  # only the trainer receives Ctrl-C: it finishes the step and saves
    )
    theirs.close()
    with contextlib.suppress(OSError):  # the worker has died already: the first receive reports it
        ours.send_bytes(payload)
    return process, ours


def _import_folders() -> list[str]:
    """Return where a worker finds what this interpreter imports, maybe only through its own `sys.path`.

    The folder of a package whose parent is listed as well is left out, unless it is the folder of the script: an import
    of OpenCV that fails leaves its folder behind, where a worker would find `typing` before Python's own.
    """
    folders = [path or str(Path.cwd()) for path in sys.path]
    script = getattr(sys.modules["__main__"], "__file__", None)
    kept = None if script is None else Path(script).resolve().parent
    return [
        folder
        for folder in folders
        if str(Path(folder).parent) not in folders
        or not (Path(folder) / "__init__.py").exists()
        or Path(folder).resolve() == kept
    ]


def work(file_descriptor: int) -> None:
    """Run a worker process: step its environments until the pipe closes."""
    connection = Connection(file_descriptor)
    group = None
    try:
        group = _make_group(connection)
        while group is not None:
            method, *arguments = connection.recv()
            try:
                answer = _pack(method, ("ok", getattr(group, method)(*arguments)))
            except BaseException as error:
                answer = pickle.dumps(("failed", (error_text(error), traceback.format_exc())))
            connection.send_bytes(answer)
    except (EOFError, OSError):  # the trainer has closed the pipe or died
        if group is not None:
            group.close()


def _pack(method: str, message: tuple[Any, ...]) -> bytes:
    # Arguments and results of an environment's own methods may be of classes that only cloudpickle can pickle.
    packed: bytes
    try:
        packed = (cloudpickle if method == "ask" else pickle).dumps(message)
    except Exception:  # an info holds such a class
        packed = cloudpickle.dumps(message)
    return packed


def _make_group(connection: Connection) -> Any:
    payload = connection.recv_bytes()
    try:
        local, factories, first_index = cloudpickle.loads(payload)
        group = local(factories, first_index)
        # The spaces may be of the user's classes, which only cloudpickle can pickle.
        answer = cloudpickle.dumps(("ok", (group.spaces, group.mask_dim)))
    except BaseException as error:
        group = None
        text = error_text(error)
        if isinstance(error, ValueError):
            answer = cloudpickle.dumps(("invalid", text))
        else:
            message = f"an environment could not be made in a worker process: {type(error).__name__}: {text}"
            if isinstance(error, EnvironmentFailureError):
                message = text
            answer = cloudpickle.dumps(("failed", (message, traceback.format_exc())))
    connection.send_bytes(answer)
    return group
