"""A critic of state-action pairs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from minerva.networks.layer_norm_mlp import LayerNormMLP


class SmallInitLinear(nn.Linear):
    """A linear layer that starts near zero: weights from a normal truncated at two deviations, zero bias.

    Args:
        in_features: Length of the input.
        out_features: Length of the output.
        std: The normal's standard deviation.
    """

    def __init__(self, in_features: int, out_features: int, std: float = 0.01) -> None:
        super().__init__(in_features, out_features)
        nn.init.trunc_normal_(self.weight, std=std, a=-2 * std, b=2 * std)
        nn.init.zeros_(self.bias)


class Critic(nn.Module):
    """MPO's critic Q(s, a) of executed actions: actions are clipped to the bounds first.

    Args:
        obs_dim: O.
        act_dim: A.
        layer_sizes: Units of the hidden layers.
        action_low: Lower bounds, ``[A]`` or a number.
        action_high: Upper bounds, likewise.
    """

    action_low: Tensor
    action_high: Tensor

    def __init__(
        self, obs_dim: int, act_dim: int, layer_sizes: Sequence[int], action_low: Any, action_high: Any
    ) -> None:
        super().__init__()
        self.register_buffer("action_low", bound(action_low, act_dim))
        self.register_buffer("action_high", bound(action_high, act_dim))
        self.encoder = LayerNormMLP(obs_dim + act_dim, layer_sizes, activate_final=True)
        self.head = SmallInitLinear(layer_sizes[-1], 1)
        self.widest_layer = max(layer_sizes)

    def forward(self, obs: Tensor, actions: Tensor) -> Tensor:
        """Return the values of pairs ``[..., O]`` and ``[..., A]``: ``[..., 1]``."""
        actions = actions.clamp(self.action_low, self.action_high)
        value: Tensor = self.head(self.encoder(torch.cat([obs, actions], dim=-1)))
        return value


def bound(value: Any, act_dim: int) -> Tensor:
    """Return an action bound per dimension, ``[A]``, from a number or an array."""
    return torch.as_tensor(value, dtype=torch.get_default_dtype()).reshape(-1).expand(act_dim).clone()
