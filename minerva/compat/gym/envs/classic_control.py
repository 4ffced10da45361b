"""Gymnasium's classic control environments with the older interface, for scripts that derive their own from them."""

from gymnasium.envs import classic_control as gymnasiums

from minerva.compat.gym.core import Env, OldInterface


class AcrobotEnv(OldInterface, gymnasiums.AcrobotEnv, Env):  # type: ignore[misc]
    """Swing up a pendulum of two links."""


class CartPoleEnv(OldInterface, gymnasiums.CartPoleEnv, Env):  # type: ignore[misc]
    """Balance a pole on a cart."""


class Continuous_MountainCarEnv(OldInterface, gymnasiums.Continuous_MountainCarEnv, Env):  # type: ignore[misc]  # noqa: N801
    """Drive up a hill with continuous force."""


class MountainCarEnv(OldInterface, gymnasiums.MountainCarEnv, Env):  # type: ignore[misc]
    """Drive up a hill."""


class PendulumEnv(OldInterface, gymnasiums.PendulumEnv, Env):  # type: ignore[misc]
    """Swing up a pendulum."""
