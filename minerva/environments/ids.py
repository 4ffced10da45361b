"""Environment ids: find the function that builds an environment."""

from __future__ import annotations

import difflib
import importlib
import importlib.util
import re
import sys
import warnings
from collections.abc import Callable, Container, Iterator, Mapping
from contextlib import contextmanager
from importlib import metadata
from typing import Any, Union

import gymnasium
from gymnasium.envs.registration import EnvSpec, load_env_creator, registry

from minerva.environments import wrappers
from minerva.environments.instances import Copies, source_of
from minerva.utils.ranges import shown

EnvFactory = Callable[[], "gymnasium.Env[Any, Any]"]
EnvLike = Union[str, EnvFactory, "gymnasium.Env[Any, Any]", EnvSpec]
"""An id, a function or class that makes an environment, or an environment that can be copied from its spec."""
DM_CONTROL_PREFIX = "dm_control/"
DM_CONTROL_FORM = "dm_control/<domain>/<task>, such as dm_control/cheetah/run"
ATARI_PREFIX = "ALE/"

# What Gymnasium's environments import, by the name of the module.
_PACKAGES = {
    "mujoco": 'MuJoCo, which is not installed: pip install "minerva-rl[mujoco]"',
    "Box2D": 'Box2D, which is not installed: pip install "minerva-rl[box2d]"',
    "cv2": 'OpenCV, which is not installed: pip install "minerva-rl[atari]"',
}

wrappers.register()


def resolve(env: str | EnvFactory, env_kwargs: Mapping[str, Any] | None = None, training: bool = False) -> EnvFactory:
    """Return a function that builds one environment from an id or from the user's factory.

    Args:
        env: A Gymnasium id, ``dm_control/<domain>/<task>``, or a callable that returns a `gymnasium.Env`.
        env_kwargs: Passed to the environment's constructor.
        training: Whether it is for training, where lives of an Atari game are episodes and its rewards are signs.

    Raises:
        ValueError: The name is unknown or malformed, or a package that it needs is not installed.
    """
    kwargs = dict(env_kwargs or {})
    if not isinstance(env, str):
        factory = env
        return lambda: factory(**kwargs)
    if env.startswith(DM_CONTROL_PREFIX):
        domain, task = _dm_control_parts(env)
        return lambda: _make_dm_control(domain, task, kwargs)
    if env.startswith(ATARI_PREFIX):
        if not _register_atari():
            raise ValueError(f'env: {env} needs ale-py, which is not installed: pip install "minerva-rl[atari]".')
        _check_gymnasium_id(env)
        return lambda: _make_gymnasium(env, kwargs, training)
    _check_gymnasium_id(env)
    return lambda: _make_gymnasium(env, kwargs)


def foreign_module(name: str, imported: Container[str]) -> str | None:
    """Return the module that making an environment of this id would import, if it is not Gymnasium's or Minerva's.

    "package.module:Env-v0" imports its module, which may do anything. One that is imported already does no more.

    Args:
        name: The id.
        imported: Modules that are imported already.
    """
    module, colon, _ = name.partition(":")
    known = module.split(".")[0] in ("gymnasium", "minerva") or module in imported
    return module if colon and not known else None


def display_name(env: EnvLike) -> str:
    """Return the name of an environment for logs and checkpoints."""
    env = source_of(env).env
    if isinstance(env, str):
        return env
    if isinstance(env, Copies):
        return env.display_name
    module, name = getattr(env, "__module__", "?"), getattr(env, "__qualname__", type(env).__name__)
    return f"custom:{module}.{name}"


def known_ids(pattern: str = "") -> list[str]:
    """List the available environment ids that contain `pattern` (ignoring case)."""
    _register_atari()
    # Without aliases that need a missing package, and without Shimmy's names of the dm_control tasks, which have other
    # names here.
    ids = [
        name
        for name, spec in registry.items()
        if spec.entry_point is not None
        and not _is_no_environment(spec.entry_point)
        and "tabular" not in name.lower()
        and not name.startswith(DM_CONTROL_PREFIX)
    ]
    ids += _dm_control_ids()
    return sorted(name for name in ids if pattern.lower() in name.lower())


def unlisted_ids() -> list[str]:
    """Return which environments `known_ids` leaves out because a package is not installed, and what installs it."""
    unlisted = []
    if _missing_for_dm_control():
        unlisted.append('dm_control\'s tasks (pip install "minerva-rl[dm-control]")')
    if not _register_atari():
        unlisted.append('Atari games (pip install "minerva-rl[atari]")')
    return unlisted


def _is_no_environment(entry_point: Callable[..., Any] | str) -> bool:
    """Return whether an id stands for an environment that has moved, or for an adapter to another library's."""
    if isinstance(entry_point, str):
        return entry_point.startswith("shimmy.openai_gym")
    return str(entry_point.__module__).startswith("gymnasium.") and getattr(entry_point, "__name__", "").startswith(
        "_raise_"
    )


def _register_atari() -> bool:
    if importlib.util.find_spec("ale_py") is None:
        return False
    import ale_py

    gymnasium.register_envs(ale_py)  # the import registers; this marks it as used
    return True


