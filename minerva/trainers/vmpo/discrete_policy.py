"""V-MPO's policy for discrete actions, with the critic beside it."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from minerva.networks.heads import ActionHead, Parameters
from minerva.networks.mlp import orthogonal
from minerva.trainers.vmpo.actor_critic import ActorCritic


class DiscretePolicy(ActorCritic):
    """A distribution over choices (one, several, or switches), and a critic.

    Args:
        obs_dim: O, an action mask at the end of the row included.
        head: What the logits mean.
        policy_layer_sizes: Units of the policy's hidden layers.
        value_layer_sizes: Units of the critic's hidden layers; not used with `shared_encoder`.
        shared_encoder: Whether the critic uses the policy's hidden layers, and its memory.
        ppo_like_backbone: Whether the networks are PPO's: orthogonal, tanh.
        lstm_units: Units of a memory over the hidden layers; None for no memory.
        lstm_layer_norm: Whether the memory's cell is normalized.
        mask_dim: K, entries at the end of a row that say which actions are allowed.

    Attributes:
        policy_logits: Head of the policy.
    """

    def __init__(
        self,
        obs_dim: int,
        head: ActionHead,
        policy_layer_sizes: Sequence[int] = (256, 256),
        value_layer_sizes: Sequence[int] = (256, 256),
        shared_encoder: bool = False,
        ppo_like_backbone: bool = False,
        lstm_units: int | None = None,
        lstm_layer_norm: bool = False,
        mask_dim: int = 0,
    ) -> None:
        super().__init__(
            obs_dim,
            policy_layer_sizes,
            value_layer_sizes,
            shared_encoder,
            ppo_like_backbone,
            lstm_units,
            lstm_layer_norm,
            mask_dim,
        )
        self.head = head
        self.policy_logits = nn.Linear(self._policy_features, head.size)
        self.value_head = nn.Linear(self._value_features, 1)
        for layer, gain in ((self.policy_logits, 0.01), (self.value_head, 1.0)):
            if ppo_like_backbone:
                orthogonal(layer, gain)
            else:
                nn.init.xavier_uniform_(layer.weight)
                nn.init.zeros_(layer.bias)

    def _heads(self, features: Tensor, obs: Tensor) -> Parameters:
        parameters = (self.policy_logits(features),)
        return self.head.masked(parameters, obs[..., -self.mask_dim :]) if self.mask_dim else parameters

    def mode(self, parameters: Parameters) -> Tensor:
        """Give the likeliest actions, ``[..., A]``."""
        return self.head.mode(parameters)

    def draw_noise(self, like: Tensor, generator: torch.Generator | None) -> Tensor:
        """Draw what actions are sampled with, ``[..., A]``, where `like` ``[..., ·]`` is."""
        shape = (*like.shape[:-1], self.head.action_dim)
        return torch.rand(shape, generator=generator, device=like.device, dtype=like.dtype)

    def sample(self, parameters: Parameters, noise: Tensor) -> Tensor:
        """Turn uniform noise into actions, ``[..., A]``."""
        return self.head.sample(parameters, noise)
