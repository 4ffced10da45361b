"""Tasks of the batched MuJoCo backend: which there are, by id, and how to add one."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
from collections.abc import Mapping
from typing import Any

from minerva.environments.tasks.base import Draws, Start, State, Task

__all__ = ["Draws", "Start", "State", "Task", "built_in", "find_task", "make_task", "register", "unsupported_reason"]

_TASKS = {
    "Ant-v5": "v5.ant:Ant",
    "HalfCheetah-v5": "v5.half_cheetah:HalfCheetah",
    "Hopper-v5": "v5.hopper:Hopper",
    "Humanoid-v5": "v5.humanoid:Humanoid",
    "InvertedDoublePendulum-v5": "v5.inverted_double_pendulum:InvertedDoublePendulum",
    "InvertedPendulum-v5": "v5.inverted_pendulum:InvertedPendulum",
    "Reacher-v5": "v5.reacher:Reacher",
    "Swimmer-v5": "v5.swimmer:Swimmer",
    "Walker2d-v5": "v5.walker2d:Walker2d",
    "dm_control/cartpole/balance": "suite.cartpole:Balance",
    "dm_control/cartpole/swingup": "suite.cartpole:Swingup",
    "dm_control/cheetah/run": "suite.cheetah:Run",
    "dm_control/finger/spin": "suite.finger:Spin",
    "dm_control/hopper/hop": "suite.hopper:Hop",
    "dm_control/hopper/stand": "suite.hopper:Stand",
    "dm_control/humanoid/run": "suite.humanoid:Run",
    "dm_control/humanoid/stand": "suite.humanoid:Stand",
    "dm_control/humanoid/walk": "suite.humanoid:Walk",
    "dm_control/pendulum/swingup": "suite.pendulum:Swingup",
    "dm_control/reacher/easy": "suite.reacher:Easy",
    "dm_control/reacher/hard": "suite.reacher:Hard",
    "dm_control/walker/run": "suite.walker:Run",
    "dm_control/walker/stand": "suite.walker:Stand",
    "dm_control/walker/walk": "suite.walker:Walk",
}

NOT_OF_THE_TASK = frozenset(
    {
        "camera_id", "camera_name", "default_camera_config", "disable_env_checker", "height", "max_episode_steps",
        "max_geom", "render_mode", "visual_options", "width",
    }
)  # fmt: skip
"""Arguments of Gymnasium's environments that change no step: pictures, and the time limit, which is the engine's."""

ENVIRONMENT = "minerva.environments.tasks.environment:TaskEnvironment"


def find_task(name: str) -> Any | None:
    """Return the class, or function, that makes the task of an environment id, or None if there is none.

    Args:
        name: An id. ``"module:Name-v0"`` imports the module, which registers the task.
    """
    if name in _TASKS:
        module, _, task = _TASKS[name].partition(":")
        return getattr(importlib.import_module(f"{__name__}.{module}"), task)
    from gymnasium.envs.registration import registry

    module, _, registered = name.rpartition(":")
    if module:
        importlib.import_module(module)
    spec = registry.get(registered)
    return None if spec is None or spec.entry_point != ENVIRONMENT else spec.kwargs["task"]


def built_in() -> list[str]:
    """Return the ids of the tasks that Minerva has."""
    return sorted(_TASKS)


def unsupported_reason(env: Any, env_kwargs: Mapping[str, Any] | None = None) -> str | None:
    """Return why the MuJoCo backend cannot run an environment, or None if it can."""
    if not isinstance(env, str):
        return "the MuJoCo backend runs tasks by their id, not environments from your own function"
    if importlib.util.find_spec("mujoco") is None:
        return 'MuJoCo is not installed: pip install "minerva-rl[mujoco]"'
    task = find_task(env)
    if task is None:
        return f"the MuJoCo backend has no task {env}"
    unknown = _unknown_arguments(task, env_kwargs or {})
    if unknown:
        return f"the MuJoCo backend's {env} does not accept {', '.join(unknown)} (in env_kwargs)"
    return None


def _unknown_arguments(task: Any, env_kwargs: Mapping[str, Any]) -> list[str]:
    parameters = inspect.signature(task).parameters.values()
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
        return []
    return sorted(env_kwargs.keys() - {parameter.name for parameter in parameters} - NOT_OF_THE_TASK)


def make_task(task: Any, env_kwargs: Mapping[str, Any]) -> Task:
    """Make a task with the environment's arguments."""
    made: Task = task(**{name: value for name, value in env_kwargs.items() if name not in NOT_OF_THE_TASK})
    return made


def register(name: str, task: Any, max_episode_steps: int | None = None) -> None:
    """Register a task of one's own under an id, for Minerva and for `gymnasium.make`.

    Args:
        name: The id, such as ``"Balance-v0"``.
        task: A subclass of `Task`, or a function that returns a task. Its keyword arguments are the environment's.
        max_episode_steps: The time limit of an episode, in environment steps.
    """
    import gymnasium

    gymnasium.register(name, entry_point=ENVIRONMENT, max_episode_steps=max_episode_steps, kwargs={"task": task})
