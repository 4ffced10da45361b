"""MPO's policy: a Gaussian whose mean and deviation depend on the state. Its actions are clipped, not squashed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from minerva.networks.action_critic import bound
from minerva.networks.actor_critic import NumpyPolicy
from minerva.networks.heads import LOG_STD_RANGE, DistParams, GaussianHead
from minerva.networks.layer_norm_mlp import LayerNormMLP
from minerva.networks.numpy_mlp import Array, NumpyMLP


class DiagonalGaussianPolicy(nn.Module):
    """MPO's policy: a diagonal Gaussian over raw actions, whose mean and deviation depend on the state.

    Raw actions are the Gaussian's samples, executed ones are clipped to the bounds. Densities are of raw actions;
    critics and environments see executed ones.

    Args:
        obs_dim: O.
        act_dim: A.
        layer_sizes: Units of the encoder's layers.
        action_low: Lower bounds, ``[A]`` or a number; -1 by default.
        action_high: Upper bounds, likewise; 1 by default.
    """

    action_low: Tensor
    action_high: Tensor
    state_dim = 0  # not recurrent
    takes_bytes = False
    static = runs_on_numpy = True

    def __init__(
        self, obs_dim: int, act_dim: int, layer_sizes: Sequence[int], action_low: Any = None, action_high: Any = None
    ) -> None:
        super().__init__()
        self.head = GaussianHead(act_dim)
        self.register_buffer("action_low", bound(-1.0 if action_low is None else action_low, act_dim))
        self.register_buffer("action_high", bound(1.0 if action_high is None else action_high, act_dim))
        self.encoder = LayerNormMLP(obs_dim, layer_sizes, activate_final=True)
        self.policy_mean = nn.Linear(layer_sizes[-1], act_dim)
        self.policy_logstd = nn.Linear(layer_sizes[-1], act_dim)
        nn.init.kaiming_normal_(self.policy_mean.weight, mode="fan_in", nonlinearity="linear")
        nn.init.zeros_(self.policy_mean.bias)

    @property
    def device(self) -> torch.device:
        """Where the network is."""
        return self.action_low.device

    def forward(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        """Return mean and log-standard-deviation for observations ``[..., O]``: ``[..., A]`` each."""
        return self.forward_with_features(self.encoder(obs))

    def forward_with_features(self, features: Tensor) -> tuple[Tensor, Tensor]:
        """Return mean and log-standard-deviation from encoded features."""
        mean, log_std = finite(self.policy_mean(features)), finite(self.policy_logstd(features))
        return mean, log_std.clamp(*LOG_STD_RANGE)

    def log_prob(self, mean: Tensor, log_std: Tensor, actions_raw: Tensor) -> Tensor:
        """Return the log-density of raw actions ``[B, A]``: ``[B, 1]``."""
        return self.head.log_prob((mean, log_std), actions_raw).unsqueeze(-1)

    def clip(self, actions_raw: Tensor) -> Tensor:
        """Turn raw actions into executed ones."""
        return actions_raw.clamp(self.action_low, self.action_high)

    def sample_action_raw_and_exec(
        self, mean: Tensor, log_std: Tensor, deterministic: bool = False, generator: torch.Generator | None = None
    ) -> tuple[Tensor, Tensor]:
        """Sample one action per row, or take the mean: raw and executed, ``[B, A]`` each."""
        noise = None if deterministic else self.head.draw_noise(mean.shape[:-1], generator, mean)
        raw = mean if noise is None else self.head.sample((mean, log_std), noise)
        return raw, self.clip(raw)

    def sample_action(
        self, mean: Tensor, log_std: Tensor, deterministic: bool = False, generator: torch.Generator | None = None
    ) -> Tensor:
        """Sample one executed action per row, or take the mean: ``[B, A]``."""
        return self.sample_action_raw_and_exec(mean, log_std, deterministic, generator)[1]

    def sample_actions_raw_and_exec(
        self, obs: Tensor, num_actions: int, generator: torch.Generator | None = None
    ) -> tuple[Tensor, Tensor]:
        """Sample S actions for each observation ``[B, O]``: raw and executed, ``[B, S, A]`` each."""
        mean, log_std = self(obs)
        noise = self.head.draw_noise((*mean.shape[:-1], num_actions), generator, mean)
        raw = self.head.sample((mean.unsqueeze(-2), log_std.unsqueeze(-2)), noise)
        return raw, self.clip(raw)

    def sample_actions(self, obs: Tensor, num_actions: int, generator: torch.Generator | None = None) -> Tensor:
        """Sample S executed actions for each observation ``[B, O]``: ``[B, S, A]``."""
        return self.sample_actions_raw_and_exec(obs, num_actions, generator)[1]

    # Acting

    def policy_step(self, obs: Tensor, recurrent_state: Tensor) -> tuple[DistParams, Tensor]:
        """Return mean and log-standard-deviation for observations ``[n, O]``, and the (empty) recurrent state."""
        return self(obs), recurrent_state

    def numpy_policy(self) -> NumpyPolicy:
        """Return `policy_step` on NumPy."""
        encode, heads = NumpyMLP(self.encoder), (NumpyMLP(self.policy_mean), NumpyMLP(self.policy_logstd))

        def policy(obs: Array, state: Array, episode_starts: Array) -> tuple[tuple[Array, ...], Array]:
            with np.errstate(all="ignore"):  # an observation may be infinite: its transition is dropped later
                features = encode(obs)
                mean, log_std = (np.nan_to_num(head(features), nan=0.0, posinf=0.0, neginf=0.0) for head in heads)
                return (mean, log_std.clip(*LOG_STD_RANGE)), state

        return policy

    def head_parameters(self) -> list[nn.Parameter]:
        """List the parameters of the two heads."""
        return [*self.policy_mean.parameters(), *self.policy_logstd.parameters()]


def finite(x: Tensor) -> Tensor:
    """Replace numbers that are infinite or not a number by 0."""
    return torch.nan_to_num(x, nan=0.0, posinf=0.0, neginf=0.0)
