"""Gymnasium's errors."""

from gymnasium.error import *  # noqa: F403