def _check_gymnasium_id(name: str) -> None:
    if ":" in name:  # "package:Env-v0" imports the package that registers the environment
        return
    try:
        gymnasium.spec(name)
    except gymnasium.error.Error as error:
        near = difflib.get_close_matches(name, known_ids(), n=3, cutoff=0.5)
        hint = f"Did you mean {', '.join(near)}?" if near else "`minerva envs` lists all ids."
        raise ValueError(f"env: no environment is called {name!r}. {hint}") from error


def _make_gymnasium(name: str, kwargs: dict[str, Any], training: bool = False) -> gymnasium.Env[Any, Any]:
    try:
        if name.startswith(ATARI_PREFIX):
            from minerva.environments.atari import make_atari

            _register_atari()  # this may be a worker process
            return make_atari(name, kwargs, training)
        # The passive checker is for authors of environments; here it would only slow down every step.
        _import_environment(name)
        with quiet_model_compiler():
            return gymnasium.make(name, disable_env_checker=True, **kwargs)
    except gymnasium.error.DependencyNotInstalled as error:
        package = getattr(error.__cause__, "name", None)  # of the module that was not found
        if package not in _PACKAGES or importlib.util.find_spec(package) is not None:
            raise not_made(name, kwargs, error) from error
        raise ValueError(f"env: {name} needs {_PACKAGES[package]}.") from error
    except Exception as error:  # a constructor may raise anything
        if isinstance(error, ValueError) and name.startswith(ATARI_PREFIX):
            raise
        raise not_made(name, kwargs, error) from error


def not_made(name: str, kwargs: Mapping[str, Any], error: Exception) -> ValueError:
    """Return the error for an environment that could not be made with these arguments."""
    reason = str(error) if isinstance(error, (TypeError, gymnasium.error.Error, ImportError)) else repr(error)
    given = shown(kwargs) if kwargs else "no arguments"
    return ValueError(f"env: {name} could not be made with {given}: {reason.rstrip('.')}.")


def _import_environment(name: str) -> None:
    """Import the module that an id stands for, as `gymnasium.make` is about to do."""
    module, _, registered = name.rpartition(":")
    if module:
        importlib.import_module(module)
    spec = registry.get(registered)
    if spec is not None and isinstance(spec.entry_point, str):
        load_env_creator(spec.entry_point)


@contextmanager
def quiet_model_compiler() -> Iterator[None]:
    """Silence MuJoCo's compiler, which warns about outdated models once per environment.

    It would print over the progress bar and write a log file to the current folder. Who has not imported MuJoCo by now
    does not use it, and importing it takes a tenth of a second.
    """
    mujoco = sys.modules.get("mujoco")
    if mujoco is None:
        yield
        return
    previous = mujoco.get_mju_user_warning()
    mujoco.set_mju_user_warning(lambda message: None)
    try:
        yield
    finally:
        mujoco.set_mju_user_warning(previous)


def _dm_control_parts(name: str) -> tuple[str, str]:
    parts = name.split("/")
    if len(parts) != 3 or not all(parts):
        raise ValueError(f"env: the id of a dm_control task must be {DM_CONTROL_FORM}; got {name!r}.")
    missing = _missing_for_dm_control()
    if missing:
        raise ValueError(
            f'env: {name} needs {missing[0]}, which is not installed: pip install "minerva-rl[dm-control]".'
        )
    ids = _dm_control_ids()
    if name not in ids:
        near = difflib.get_close_matches(name, ids, n=3, cutoff=0.5)
        hint = f"Did you mean {', '.join(near)}?" if near else "`minerva envs dm_control` lists all tasks."
        raise ValueError(f"env: dm_control has no task {name!r}. {hint}")
    return parts[1], parts[2]


def _missing_for_dm_control() -> list[str]:
    return [package for package in ("dm_control", "shimmy") if importlib.util.find_spec(package) is None]


def _dm_control_ids() -> list[str]:
    if _missing_for_dm_control():
        return []
    suite = _dm_control_suite()
    return [f"{DM_CONTROL_PREFIX}{domain}/{task}" for domain, task in suite.ALL_TASKS]


def _dm_control_suite() -> Any:
    # On import, its renderer warns if there is no screen; training needs none.
    with _own_filters():
        from dm_control import suite
    return suite


@contextmanager
def _own_filters() -> Iterator[None]:
    """Import without warnings, and keep the process's filters: dm_control's would show everybody's deprecations."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def _make_dm_control(domain: str, task: str, kwargs: dict[str, Any]) -> gymnasium.Env[Any, Any]:
    # Shimmy's registration also imports manipulation and locomotion; importing only the suite saves seconds.
    suite = _dm_control_suite()
    arguments = {name: value for name, value in kwargs.items() if name != "render_mode"}
    try:
        with _own_filters():
            from shimmy.dm_control_compatibility import DmControlCompatibilityV0

        with quiet_model_compiler():
            loaded = suite.load(domain, task, **arguments)
        env: gymnasium.Env[Any, Any] = DmControlCompatibilityV0(loaded, render_mode=kwargs.get("render_mode"))
    except Exception as error:
        name = f"{DM_CONTROL_PREFIX}{domain}/{task}"
        if isinstance(error, AttributeError) and re.search(r"\bMj\w+' object has no attribute", str(error)):
            raise ValueError(
                f"env: {name} cannot be made: dm_control {metadata.version('dm-control')} does not work with MuJoCo "
                f"{metadata.version('mujoco')} ({error}); install versions that fit together: "
                'pip install "minerva-rl[dm-control]".'
            ) from error
        raise not_made(name, kwargs, error) from error
    return env
