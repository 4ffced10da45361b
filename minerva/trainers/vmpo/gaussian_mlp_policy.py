"""V-MPO's policy, a Gaussian squashed into the action bounds, with the critic beside it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from minerva.networks.layer_norm_mlp import LayerNormMLP
from minerva.networks.mlp import orthogonal, tanh_mlp
from minerva.objectives.gaussian import gaussian_log_prob

LOG_STD_RANGE = (-20.0, 2.0)
EDGE = 1 - 1e-6
"""Squashed actions are taken to be no closer to ±1 than this: beyond it their inverse is more rounding than number."""


class SquashedGaussianPolicy(nn.Module):
    """A diagonal Gaussian whose samples pass through tanh and are scaled to the action bounds, and a critic.

    Raw actions u are the Gaussian's samples; actions a, on the scale of the environment, are what it gets. Means and
    standard deviations are of u, densities of a.

    Args:
        obs_dim: O.
        act_dim: A.
        policy_layer_sizes: Units of the policy's hidden layers.
        value_layer_sizes: Units of the critic's hidden layers; not used with `shared_encoder`.
        action_low: Lower bounds, ``[A]`` or a number; -1 by default.
        action_high: Upper bounds, likewise; 1 by default.
        shared_encoder: Whether the critic uses the policy's hidden layers.
        ppo_like_backbone: Whether the networks are PPO's: orthogonal, tanh, one standard deviation for all states.
        log_std_init: Where the logarithm of that one standard deviation starts.

    Attributes:
        policy_encoder: From observations to the policy's features.
        value_encoder: From observations to the critic's; the same module when shared.
        policy_mean: Head of the mean.
        policy_logstd: Head of the log-standard-deviation; a parameter ``[1, A]`` with `ppo_like_backbone`.
        value_head: Head of the critic.

    Raises:
        ValueError: A bound is infinite or missing its room, or there is no layer.
    """

    action_low: Tensor
    action_high: Tensor

    def __init__(
        self,
        obs_dim: int,
        act_dim: int,
        policy_layer_sizes: Sequence[int] = (256, 256),
        value_layer_sizes: Sequence[int] = (256, 256),
        action_low: Any = None,
        action_high: Any = None,
        shared_encoder: bool = False,
        ppo_like_backbone: bool = False,
        log_std_init: float = 0.0,
    ) -> None:
        super().__init__()
        for name, sizes in (("policy_layer_sizes", policy_layer_sizes), ("value_layer_sizes", value_layer_sizes)):
            if not len(sizes):
                raise ValueError(f"{name}: must name at least one layer, such as (256, 256); got {sizes!r}.")
        low, high = finite_bounds(action_low, action_high, act_dim)
        # Buffers: a policy that is loaded brings its bounds along.
        self.register_buffer("action_low", low)
        self.register_buffer("action_high", high)
        self.shared_encoder = shared_encoder
        encoder = _tanh_encoder if ppo_like_backbone else _layer_norm_encoder
        policy_out, value_out = (
            policy_layer_sizes[-1],
            (policy_layer_sizes if shared_encoder else value_layer_sizes)[-1],
        )
        self.policy_encoder = encoder(obs_dim, policy_layer_sizes)
        self.value_encoder: nn.Sequential
        if shared_encoder:
            # Not as a second submodule: its parameters have one name, in a checkpoint and for a functional call.
            object.__setattr__(self, "value_encoder", self.policy_encoder)
        else:
            self.value_encoder = encoder(obs_dim, value_layer_sizes)
        self.policy_mean = nn.Linear(policy_out, act_dim)
        self.policy_logstd: nn.Linear | nn.Parameter
        self.value_head = nn.Linear(value_out, 1)
        if ppo_like_backbone:
            orthogonal(self.policy_mean, 0.01)
            orthogonal(self.value_head, 1.0)
            self.policy_logstd = nn.Parameter(torch.full((1, act_dim), float(log_std_init)))
        else:
            self.policy_logstd = nn.Linear(policy_out, act_dim)
            for head, bias in ((self.policy_mean, 0.0), (self.policy_logstd, -0.5), (self.value_head, 0.0)):
                nn.init.xavier_uniform_(head.weight)
                nn.init.constant_(head.bias, bias)

    def policy_logstd_parameters(self) -> list[nn.Parameter]:
        """List what the log-standard-deviation is made with."""
        head = self.policy_logstd
        return list(head.parameters()) if isinstance(head, nn.Linear) else [head]

    # Networks

    def forward(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        """Give mean and log-standard-deviation before the tanh, for observations ``[..., O]``: ``[..., A]`` each."""
        return self._heads(self.policy_encoder(obs))

    def forward_all(self, obs: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Give mean, log-standard-deviation and value ``[..., 1]``; a shared encoder runs once."""
        features = self.policy_encoder(obs)
        value: Tensor = self.value_head(features if self.shared_encoder else self.value_encoder(obs))
        return *self._heads(features), value

    def get_value(self, obs: Tensor) -> Tensor:
        """Value observations ``[..., O]``: ``[..., 1]``."""
        value: Tensor = self.value_head(self.value_encoder(obs))
        return value

    def _heads(self, features: Tensor) -> tuple[Tensor, Tensor]:
        mean: Tensor = self.policy_mean(features)
        head = self.policy_logstd
        log_std: Tensor = head(features) if isinstance(head, nn.Linear) else head.squeeze(0).expand_as(mean)
        return mean, log_std.clamp(*LOG_STD_RANGE)

    # Actions

    def sample_action(
        self, mean: Tensor, log_std: Tensor, deterministic: bool = False, generator: torch.Generator | None = None
    ) -> tuple[Tensor, Tensor]:
        """Sample an action a row, or take the mean's: actions ``[B, A]`` and their log-densities ``[B, 1]``."""
        raw = mean
        if not deterministic:
            noise = torch.randn(mean.shape, generator=generator, device=mean.device, dtype=mean.dtype)
            # LaTeX: u = \mu + \sigma \xi, \quad \xi \sim \mathcal{N}(0, I)
            raw = mean + log_std.exp() * noise
        # LaTeX[Haarnoja2018, app. C]: \log \pi(a) = \log \mathcal{N}(u; \mu, \sigma) - \log \left| \frac{\partial a}{\partial u} \right|
        log_prob = gaussian_log_prob(mean, log_std, raw) - self.log_volume(raw)
        return self.squash(raw), log_prob.unsqueeze(-1)

    def log_prob(self, mean: Tensor, log_std: Tensor, actions: Tensor) -> Tensor:
        """Give the log-density of actions ``[B, A]`` on the scale of the environment: ``[B, 1]``."""
        raw = self.unsquash(actions)
        # LaTeX[Haarnoja2018, app. C]: \log \pi(a) = \log \mathcal{N}(u; \mu, \sigma) - \log \left| \frac{\partial a}{\partial u} \right|
        return (gaussian_log_prob(mean, log_std, raw) - self.log_volume(raw)).unsqueeze(-1)

    def squash(self, raw: Tensor) -> Tensor:
        """Turn raw actions into actions."""
        # LaTeX: a_j = c_j + h_j \tanh(u_j)
        actions = self._centre + self._half * torch.tanh(raw)
        return actions.clamp(self.action_low, self.action_high)  # rounding may lead out of the box

    def unsquash(self, actions: Tensor) -> Tensor:
        """Turn actions back into raw ones; those at the bounds into large, but finite ones."""
        # LaTeX: u_j = \mathrm{artanh}\left( \mathrm{clip}\left( \frac{a_j - c_j}{h_j},\; -1 + 10^{-6},\; 1 - 10^{-6} \right) \right)
        return torch.atanh(((actions - self._centre) / self._half).clamp(-EDGE, EDGE))

    def log_volume(self, raw: Tensor) -> Tensor:
        """Give by how much squashing stretches space around raw actions ``[..., A]``, as a logarithm: ``[...]``."""
        # LaTeX: \log (1 - \tanh^2 u_j) = 2 \left( \log 2 - u_j - \log(1 + e^{-2 u_j}) \right)
        slope = 2 * (math.log(2) - raw - nn.functional.softplus(-2 * raw))
        # LaTeX[Haarnoja2018, app. C]: \log \left| \frac{\partial a}{\partial u} \right| = \sum_j \left( \log h_j + \log (1 - \tanh^2 u_j) \right)
        return (self._half.log() + slope).sum(-1)

    @property
    def _centre(self) -> Tensor:
        # LaTeX: c_j = \tfrac12 (a_{\max,j} + a_{\min,j})
        return (self.action_high + self.action_low) / 2

    @property
    def _half(self) -> Tensor:
        # LaTeX: h_j = \tfrac12 (a_{\max,j} - a_{\min,j})
        return (self.action_high - self.action_low) / 2


