"""From what a script names to vector environments."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from functools import partial
from typing import Any

import gymnasium

from minerva import environments
from minerva.compat.stable_baselines.old_env import CONVERT, EnvFactory, atari_game
from minerva.compat.stable_baselines.vec_env import DummyVecEnv, SubprocVecEnv, VecEnv

Wrap = Callable[[Any], "gymnasium.Env[Any, Any]"]


def make_vec_env(
    env_id: str | Callable[..., gymnasium.Env[Any, Any]],
    n_envs: int = 1,
    seed: int | None = None,
    start_index: int = 0,
    monitor_dir: str | None = None,
    wrapper_class: Wrap | None = None,
    env_kwargs: dict[str, Any] | None = None,
    vec_env_cls: type[DummyVecEnv | SubprocVecEnv] | None = None,
    vec_env_kwargs: dict[str, Any] | None = None,
) -> VecEnv:
    """Make a vector environment of an id, or of a class.

    Args:
        env_id: An id, or a class or function that makes a `gymnasium.Env`.
        n_envs: How many.
        seed: Environment i is seeded with ``seed + start_index + i``.
        start_index: Where to count from.
        monitor_dir: Has to be None: no files are written. Episodes are in ``infos[i]["episode"]``.
        wrapper_class: Wraps each environment.
        env_kwargs: Arguments of the environment.
        vec_env_cls: `DummyVecEnv` (None) or `SubprocVecEnv`.
        vec_env_kwargs: Its arguments.
    """
    if monitor_dir is not None:
        raise ValueError(
            f"monitor_dir: must be None, got {monitor_dir!r}: files of episodes are not written. Returns and lengths "
            "are in infos[i]['episode'], model.ep_info_buf and TensorBoard."
        )
    if isinstance(n_envs, bool) or not isinstance(n_envs, int) or n_envs < 1:
        raise ValueError(f"n_envs: must be a whole number from 1 on, got {n_envs!r}.")
    inner = environments.resolve(env_id, env_kwargs, training=True)
    factory: EnvFactory = inner if wrapper_class is None else lambda: wrapper_class(inner())
    venv = (vec_env_cls or DummyVecEnv)([factory] * n_envs, **(vec_env_kwargs or {}))
    if seed is not None:
        venv.seed(seed + start_index)
    return venv


def make_atari_env(
    env_id: str,
    num_env: int = 1,
    seed: int = 0,
    wrapper_kwargs: dict[str, Any] | None = None,
    start_index: int = 0,
    allow_early_resets: bool = True,
    start_method: str | None = None,
    use_subprocess: bool = False,
) -> VecEnv:
    """Make Atari games that show one grey frame, ``[84, 84, 1]``; `VecFrameStack` stacks them.

    Four frames a step, a life as an episode, the sign of a reward, random idle frames and the fire button at the start.

    Args:
        env_id: Such as ``PongNoFrameskip-v4`` or ``ALE/Pong-v5``.
        num_env: How many.
        seed: Environment i is seeded with ``seed + start_index + i``.
        wrapper_kwargs: Has to be empty: the preprocessing is fixed.
        start_index: Where to count from.
        allow_early_resets: Accepted and ignored: a reset is always allowed.
        start_method: Of the processes.
        use_subprocess: Whether games run in processes of their own.
    """
    if wrapper_kwargs:
        raise ValueError(
            f"wrapper_kwargs: must be empty, got {wrapper_kwargs!r}: the preprocessing is fixed. Make the environments "
            "yourself, with make_vec_env, to choose your own."
        )
    if importlib.util.find_spec("ale_py") is None:
        raise ValueError(f'env_id: {env_id} needs ale-py, which is not installed: pip install "minerva-rl[atari]".')
    factories = [partial(atari_game, env_id)] * num_env
    venv = SubprocVecEnv(factories, start_method) if use_subprocess else DummyVecEnv(factories)
    venv.seed(seed + start_index)
    return venv


def as_vec_env(env: Any) -> VecEnv:
    """Make a vector environment of what PPO2 takes for one.

    Raises:
        ValueError: It is something else.
    """
    if isinstance(env, VecEnv):
        return env
    if isinstance(env, str):
        return make_vec_env(env)
    if isinstance(env, gymnasium.Env):
        return DummyVecEnv([lambda: env])
    if isinstance(env, gymnasium.vector.VectorEnv) or hasattr(env, "num_envs"):
        raise ValueError(
            f"env: must be a vector environment of minerva.compat.stable_baselines, got {type(env).__module__}."
            f"{type(env).__name__}; make one with DummyVecEnv, SubprocVecEnv or make_vec_env."
        )
    if callable(env):
        return DummyVecEnv([env])
    raise ValueError(
        f"env: must be an id, a gymnasium.Env, a function that makes one, or a vector environment; got "
        f"{type(env).__module__}.{type(env).__name__}. {CONVERT}."
    )
