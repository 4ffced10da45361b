"""Which backend an environment runs on, where the user leaves it open."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from minerva.environments import tasks
from minerva.environments.ids import ATARI_PREFIX, EnvFactory
from minerva.utils.cores import usable_cores


def min_pool_envs(threads: int | None = None) -> int:
    """Return the smallest number of environments for which EnvPool is faster than Gymnasium.

    With fewer, waking its threads costs more than they save: on two cores, HalfCheetah-v5 and CartPole-v1 are faster in
    this process up to 8 environments, and slower from 16. With more threads, fewer environments are enough.

    Args:
        threads: Threads of the pool (default: one per core).
    """
    return max(4, 32 // (threads or usable_cores()))


def choose_backend(
    env: str | EnvFactory,
    env_kwargs: Mapping[str, Any] | None = None,
    num_envs: int = 1,
    vectorization: str = "sync",
    threads: int | None = None,
) -> tuple[Literal["gymnasium", "mujoco", "envpool"], str]:
    """Return the backend that ``"auto"`` stands for, and why, for the log.

    This is MuJoCo for a task that it has, with arguments that it knows, because it is fast and resumes exactly; EnvPool
    for Atari, where it is installed and faster; and Gymnasium for everything else.

    Args:
        env: A Gymnasium id, ``dm_control/<domain>/<task>``, or a callable that returns a `gymnasium.Env`.
        env_kwargs: Passed to the environment's constructor.
        num_envs: Number of environments that step together.
        vectorization: ``"sync"`` or ``"subprocess"``.
        threads: Threads of MuJoCo or EnvPool (default: one per core).
    """
    if vectorization == "subprocess":
        return "gymnasium", "auto: only Gymnasium has worker processes"
    if isinstance(env, str) and env.startswith(ATARI_PREFIX):
        from minerva.environments import envpool_backend

        enough = min_pool_envs(threads)
        if num_envs < enough:
            return "gymnasium", f"auto: EnvPool is faster from {enough} environments"
        reason = envpool_backend.unsupported_reason(env, env_kwargs)
        return ("envpool", "auto: it is the fastest for Atari") if reason is None else ("gymnasium", f"auto: {reason}")
    reason = tasks.unsupported_reason(env, env_kwargs)
    return ("mujoco", "auto: it has this task") if reason is None else ("gymnasium", f"auto: {reason}")
