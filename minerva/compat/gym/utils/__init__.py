"""Helpers of gym."""

from gymnasium.utils import EzPickle, colorize

from minerva.compat.gym.utils import seeding

__all__ = ["EzPickle", "colorize", "seeding"]
