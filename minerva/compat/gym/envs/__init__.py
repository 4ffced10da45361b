"""Environments by their id."""

from minerva.compat.gym.envs.registration import make, register, registry, spec

__all__ = ["make", "register", "registry", "spec"]
