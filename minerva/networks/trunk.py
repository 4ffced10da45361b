"""What stands between observations and the last layers: encoders, and memories over them."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from minerva.networks.lstm import LSTMCore


class Column(nn.Module):
    """An encoder, and over it a memory where there is one.

    Args:
        encoder: From rows ``[B, O]`` to features ``[B, F]``.
        memory: Over the features, or None.
        features: F.

    Attributes:
        out_dim: Length of what comes out.
        state_dim: S, length of the memory's state; 0 without one.
    """

    def __init__(self, encoder: nn.Module, memory: LSTMCore | None, features: int) -> None:
        super().__init__()
        self.encoder = encoder
        self.memory = memory
        self.out_dim = features if memory is None else memory.out_dim
        self.state_dim = 0 if memory is None else memory.state_dim

    def forward(self, obs: Tensor, state: Tensor, starts: Tensor) -> tuple[Tensor, Tensor]:
        """Encode rows of any batch shape; with a memory they are sequences.

        Args:
            obs: ``[T, n, O]``; without a memory ``[..., O]``.
            state: The memory's before the first of them, ``[n, S]``.
            starts: ``[T, n]``, 1 where an episode begins, and with it the memory.

        Returns:
            Features ``[..., F]``, and the state after them.
        """
        features = self._encode(obs)
        return (features, state) if self.memory is None else self.memory(features, state, starts)

    def step(self, obs: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """Encode one row of each of n sequences, ``[n, O]``, from states ``[n, S]``."""
        features = self._encode(obs)
        return (features, state) if self.memory is None else self.memory.step(features, state)

    def _encode(self, obs: Tensor) -> Tensor:
        # Flat: a convolution, or a user's own module, knows one batch dimension.
        features: Tensor = self.encoder(obs.reshape(-1, obs.shape[-1]))
        return features.reshape(*obs.shape[:-1], features.shape[-1])


class Trunk(nn.Module):
    """The columns of policy and critic: one for both, or one each.

    Args:
        policy: The policy's.
        value: The critic's; None where it uses the policy's.

    Attributes:
        state_dim: S, length of both memories' states together.
    """

    def __init__(self, policy: Column, value: Column | None = None) -> None:
        super().__init__()
        self.policy = policy
        self.value = value
        self.state_dim = policy.state_dim + (0 if value is None else value.state_dim)

    @property
    def columns(self) -> list[Column]:
        """One, or the policy's and the critic's."""
        return [self.policy] if self.value is None else [self.policy, self.value]

    @property
    def recurrent(self) -> bool:
        """Whether there is a memory."""
        return self.state_dim > 0

    def forward(self, obs: Tensor, state: Tensor, starts: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Give the policy's features, the critic's, and the state after them (arguments as for `Column`)."""
        if self.value is None:
            features, state = self.policy(obs, state, starts)
            return features, features, state
        own, other = self._parted(state)
        for_policy, own = self.policy(obs, own, starts)
        for_value, other = self.value(obs, other, starts)
        return for_policy, for_value, torch.cat([own, other], dim=-1)

    def step(self, obs: Tensor, state: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Do the same for one row of each of n sequences."""
        if self.value is None:
            features, state = self.policy.step(obs, state)
            return features, features, state
        own, other = self._parted(state)
        for_policy, own = self.policy.step(obs, own)
        for_value, other = self.value.step(obs, other)
        return for_policy, for_value, torch.cat([own, other], dim=-1)

    def _parted(self, state: Tensor) -> tuple[Tensor, Tensor]:
        return state[..., : self.policy.state_dim], state[..., self.policy.state_dim :]
