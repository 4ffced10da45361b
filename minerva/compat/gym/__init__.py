"""The older interface of gym over Gymnasium: ``reset() -> observation``, ``step() -> observation, reward, done, info``.

It has what scripts for stable-baselines use. Spaces and errors are Gymnasium's own classes.
"""

from minerva.compat.gym import core, envs, error, logger, spaces, utils, wrappers
from minerva.compat.gym.core import (
    ActionWrapper,
    Env,
    GoalEnv,
    ObservationWrapper,
    RewardWrapper,
    Space,
    Wrapper,
)
from minerva.compat.gym.envs.registration import make, register, spec

__version__ = "0.21.0"

__all__ = [
    "ActionWrapper",
    "Env",
    "GoalEnv",
    "ObservationWrapper",
    "RewardWrapper",
    "Space",
    "Wrapper",
    "core",
    "envs",
    "error",
    "logger",
    "make",
    "register",
    "spaces",
    "spec",
    "utils",
    "wrappers",
]
