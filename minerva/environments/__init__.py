"""Batched environments: build N environments that step together from an id or a factory."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

from minerva.environments.base import BatchedEnvironment, EnvironmentFailureError, Episode, Step
from minerva.environments.choice import choose_backend
from minerva.environments.ids import EnvFactory, EnvLike, display_name, known_ids, resolve, unlisted_ids
from minerva.environments.instances import source_of
from minerva.environments.tasks import unsupported_reason

if TYPE_CHECKING:
    from minerva.environments.envpool_backend import EnvPoolBatch
    from minerva.environments.gymnasium_backend import GymnasiumBatch, Vectorization
    from minerva.environments.mujoco_backend import MujocoBatch
    from minerva.environments.normalizers import RewardNormalizer

__all__ = [
    "BatchedEnvironment",
    "EnvFactory",
    "EnvLike",
    "EnvPoolBatch",
    "EnvironmentFailureError",
    "Episode",
    "GymnasiumBatch",
    "MujocoBatch",
    "RewardNormalizer",
    "Step",
    "choose_backend",
    "display_name",
    "known_ids",
    "make",
    "resolve",
    "source_of",
    "unlisted_ids",
]


Backend = Literal["auto", "gymnasium", "mujoco", "envpool"]


_LAZY = {
    "EnvPoolBatch": "minerva.environments.envpool_backend",
    "GymnasiumBatch": "minerva.environments.gymnasium_backend",
    "MujocoBatch": "minerva.environments.mujoco_backend",
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
        backend: ``"gymnasium"``, ``"mujoco"``, ``"envpool"``, or ``"auto"`` (see `choose_backend`).
        pool_threads: Threads of MuJoCo or EnvPool (default: one per core, at most one per environment).
        first: Number of the first of these environments, where other processes hold the others of a run.
        total: Environments of the whole run (default: these).

    Raises:
        ValueError: The environment cannot be created, or not with this backend.
    """
    factory = resolve(env, env_kwargs, training=True)
    chosen, why = backend, ""
    if backend == "auto":
        chosen, why = choose_backend(env, env_kwargs, num_envs, vectorization, pool_threads)
    batch: BatchedEnvironment
    if chosen == "mujoco":
        reason = unsupported_reason(env, env_kwargs)
        if reason is not None:  # before the import, which needs MuJoCo
            raise ValueError(f"backend: {reason}; use backend gymnasium, or auto for MuJoCo where it has the task.")
        from minerva.environments.mujoco_backend import make_mujoco_batch

        assert isinstance(env, str)
        batch = make_mujoco_batch(env, num_envs, seed, pool_threads, env_kwargs, allow_non_finite, first)
    elif chosen == "envpool":
        from minerva.environments.envpool_backend import make_pool_batch

        place = (first, total or num_envs)
        batch = make_pool_batch(env, num_envs, seed, pool_threads, env_kwargs, allow_non_finite, place)
    else:
        from minerva.environments.gymnasium_backend import GymnasiumBatch

        batch = GymnasiumBatch([factory] * num_envs, seed, vectorization, num_workers, allow_non_finite, first)
    if why:
        batch.description += f" ({why})"
    return batch
