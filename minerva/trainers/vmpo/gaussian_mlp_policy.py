"""V-MPO's policy for continuous actions."""

from minerva.networks.squashed_gaussian import SquashedGaussianPolicy

__all__ = ["SquashedGaussianPolicy"]
