"""Batched environments: build N environments that step together from an id or a factory."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

from minerva.environments.base import BatchedEnvironment, EnvironmentFailureError, Episode, Step
from minerva.environments.ids import EnvFactory, EnvLike, display_name, known_ids, resolve, unlisted_ids
from minerva.environments.instances import source_of
from minerva.utils.cores import usable_cores

if TYPE_CHECKING:
    from minerva.environments.envpool_backend import EnvPoolBatch
    from minerva.environments.gymnasium_backend import GymnasiumBatch, Vectorization
    from minerva.environments.normalizers import RewardNormalizer

__all__ = [
    "BatchedEnvironment",
    "EnvFactory",
    "EnvLike",
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
    "source_of",
    "unlisted_ids",
]


Backend = Literal["auto", "gymnasium", "envpool"]


def min_pool_envs(threads: int | None = None) -> int:
    """Return the smallest number of environments for which EnvPool is the faster backend.

    With fewer, waking its threads costs more than they save: on two cores, HalfCheetah-v5 and CartPole-v1 are faster in
    this process up to 8 environments, and slower from 16. With more threads, fewer environments are enough.

    Args:
        threads: Threads of the pool (default: one per core).
    """
    return max(4, 32 // (threads or usable_cores()))


_LAZY = {
    "EnvPoolBatch": "minerva.environments.envpool_backend",
    "GymnasiumBatch": "minerva.environments.gymnasium_backend",
    "RewardNormalizer": "minerva.environments.normalizers",
}


def __getattr__(name: str) -> Any:
    # Worker processes import this package too: without torch they start ten times as fast, in a sixth of the memory.
    if name in _LAZY:
        return getattr(importlib.import_module(_LAZY[name]), name)
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
    first: int = 0,
    total: int | None = None,
) -> BatchedEnvironment:
    """Build a batched environment.

    Args:
        env: A Gymnasium id, ``dm_control/<domain>/<task>``, or a callable that returns a `gymnasium.Env`.
        num_envs: Number of environments that step together.
        seed: Each environment has a generator of its own, spawned from this.
        vectorization: For the Gymnasium backend: ``"sync"`` for this process, ``"subprocess"`` for worker processes.
        num_workers: Worker processes (default: one per core).
        env_kwargs: Passed to the environment's constructor.
        allow_non_finite: Pass on values that are not finite instead of raising an error.
        backend: ``"gymnasium"``, ``"envpool"``, or ``"auto"`` for EnvPool where it is installed, supports the
            environment and is faster.
        pool_threads: Threads of EnvPool (default: one per core, at most one per environment).
        first: Number of the first of these environments, where other processes hold the others of a run.
        total: Environments of the whole run (default: these).

    Raises:
        ValueError: The environment cannot be created, or not with this backend.
    """
    from minerva.environments import envpool_backend
    from minerva.environments.gymnasium_backend import GymnasiumBatch

    factory = resolve(env, env_kwargs, training=True)
    reason = None
    if backend == "auto":
        if vectorization == "subprocess":
            reason = "EnvPool has no worker processes"
        elif num_envs < (enough := min_pool_envs(pool_threads)):
            reason = f"here EnvPool is faster from {enough} environments"
        else:
            reason = envpool_backend.unsupported_reason(env, env_kwargs)
    if backend == "envpool" or (backend == "auto" and reason is None):
        place = (first, total or num_envs)
        return envpool_backend.make_pool_batch(env, num_envs, seed, pool_threads, env_kwargs, allow_non_finite, place)
    batch = GymnasiumBatch([factory] * num_envs, seed, vectorization, num_workers, allow_non_finite, first)
    if reason is not None:
        batch.description += f" ({reason})"
    return batch