def _layer_norm_encoder(obs_dim: int, layer_sizes: Sequence[int]) -> nn.Sequential:
    return LayerNormMLP(obs_dim, layer_sizes, activate_final=True)


def _tanh_encoder(obs_dim: int, layer_sizes: Sequence[int]) -> nn.Sequential:
    *hidden, last = layer_sizes
    return tanh_mlp(obs_dim, hidden, last, out_gain=math.sqrt(2)).append(nn.Tanh())


def finite_bounds(action_low: Any, action_high: Any, act_dim: int) -> tuple[Tensor, Tensor]:
    """Give the bounds as tensors ``[A]``.

    Raises:
        ValueError: They are not finite, or there is no room between them.
    """
    low, high = (
        torch.as_tensor(default if bound is None else bound, dtype=torch.get_default_dtype()).expand(act_dim).clone()
        for bound, default in ((action_low, -1.0), (action_high, 1.0))
    )
    for name, bound in (("action_low", low), ("action_high", high)):
        if not bound.isfinite().all():
            raise ValueError(
                f"{name}: must be finite, for actions are squashed into their bounds; got {bound.tolist()}. "
                "Wrap the environment so that its action space has finite bounds, or use ppo."
            )
    if not (low < high).all():
        raise ValueError(f"action_high: must be above action_low = {low.tolist()}, got {high.tolist()}.")
    return low, high
