"""What V-MPO's policies have in common, whatever they act with: encoders, memories over them, and a critic."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from minerva.networks.heads import Parameters
from minerva.networks.layer_norm_mlp import LayerNormMLP
from minerva.networks.lstm import LSTMCore
from minerva.networks.mlp import tanh_mlp


class Look(NamedTuple):
    """What policy and critic say of observations."""

    parameters: Parameters  # of the distributions of actions, [..., ·] each
    value: Tensor  # [..., 1]
    state: Tensor  # of the memory after them, [n, S]


class ActorCritic(nn.Module):
    """Encoders of policy and critic, memories over them where there are any, and the critic's head.

    A policy adds its own heads (`_heads`, and a Linear as `value_head`) and how it acts on them (`choose`). Names of
    the policy's parameters begin with "policy_", those of the critic's with "value_", for the two have learning rates
    of their own.

    Args:
        obs_dim: O, an action mask at the end of the row included.
        policy_layer_sizes: Units of the policy's hidden layers.
        value_layer_sizes: Units of the critic's hidden layers; not used with `shared_encoder`.
        shared_encoder: Whether the critic uses the policy's hidden layers, and its memory.
        ppo_like_backbone: Whether the hidden layers are PPO's: orthogonal, tanh.
        lstm_units: Units of a memory over the hidden layers; None for no memory.
        lstm_layer_norm: Whether the memory's cell is normalized.
        mask_dim: K, entries at the end of a row that say which actions are allowed.

    Attributes:
        policy_encoder: From observations to the policy's features.
        value_encoder: From observations to the critic's; the same module when shared.
        policy_memory: Over the policy's features, or None.
        value_memory: Over the critic's; the same module when shared.
        value_head: Head of the critic.
        state_dim: S, length of both memories' states together; 0 without one.

    Raises:
        ValueError: There is no layer.
    """

    policy_encoder: nn.Sequential
    value_encoder: nn.Sequential
    policy_memory: LSTMCore | None
    value_memory: LSTMCore | None
    value_head: nn.Linear

    def __init__(
        self,
        obs_dim: int,
        policy_layer_sizes: Sequence[int],
        value_layer_sizes: Sequence[int],
        shared_encoder: bool,
        ppo_like_backbone: bool,
        lstm_units: int | None,
        lstm_layer_norm: bool,
        mask_dim: int = 0,
    ) -> None:
        super().__init__()
        for name, sizes in (("policy_layer_sizes", policy_layer_sizes), ("value_layer_sizes", value_layer_sizes)):
            if not len(sizes):
                raise ValueError(f"{name}: must name at least one layer, such as (256, 256); got {sizes!r}.")
        self.shared_encoder = shared_encoder
        self.mask_dim = mask_dim
        encoder = _tanh_encoder if ppo_like_backbone else _layer_norm_encoder

        def memory(features: int) -> LSTMCore | None:
            return LSTMCore(features, lstm_units, lstm_layer_norm) if lstm_units else None

        self.policy_encoder = encoder(obs_dim - mask_dim, policy_layer_sizes)
        self.policy_memory = memory(policy_layer_sizes[-1])
        if shared_encoder:
            # Not as second submodules: their parameters have one name, in a checkpoint and for a functional call.
            object.__setattr__(self, "value_encoder", self.policy_encoder)
            object.__setattr__(self, "value_memory", self.policy_memory)
        else:
            self.value_encoder = encoder(obs_dim - mask_dim, value_layer_sizes)
            self.value_memory = memory(value_layer_sizes[-1])
        self._policy_state = 0 if self.policy_memory is None else self.policy_memory.state_dim
        self.state_dim = self._policy_state * (1 if shared_encoder else 2)
        self._policy_features = lstm_units or policy_layer_sizes[-1]
        self._value_features = lstm_units or (policy_layer_sizes if shared_encoder else value_layer_sizes)[-1]

    def forward(self, obs: Tensor) -> Parameters:
        """Describe how actions are distributed in observations ``[..., O]``; a memory is empty before each of them."""
        return self._heads(self._first(self.policy_encoder, self.policy_memory, obs), obs)

    def forward_all(self, obs: Tensor) -> tuple[Tensor, ...]:
        """Do what `forward` does, and add the value ``[..., 1]``; a shared encoder runs once."""
        features = self._first(self.policy_encoder, self.policy_memory, obs)
        of_value = features if self.shared_encoder else self._first(self.value_encoder, self.value_memory, obs)
        value: Tensor = self.value_head(of_value)
        return *self._heads(features, obs), value

    def get_value(self, obs: Tensor) -> Tensor:
        """Value observations ``[..., O]``: ``[..., 1]``; a memory is empty before each of them."""
        value: Tensor = self.value_head(self._first(self.value_encoder, self.value_memory, obs))
        return value

    def look(self, obs: Tensor, state: Tensor, starts: Tensor) -> Look:
        """Look at sequences, with what was seen before.

        Args:
            obs: ``[T, n, O]``; without a memory ``[..., O]``.
            state: The memory's before the first of them, ``[n, S]``.
            starts: ``[T, n]``, 1 where an episode begins, and with it the memory.
        """
        if self.policy_memory is None or self.value_memory is None:
            *parameters, value = self.forward_all(obs)
            return Look(tuple(parameters), value, state)
        own, other = state[:, : self._policy_state], state[:, self._policy_state :]
        features, own = self.policy_memory(self._encode(self.policy_encoder, obs), own, starts)
        if self.shared_encoder:
            return Look(self._heads(features, obs), self.value_head(features), own)
        of_value, other = self.value_memory(self._encode(self.value_encoder, obs), other, starts)
        return Look(self._heads(features, obs), self.value_head(of_value), torch.cat([own, other], dim=-1))

    def choose(self, parameters: Parameters, deterministic: bool, generator: torch.Generator | None = None) -> Tensor:
        """Give the likeliest actions ``[..., A]`` (the mean's, of a Gaussian), or sampled ones."""
        if deterministic:
            return self.mode(parameters)
        return self.sample(parameters, self.draw_noise(parameters[0], generator))

    def mode(self, parameters: Parameters) -> Tensor:
        """Give the likeliest actions, or the mean's, ``[..., A]``."""
        raise NotImplementedError

    def draw_noise(self, like: Tensor, generator: torch.Generator | None) -> Tensor:
        """Draw what actions are sampled with, ``[..., A]``, where `like` ``[..., ·]`` is."""
        raise NotImplementedError

    def sample(self, parameters: Parameters, noise: Tensor) -> Tensor:
        """Turn noise into actions, ``[..., A]``."""
        raise NotImplementedError

    def _heads(self, features: Tensor, obs: Tensor) -> Parameters:
        """Give the parameters of the distribution of actions, ``[..., ·]`` each."""
        raise NotImplementedError

    def _encode(self, encoder: nn.Sequential, obs: Tensor) -> Tensor:
        features: Tensor = encoder(obs[..., : -self.mask_dim] if self.mask_dim else obs)
        return features

    def _first(self, encoder: nn.Sequential, memory: LSTMCore | None, obs: Tensor) -> Tensor:
        """Give features ``[..., F]`` of observations that are taken for the first of their episodes."""
        features = self._encode(encoder, obs)
        if memory is None:
            return features
        rows = features.reshape(-1, features.shape[-1])
        out, _ = memory.step(rows, rows.new_zeros(len(rows), memory.state_dim))
        return out.reshape(*features.shape[:-1], out.shape[-1])


def _layer_norm_encoder(obs_dim: int, layer_sizes: Sequence[int]) -> nn.Sequential:
    return LayerNormMLP(obs_dim, layer_sizes, activate_final=True)


def _tanh_encoder(obs_dim: int, layer_sizes: Sequence[int]) -> nn.Sequential:
    *hidden, last = layer_sizes
    return tanh_mlp(obs_dim, hidden, last, out_gain=math.sqrt(2)).append(nn.Tanh())
