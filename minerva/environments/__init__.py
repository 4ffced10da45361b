"""Batched environments: from an id, or a user's own factory, to N environments that are stepped together."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from minerva.environments.base import BatchedEnvironment, EnvironmentFailureError, Episode, Step
from minerva.environments.ids import EnvFactory, display_name, known_ids, resolve

if TYPE_CHECKING:
    from minerva.environments.gymnasium_backend import GymnasiumBatch, Vectorization
    from minerva.environments.normalisers import RewardNormalizer

__all__ = [
    "BatchedEnvironment",
    "EnvFactory",
    "EnvironmentFailureError",
    "Episode",
    "GymnasiumBatch",
    "RewardNormalizer",
    "Step",
    "display_name",
    "known_ids",
    "make",
    "resolve",
]


_WHERE = {
    "GymnasiumBatch": "minerva.environments.gymnasium_backend",
    "RewardNormalizer": "minerva.environments.normalisers",
}


def __getattr__(name: str) -> Any:
    # Lazily: a worker process imports this package too, and without torch it starts ten times as fast in a sixth of
    # the memory.
    if name in _WHERE:
        return getattr(importlib.import_module(_WHERE[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def make(
    env: str | EnvFactory,
    num_envs: int = 1,
    seed: int = 42,
    vectorization: Vectorization = "sync",
    num_workers: int | None = None,
    env_kwargs: Mapping[str, Any] | None = None,
    allow_non_finite: bool = False,
) -> BatchedEnvironment:
    """Make a batched environment.

    Args:
        env: A Gymnasium id, ``dm_control/<domain>/<task>``, or a callable that returns a `gymnasium.Env`.
        num_envs: How many environments are stepped together.
        seed: Environment i is seeded from ``seed + i``.
        vectorization: ``"sync"`` for this process, ``"subprocess"`` for worker processes.
        num_workers: Worker processes; None for one a core.
        env_kwargs: Passed to the environment's constructor.
        allow_non_finite: Hand on what is not a finite number, in place of failing over it.
    """
    from minerva.environments.gymnasium_backend import GymnasiumBatch

    factory = resolve(env, env_kwargs)
    return GymnasiumBatch([factory] * num_envs, seed, vectorization, num_workers, allow_non_finite)
