"""Groups of environments whose methods can be called too (no torch here: worker processes import this)."""

from __future__ import annotations

import multiprocessing
import signal
from collections.abc import Sequence
from typing import Any, Protocol

import gymnasium
import numpy as np
from gymnasium.vector import AsyncVectorEnv
from numpy.typing import NDArray

from minerva.environments.base import EnvironmentFailureError, Rows
from minerva.environments.ids import EnvFactory
from minerva.environments.workers import Group, LocalGroup, Outcome

Call = tuple[Sequence[Any], dict[str, Any]]
"""Arguments of a method: by position and by name."""


class CallableGroup(Group, Protocol):
    """A group that lets the methods of its environments be called."""

    def call(self, name: str, calls: Sequence[Call | None]) -> list[Any]:
        """Call a method of each environment, or of a wrapper around it (None: leave alone, and answer None)."""
        ...


class CallableLocalGroup(LocalGroup):
    """Environments of this process."""

    def call(self, name: str, calls: Sequence[Call | None]) -> list[Any]:
        """Call a method of each environment, or of a wrapper around it (None: leave alone, and answer None)."""
        answers: list[Any] = []
        for i, given in enumerate(calls):
            try:
                answers.append(None if given is None else self.envs[i].get_wrapper_attr(name)(*given[0], **given[1]))
            except Exception as error:
                raise self._failure(i, name, error) from error
        return answers


class ProcessGroup:
    """Environments of worker processes, one each, which step at the same time.

    Gymnasium runs the processes; what is asked of an environment is asked of a group of one that lives beside it.

    Args:
        factories: One function an environment.
        start_method: How processes are started: "forkserver", "spawn" or "fork".
    """

    def __init__(self, factories: Sequence[EnvFactory], start_method: str | None = None) -> None:
        makers = [_obeying(factory, i) for i, factory in enumerate(factories)]
        context = start_method or "forkserver"
        self._vector = AsyncVectorEnv(makers, shared_memory=False, context=context)
        self.spaces: tuple[gymnasium.Space[Any], gymnasium.Space[Any]] = (
            self._vector.single_observation_space,
            self._vector.single_action_space,
        )
        self.mask_dim: int = self._vector.call("mask_dim")[0]
        self.description = f"{len(factories)} worker process{'es' * (len(factories) > 1)}"
        self._outcome = Outcome.empty(len(factories), self.spaces[0], self.mask_dim)
        self._open = True

    def apply(self, actions: NDArray[np.float32], orders: NDArray[np.int64]) -> Outcome:
        """Carry out one order for each environment; the arrays returned are overwritten by the next call."""
        parts = self._ask("apply", [(actions[i : i + 1], orders[i : i + 1]) for i in range(len(orders))])
        for i, part in enumerate(parts):
            for whole, one in zip(self._outcome, part, strict=True):
                whole[i] = one[0]
        return self._outcome

    def replay(
        self,
        seeds: Sequence[int | None],
        actions: Sequence[NDArray[np.float32]],
        continued: Sequence[Sequence[int]],
    ) -> Rows:
        """Reset with the seeds and take the actions; returns the observations reached (None: leave alone)."""
        parts = self._ask("replay", [([seeds[i]], [actions[i]], [continued[i]]) for i in range(len(seeds))])
        self._outcome.observations[:] = np.concatenate(parts)
        return self._outcome.observations

    def call(self, name: str, calls: Sequence[Call | None]) -> list[Any]:
        """Call a method of each environment, or of a wrapper around it (None: leave alone, and answer None)."""
        return [answers[0] for answers in self._ask("call", [(name, [given]) for given in calls])]

    def close(self) -> None:
        """End the workers."""
        if self._open:
            self._open = False
            self._vector.close()

    def _ask(self, verb: str, arguments: list[Any]) -> list[Any]:
        try:
            answers = self._vector.call("obey", verb, arguments)
        except (EOFError, OSError) as error:
            raise EnvironmentFailureError("the worker process of an environment died") from error
        failures = [answer for status, answer in answers if status == "failed"]
        if failures:
            raise EnvironmentFailureError(failures[0])
        return [answer for _, answer in answers]


class Obeying(gymnasium.Wrapper[Any, Any, Any, Any]):
    """An environment in its worker process.

    Args:
        env: What is wrapped.
        index: Its place among the others.
    """

    def __init__(self, env: gymnasium.Env[Any, Any], index: int) -> None:
        super().__init__(env)
        self._index = index
        self._group = CallableLocalGroup([lambda: env], first_index=index)
        self.mask_dim = self._group.mask_dim

    def obey(self, verb: str, arguments: Sequence[Any]) -> tuple[str, Any]:
        """Do what a group is asked, with this environment's share of the arguments; failures are answers."""
        try:
            return "ok", getattr(self._group, verb)(*arguments[self._index])
        except EnvironmentFailureError as error:
            return "failed", str(error)


def _obeying(factory: EnvFactory, index: int) -> EnvFactory:
    def make() -> gymnasium.Env[Any, Any]:
        if multiprocessing.parent_process() is not None:
            signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the trainer, which finishes the step
        return Obeying(factory(), index)

    return make
