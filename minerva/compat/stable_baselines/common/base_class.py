"""The base classes of models, for scripts that ask whether an object is a model."""

from __future__ import annotations


class BaseRLModel:
    """Base class of all models; here of `PPO2` alone."""


class ActorCriticRLModel(BaseRLModel):
    """Base class of models with a policy and a critic."""
