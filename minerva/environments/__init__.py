"""Batched environments: from an id, or a user's own factory, to N environments that are stepped together."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

from minerva.environments.base import BatchedEnvironment, EnvironmentFailureError, Episode, Step
from minerva.environments.ids import EnvFactory, display_name, known_ids, resolve
from minerva.utils.cores import usable_cores

if TYPE_CHECKING:
    from minerva.environments.envpool_backend import EnvPoolBatch
    from minerva.environments.gymnasium_backend import GymnasiumBatch, Vectorization
    from minerva.environments.normalizers import RewardNormalizer

__all__ = [
    "BatchedEnvironment",
    "EnvFactory",
    "EnvPoolBatch",
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


Backend = Literal["auto", "gymnasium", "envpool"]


def pool_from(threads: int | None = None) -> int:
    """Give the number of environments from which on the pool is the faster backend.

    Below, waking its threads costs more than they save: on two cores HalfCheetah-v5 and CartPole-v1 are faster in this
    process up to 8 environments, and slower from 16 on. The more threads there are, the fewer it takes.

    Args:
        threads: Of the pool; None for one a core.
    """
    return max(4, 32 // (threads or usable_cores()))


_WHERE = {
    "EnvPoolBatch": "minerva.environments.envpool_backend",
    "GymnasiumBatch": "minerva.environments.gymnasium_backend",
    "RewardNormalizer": "minerva.environments.normalizers",
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
    backend: Backend = "gymnasium",
    pool_threads: int | None = None,
) -> BatchedEnvironment:
    """Make a batched environment.

    Args:
        env: A Gymnasium id, ``dm_control/<domain>/<task>``, or a callable that returns a `gymnasium.Env`.
        num_envs: How many environments are stepped together.
        seed: Environment i is seeded from ``seed + i``.
        vectorization: Of the Gymnasium backend: ``"sync"`` for this process, ``"subprocess"`` for worker processes.
        num_workers: Worker processes; None for one a core.
        env_kwargs: Passed to the environment's constructor.
        allow_non_finite: Hand on what is not a finite number, in place of failing over it.
        backend: ``"gymnasium"``, ``"envpool"``, or ``"auto"`` for the pool where it is installed, serves the
            environment and is the faster one.
        pool_threads: Of the pool; None for one a core, and never more than environments.

    Raises:
        ValueError: The environment cannot be made, or not with this backend.
    """
    from minerva.environments import envpool_backend
    from minerva.environments.gymnasium_backend import GymnasiumBatch

    factory = resolve(env, env_kwargs, training=True)
    reason = None
    if backend == "auto":
        if vectorization == "subprocess":
            reason = "worker processes are Gymnasium's"
        elif num_envs < (enough := pool_from(pool_threads)):
            reason = f"here the pool is faster from {enough} environments on"
        else:
            reason = envpool_backend.why_not(env, env_kwargs)
    if backend == "envpool" or (backend == "auto" and reason is None):
        return envpool_backend.make_pool_batch(env, num_envs, seed, pool_threads, env_kwargs, allow_non_finite)
    batch = GymnasiumBatch([factory] * num_envs, seed, vectorization, num_workers, allow_non_finite)
    if reason is not None:
        batch.description += f" ({reason})"
    return batch
