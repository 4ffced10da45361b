"""Make vector environments from ids, classes, environments and functions."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from functools import partial
from typing import Any

import gymnasium

from minerva import environments
from minerva.callbacks.checks import positive_int
from minerva.compat.auto_reset import MIGRATION_HINT, EnvFactory, atari_game
from minerva.compat.stable_baselines.common.vec_env.group_vec_env import DummyVecEnv, SubprocVecEnv, VecEnv


def make_vec_env(
    env_id: str | Callable[..., gymnasium.Env[Any, Any]],
    n_envs: int = 1,
    seed: int | None = None,
    start_index: int = 0,
    monitor_dir: str | None = None,
    wrapper_class: Callable[[Any], gymnasium.Env[Any, Any]] | None = None,
    env_kwargs: dict[str, Any] | None = None,
    vec_env_cls: type[DummyVecEnv | SubprocVecEnv] | None = None,
    vec_env_kwargs: dict[str, Any] | None = None,
) -> VecEnv:
    """Make a vector environment from an id or a class.

    Args:
        env_id: An id, or a class or function that makes a `gymnasium.Env`.
        n_envs: Number of environments.
        seed: Environment i is seeded with ``seed + start_index + i``.
        start_index: Index of the first environment.
        monitor_dir: Must be None: no files are written. Episodes are in ``infos[i]["episode"]``.
        wrapper_class: Wraps each environment.
        env_kwargs: Arguments of the environment.
        vec_env_cls: `DummyVecEnv` (default) or `SubprocVecEnv`.
        vec_env_kwargs: Arguments of `vec_env_cls`.
    """
    if monitor_dir is not None:
        raise ValueError(
            f"monitor_dir: must be None, got {monitor_dir!r}: episode files are not supported. Returns and lengths are "
            "in infos[i]['episode'], model.ep_info_buf and TensorBoard."
        )
    positive_int("n_envs", n_envs)
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
    """Make Atari environments that return one grayscale frame, ``[84, 84, 1]``; `VecFrameStack` stacks them.

    The preprocessing is fixed: four frames per step, one episode per life, rewards clipped to their sign, random no-op
    frames and the fire button at the start.

    Args:
        env_id: An id, such as ``PongNoFrameskip-v4`` or ``ALE/Pong-v5``.
        num_env: Number of environments.
        seed: Environment i is seeded with ``seed + start_index + i``.
        wrapper_kwargs: Must be empty: the preprocessing is fixed.
        start_index: Index of the first environment.
        allow_early_resets: Ignored: a reset is always allowed.
        start_method: See `SubprocVecEnv`.
        use_subprocess: Whether to run each environment in its own process.
    """
    if wrapper_kwargs:
        raise ValueError(
            f"wrapper_kwargs: must be empty, got {wrapper_kwargs!r}: the preprocessing is fixed. For other "
            "preprocessing, use make_vec_env."
        )
    if importlib.util.find_spec("ale_py") is None:
        raise ValueError(f'env_id: {env_id} needs ale-py, which is not installed: pip install "minerva-rl[atari]".')
    factories = [partial(atari_game, env_id)] * num_env
    venv = SubprocVecEnv(factories, start_method) if use_subprocess else DummyVecEnv(factories)
    venv.seed(seed + start_index)
    return venv


def as_vec_env(env: Any) -> VecEnv:
    """Return a vector environment for what PPO2 accepts as `env`.

    Raises:
        ValueError: PPO2 does not accept `env`.
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
        "env: must be an id, a gymnasium.Env, a function that makes one, or a vector environment; got "
        f"{type(env).__module__}.{type(env).__name__}. {MIGRATION_HINT}."
    )
