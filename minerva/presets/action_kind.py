"""Tell whether the actions of an environment are continuous or discrete."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from minerva.presets import ActionKind

if TYPE_CHECKING:
    from minerva.environments.ids import EnvFactory


def action_kind(env: str | EnvFactory, env_kwargs: Mapping[str, Any] | None = None) -> ActionKind:
    """Return the kind of an environment's actions.

    Where the id does not tell (dm_control's and Gymnasium's MuJoCo tasks are continuous), one environment is made and
    closed again.

    Raises:
        ValueError: The environment cannot be made.
        EnvironmentFailureError: Its constructor failed.
    """
    from minerva.environments.ids import DM_CONTROL_PREFIX, resolve

    if isinstance(env, str) and (env.startswith(DM_CONTROL_PREFIX) or _is_mujoco(env)):
        return "continuous"
    factory = resolve(env, env_kwargs, training=True)

    from gymnasium.spaces import Box

    from minerva.environments.workers import make_env

    made = make_env(factory)
    try:
        return "continuous" if isinstance(getattr(made, "action_space", None), Box) else "discrete"
    finally:
        made.close()


def _is_mujoco(env_id: str) -> bool:
    from gymnasium.envs.registration import registry

    spec = registry.get(env_id)
    return spec is not None and str(spec.entry_point).startswith("gymnasium.envs.mujoco")
