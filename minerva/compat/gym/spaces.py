"""Gymnasium's spaces."""

from gymnasium.spaces import *  # noqa: F403
