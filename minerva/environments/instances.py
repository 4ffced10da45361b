"""Environments that a user has made already: a run trains on copies of them."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any, NamedTuple

import gymnasium
from gymnasium.envs.registration import EnvSpec, registry

if TYPE_CHECKING:
    from minerva.environments.ids import EnvFactory, EnvLike


class Source(NamedTuple):
    """What environments are made from."""

    env: str | EnvFactory
    kwargs: dict[str, Any]  # for `gymnasium.make`, besides those of the config
    note: str | None  # a sentence for the user


def source_of(env: EnvLike) -> Source:
    """Return what copies of an environment are made from; an id or a function stays what it is.

    Raises:
        ValueError: It is none of these, or an environment that cannot be copied; the message says what to write.
    """
    if isinstance(env, str):
        if env.endswith("Policy"):
            raise ValueError(
                f"env_id: must be an environment, got {env!r}, which is a policy of stable-baselines. The environment "
                'comes first here, and its observations decide the networks: minerva.PPOTrainer("CartPole-v1").'
            )
        return Source(env, {}, None)
    if isinstance(env, EnvSpec):
        return _copied(env, "")
    if isinstance(env, gymnasium.Env):
        return _copied(env.spec, type(env.unwrapped).__name__)
    other: Any = env  # whatever a user may give
    if callable(other):
        return Source(env, {}, None)
    if hasattr(other, "num_envs"):
        raise ValueError(_not_for_vectors(other))
    raise ValueError(
        'env_id: must be an id such as "CartPole-v1", a function or class that makes an environment, or an '
        f"environment that gymnasium.make returned; got {type(other).__name__}."
    )


class Copies:
    """Makes copies of an environment with the wrappers that its spec records."""

    def __init__(self, spec: EnvSpec) -> None:
        self._spec = spec

    def __call__(self, **kwargs: Any) -> gymnasium.Env[Any, Any]:
        """Make one copy."""
        return gymnasium.make(self._spec, disable_env_checker=True, **kwargs)

    @property
    def display_name(self) -> str:
        """Return the id with the names of the wrappers."""
        wrappers = (wrapper.name for wrapper in self._spec.additional_wrappers)
        return "custom:" + "+".join([self._spec.id, *wrappers])


def _copied(spec: EnvSpec | None, made_by: str) -> Source:
    if spec is None:
        raise ValueError(
            f"env_id: must be an environment that can be copied, got an instance of {made_by} without a spec, because "
            f"gymnasium.make did not make it. Give the class, {made_by}, or a function: lambda: {made_by}(…)."
        )
    unknown = [wrapper.name for wrapper in spec.additional_wrappers if wrapper.kwargs is None]
    if unknown:
        raise ValueError(
            f"env_id: must be an environment that can be copied, got {spec.id} in {unknown[0]}, which does not record "
            f'its arguments. Give a function: lambda: {unknown[0]}(gymnasium.make("{spec.id}"), …).'
        )
    kwargs = {name: value for name, value in spec.kwargs.items() if name != "render_mode"}
    mode = spec.kwargs.get("render_mode")
    note = "Training on copies of the environment."
    if mode == "human":
        note = 'Training on copies of the environment, which open no window (render_mode "human").'
    known = registry.get(spec.id)
    if known is None or spec.entry_point != known.entry_point or spec.additional_wrappers or not _is_plain(kwargs):
        spec = copy.copy(spec)
        spec.kwargs = {**kwargs, **({"render_mode": mode} if mode not in (None, "human") else {})}
        return Source(Copies(spec), {}, note)
    own = {name: value for name, value in kwargs.items() if name not in known.kwargs or known.kwargs[name] != value}
    if spec.max_episode_steps != known.max_episode_steps:
        own["max_episode_steps"] = -1 if spec.max_episode_steps is None else spec.max_episode_steps
    return Source(spec.id, own, note)


def _is_plain(value: Any) -> bool:
    """Return whether a value can be stored with a run's settings."""
    if isinstance(value, dict):
        return all(isinstance(key, str) and _is_plain(item) for key, item in value.items())
    if isinstance(value, (list, tuple)):
        return all(map(_is_plain, value))
    return value is None or isinstance(value, (bool, int, float, str))


def _not_for_vectors(env: Any) -> str:
    spec = getattr(env, "spec", None)
    name = f'"{spec.id}"' if isinstance(spec, EnvSpec) else "its id, or a function that makes one of them"
    return (
        f"env_id: must be one environment, got {type(env).__name__}, a vector of {env.num_envs}. A run makes and steps "
        f"its environments itself: give {name} and num_envs={env.num_envs}."
    )
