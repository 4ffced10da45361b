"""Make vector environments from ids, classes, environments and functions."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from minerva.callbacks.checks import positive_int
from minerva.compat.auto_reset import EnvFactory
from minerva.compat.gym.core import GymnasiumAdapter
from minerva.compat.stable_baselines.common.vec_env.base_vec_env import VecEnv
from minerva.compat.stable_baselines.common.vec_env.dummy_vec_env import DummyVecEnv
from minerva.compat.stable_baselines.common.vec_env.subproc_vec_env import SubprocVecEnv
from minerva.environments.ids import DM_CONTROL_PREFIX, resolve


def make_vec_env(
    env_id: str | Callable[..., Any],
    n_envs: int = 1,
    seed: int | None = None,
    start_index: int = 0,
    monitor_dir: str | os.PathLike[str] | None = None,
    wrapper_class: Callable[[Any], Any] | None = None,
    env_kwargs: dict[str, Any] | None = None,
    vec_env_cls: type[DummyVecEnv | SubprocVecEnv] | None = None,
    vec_env_kwargs: dict[str, Any] | None = None,
) -> VecEnv:
    """Make a vector environment from an id or a class.

    Args:
        env_id: An id, or a class or function that makes an environment.
        n_envs: Number of environments.
        seed: Environment i is seeded with ``seed + start_index + i``.
        start_index: Index of the first environment.
        monitor_dir: Folder for the files of the `Monitor` around each environment, or None for no files.
        wrapper_class: Wraps each environment, outside the `Monitor`.
        env_kwargs: Arguments of the environment.
        vec_env_cls: `DummyVecEnv` (default) or `SubprocVecEnv`.
        vec_env_kwargs: Arguments of `vec_env_cls`.
    """
    n_envs = positive_int("n_envs", n_envs)
    if monitor_dir is not None:
        Path(monitor_dir).mkdir(parents=True, exist_ok=True)
    factory = env_factory(env_id, env_kwargs)
    files = [None if monitor_dir is None else Path(monitor_dir) / str(start_index + i) for i in range(n_envs)]
    factories = [partial(_make, factory, file, wrapper_class) for file in files]
    venv = (vec_env_cls or DummyVecEnv)(factories, **(vec_env_kwargs or {}))
    if seed is not None:
        venv.seed(int(seed) + start_index)
        venv.action_space.seed(int(seed) + start_index)
    return venv


def _make(factory: EnvFactory, file: Path | None, wrapper_class: Callable[[Any], Any] | None) -> Any:
    from minerva.compat.stable_baselines.bench.monitor import Monitor

    env = factory()
    monitor = Monitor(env, file)
    if wrapper_class is None:
        return monitor
    try:
        return wrapper_class(monitor)
    except (AssertionError, TypeError) as error:  # the former before Gymnasium 1.4
        if "gymnasium.Env" not in str(error):
            raise
    # A wrapper of Gymnasium, which accepts no other environments than Gymnasium's.
    if monitor.file_handler is not None:
        monitor.file_handler.close()
    return Monitor(wrapper_class(env.gymnasium_env if isinstance(env, GymnasiumAdapter) else env), file)


def env_factory(env_id: str | Callable[..., Any], env_kwargs: dict[str, Any] | None = None) -> EnvFactory:
    """Return a function that makes an environment from an id, with gym's interface, or from a class or function."""
    if not isinstance(env_id, str) or env_id.startswith(DM_CONTROL_PREFIX):
        return resolve(env_id, env_kwargs)
    return partial(_make_from_id, env_id, dict(env_kwargs or {}))


def _make_from_id(env_id: str, kwargs: dict[str, Any]) -> Any:
    from minerva.compat import gym

    return gym.make(env_id, **kwargs)


def make_mujoco_env(env_id: str, seed: int, allow_early_resets: bool = True) -> Any:
    """Make a MuJoCo environment with a `Monitor`, and seed it.

    Args:
        env_id: Its id.
        seed: The seed.
        allow_early_resets: Whether an episode may be given up.
    """
    from minerva.compat.stable_baselines.bench.monitor import Monitor

    env = Monitor(_make_from_id(env_id, {}), None, allow_early_resets=allow_early_resets)
    env.seed(seed)
    return env


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

    Args:
        env_id: An id, such as ``PongNoFrameskip-v4``.
        num_env: Number of environments.
        seed: Environment i is seeded with ``seed + start_index + i``.
        wrapper_kwargs: Arguments of `wrap_deepmind`.
        start_index: Index of the first environment.
        allow_early_resets: Whether a game may be given up before its end.
        start_method: See `SubprocVecEnv`.
        use_subprocess: Whether to run each environment in its own process.
    """
    make = partial(_make_atari, env_id, allow_early_resets, dict(wrapper_kwargs or {}))
    factories = [make] * positive_int("num_env", num_env)
    subprocesses = use_subprocess and num_env > 1
    venv = SubprocVecEnv(factories, start_method) if subprocesses else DummyVecEnv(factories)
    venv.seed(int(seed) + start_index)
    return venv


def _make_atari(env_id: str, allow_early_resets: bool, wrapper_kwargs: dict[str, Any]) -> Any:
    from minerva.compat.stable_baselines.bench.monitor import Monitor
    from minerva.compat.stable_baselines.common.atari_wrappers import make_atari, wrap_deepmind

    game = Monitor(make_atari(env_id), None, allow_early_resets=allow_early_resets)
    return wrap_deepmind(game, **wrapper_kwargs)


def as_vec_env(env: Any) -> VecEnv:
    """Return a vector environment for what PPO2 accepts as `env`.

    Raises:
        ValueError: PPO2 does not accept `env`.
    """
    if isinstance(env, VecEnv):
        return env
    if isinstance(env, str):
        return make_vec_env(env)
    if hasattr(env, "num_envs"):
        raise ValueError(
            f"env: must be a vector environment of minerva.compat.stable_baselines, got {type(env).__module__}."
            f"{type(env).__name__}; make one with DummyVecEnv, SubprocVecEnv or make_vec_env."
        )
    if hasattr(env, "reset") and not isinstance(env, type):
        return DummyVecEnv([lambda: env])
    if callable(env):
        return DummyVecEnv([env])
    raise ValueError(
        "env: must be an id, an environment of Gymnasium or gym, a function that makes one, or a vector environment; "
        f"got {type(env).__module__}.{type(env).__name__}."
    )


def arg_parser() -> argparse.ArgumentParser:
    """Return an empty parser of a command line whose help shows defaults."""
    return argparse.ArgumentParser(formatter_class=argparse.ArgumentDefaultsHelpFormatter)


def atari_arg_parser() -> argparse.ArgumentParser:
    """Return a parser of ``--env``, ``--seed`` and ``--num-timesteps`` for Atari games."""
    return _task_parser("BreakoutNoFrameskip-v4", int(1e7))


def mujoco_arg_parser() -> argparse.ArgumentParser:
    """Return a parser of ``--env``, ``--seed``, ``--num-timesteps`` and ``--play`` for MuJoCo tasks."""
    parser = _task_parser("Reacher-v2", int(1e6))
    parser.add_argument("--play", default=False, action="store_true", help="act after training")
    return parser


def _task_parser(env: str, steps: int) -> argparse.ArgumentParser:
    parser = arg_parser()
    parser.add_argument("--env", help="environment ID", default=env)
    parser.add_argument("--seed", help="RNG seed", type=int, default=0)
    parser.add_argument("--num-timesteps", help="environment steps", type=int, default=steps)
    return parser
