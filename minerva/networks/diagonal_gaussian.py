"""A Gaussian policy whose mean and deviation both depend on the state; its actions are clipped, not squashed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from minerva.networks.action_critic import bound
from minerva.networks.layer_norm_mlp import LayerNormMLP
from minerva.objectives.gaussian import gaussian_log_prob

LOG_STD_RANGE = (-20.0, 2.0)


class DiagonalGaussianPolicy(nn.Module):
    """A diagonal Gaussian over raw actions.

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

    def __init__(
        self, obs_dim: int, act_dim: int, layer_sizes: Sequence[int], action_low: Any = None, action_high: Any = None
    ) -> None:
        super().__init__()
        self.register_buffer("action_low", bound(-1.0 if action_low is None else action_low, act_dim))
        self.register_buffer("action_high", bound(1.0 if action_high is None else action_high, act_dim))
        self.encoder = LayerNormMLP(obs_dim, layer_sizes, activate_final=True)
        self.policy_mean = nn.Linear(layer_sizes[-1], act_dim)
        self.policy_logstd = nn.Linear(layer_sizes[-1], act_dim)
        nn.init.kaiming_normal_(self.policy_mean.weight, mode="fan_in", nonlinearity="linear")
        nn.init.zeros_(self.policy_mean.bias)

    def forward(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        """Give mean and log-standard-deviation for observations ``[..., O]``: ``[..., A]`` each."""
        return self.forward_with_features(self.encoder(obs))

    def forward_with_features(self, features: Tensor) -> tuple[Tensor, Tensor]:
        """Give them from what the encoder made of the observations."""
        mean, log_std = finite(self.policy_mean(features)), finite(self.policy_logstd(features))
        return mean, log_std.clamp(*LOG_STD_RANGE)

    def log_prob(self, mean: Tensor, log_std: Tensor, actions_raw: Tensor) -> Tensor:
        """Give the log-density of raw actions ``[B, A]``: ``[B, 1]``."""
        return gaussian_log_prob(mean, log_std, actions_raw).unsqueeze(-1)

    def clip(self, actions_raw: Tensor) -> Tensor:
        """Turn raw actions into executed ones."""
        return actions_raw.clamp(self.action_low, self.action_high)

    def sample_action_raw_and_exec(
        self, mean: Tensor, log_std: Tensor, deterministic: bool = False, generator: torch.Generator | None = None
    ) -> tuple[Tensor, Tensor]:
        """Sample one action a row, or take the mean: raw and executed, ``[B, A]`` each."""
        raw = mean if deterministic else sample(mean, log_std, generator)
        return raw, self.clip(raw)

    def sample_action(
        self, mean: Tensor, log_std: Tensor, deterministic: bool = False, generator: torch.Generator | None = None
    ) -> Tensor:
        """Sample one executed action a row, or take the mean: ``[B, A]``."""
        return self.sample_action_raw_and_exec(mean, log_std, deterministic, generator)[1]

    def sample_actions_raw_and_exec(
        self, obs: Tensor, num_actions: int, generator: torch.Generator | None = None
    ) -> tuple[Tensor, Tensor]:
        """Sample S actions for each observation ``[B, O]``: raw and executed, ``[B, S, A]`` each."""
        mean, log_std = self(obs)
        shape = (*mean.shape[:-1], num_actions, mean.shape[-1])
        raw = sample(mean.unsqueeze(-2).expand(shape), log_std.unsqueeze(-2).expand(shape), generator)
        return raw, self.clip(raw)

    def sample_actions(self, obs: Tensor, num_actions: int, generator: torch.Generator | None = None) -> Tensor:
        """Sample S executed actions for each observation ``[B, O]``: ``[B, S, A]``."""
        return self.sample_actions_raw_and_exec(obs, num_actions, generator)[1]

    def head_parameters(self) -> list[nn.Parameter]:
        """List the parameters of the two heads."""
        return [*self.policy_mean.parameters(), *self.policy_logstd.parameters()]


def sample(mean: Tensor, log_std: Tensor, generator: torch.Generator | None = None) -> Tensor:
    """Sample a diagonal Gaussian, in the shape of its mean."""
    noise = torch.randn(mean.shape, generator=generator, device=mean.device, dtype=mean.dtype)
    # LaTeX: a = \mu + \sigma \xi, \quad \xi \sim \mathcal{N}(0, I)
    return mean + log_std.exp() * noise


def finite(x: Tensor) -> Tensor:
    """Put 0 in place of what is not a finite number."""
    return torch.nan_to_num(x, nan=0.0, posinf=0.0, neginf=0.0)
