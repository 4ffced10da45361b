"""Make environments by their id: those registered here, and Gymnasium's, whose newer ids stand for the older ones."""

from __future__ import annotations

import importlib
import importlib.util
import re
import sys
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import gymnasium

from minerva.compat.aliases import real_name
from minerva.compat.gym.core import with_old_interface
from minerva.compat.gym.wrappers import TimeLimit

_ID = re.compile(r"(?P<name>.+)-v(?P<version>\d+)")


@dataclass
class EnvSpec:
    """What an environment was registered with: id, entry point, arguments and time limit."""

    id: str
    entry_point: str | Callable[..., Any]
    reward_threshold: float | None = None
    nondeterministic: bool = False
    max_episode_steps: int | None = None
    kwargs: dict[str, Any] = field(default_factory=dict)

    def make(self, **kwargs: Any) -> Any:
        """Make the environment."""
        build = _load(self.entry_point) if isinstance(self.entry_point, str) else self.entry_point
        env = with_old_interface(build(**{**self.kwargs, **kwargs}))
        env.unwrapped.spec = self
        return env if self.max_episode_steps is None else TimeLimit(env, self.max_episode_steps)


class Registry:
    """The registered environments."""

    def __init__(self) -> None:
        self.registered: dict[str, EnvSpec] = {}

    @property
    def env_specs(self) -> dict[str, Any]:
        """Every environment by its id, Gymnasium's included."""
        return {**gymnasium.registry, **self.registered}

    def all(self) -> list[Any]:
        """Return every environment."""
        return list(self.env_specs.values())

    def spec(self, name: str) -> Any:
        """Return what an environment id was registered with."""
        return self.registered[name] if name in self.registered else gymnasium.spec(current_id(name))


registry = Registry()
_said: set[str] = set()


def register(
    id: str,
    entry_point: str | Callable[..., Any],
    reward_threshold: float | None = None,
    nondeterministic: bool = False,
    max_episode_steps: int | None = None,
    kwargs: dict[str, Any] | None = None,
    **_: Any,
) -> None:
    """Register an environment with the older interface.

    Args:
        id: Its id, ``<name>-v<number>``.
        entry_point: A class or function, or its place, ``"package.module:Name"``.
        reward_threshold: The return from which it counts as solved.
        nondeterministic: Whether equal seeds may give different episodes.
        max_episode_steps: Length of an episode.
        kwargs: Arguments of the environment.
    """
    if _ID.fullmatch(id) is None:
        raise gymnasium.error.Error(f"id: must have the form <name>-v<number>, got {id!r}.")
    if id in registry.registered:
        raise gymnasium.error.Error(f"id: {id} is registered already.")
    registry.registered[id] = EnvSpec(
        id, entry_point, reward_threshold, nondeterministic, max_episode_steps, dict(kwargs or {})
    )


def spec(id: str) -> Any:
    """Return what an environment id was registered with."""
    return registry.spec(id)


def make(id: str, **kwargs: Any) -> Any:
    """Make an environment with the older interface.

    Args:
        id: An id that was registered here, one of Gymnasium's, or an older one, for which the newest is taken.
        kwargs: Arguments of the environment.
    """
    module, colon, name = id.rpartition(":")
    if colon:
        importlib.import_module(module)
    if name in registry.registered:
        return registry.registered[name].make(**kwargs)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # an id that there is a newer one for is still right here
        return with_old_interface(gymnasium.make(current_id(name), disable_env_checker=True, **kwargs))


def current_id(name: str) -> str:
    """Return Gymnasium's id for an older one, and say it once; other names are returned as they are."""
    if not _exists(name):
        _register_atari()
    match = _ID.fullmatch(name)
    if _exists(name) or match is None:
        return name
    newer = [
        (int(found["version"]), other)
        for other in gymnasium.registry
        if (found := _ID.fullmatch(other)) is not None and found["name"] == match["name"] and _exists(other)
    ]
    if not newer:
        return name
    newest = max(newer)[1]
    if name not in _said:
        _said.add(name)
        print(f"gym: {name} is not available any more, {newest} is used in its place.", file=sys.stderr)
    return newest


def with_registered(factories: Sequence[Callable[[], Any]]) -> list[Callable[[], Any]]:
    """Return functions that make the same environments in a process where nothing is registered yet.

    Args:
        factories: Functions that make environments.
    """
    registered, said = dict(registry.registered), set(_said)
    return [partial(_make_with, registered, said, factory) for factory in factories]


def _make_with(registered: dict[str, EnvSpec], said: set[str], factory: Callable[[], Any]) -> Any:
    registry.registered.update(registered)
    _said.update(said)
    return factory()


def _exists(name: str) -> bool:
    found = gymnasium.registry.get(name)
    # Where an environment has moved, its id stands for a function that raises an error.
    return found is not None and not getattr(found.entry_point, "__name__", "").startswith("_raise_")


def _register_atari() -> None:
    if importlib.util.find_spec("ale_py") is not None:
        import ale_py

        ale_py.ALEInterface.setLoggerMode(ale_py.LoggerMode.Error)  # without its banner
        gymnasium.register_envs(ale_py)


def _load(place: str) -> Any:
    module, _, name = place.partition(":")
    return getattr(importlib.import_module(real_name(module) or module), name)
