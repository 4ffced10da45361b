"""V-MPO's policy, a Gaussian squashed into the action bounds, with the critic beside it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from minerva.networks.heads import Parameters
from minerva.networks.mlp import orthogonal
from minerva.objectives.gaussian import gaussian_log_prob
from minerva.trainers.vmpo.actor_critic import ActorCritic

LOG_STD_RANGE = (-20.0, 2.0)
EDGE = 1 - 1e-6
"""Squashed actions are taken to be no closer to ±1 than this: beyond it their inverse is more rounding than number."""


class SquashedGaussianPolicy(ActorCritic):
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
        lstm_units: Units of a memory over the hidden layers; None for no memory.
        lstm_layer_norm: Whether the memory's cell is normalized.

    Attributes:
        policy_mean: Head of the mean.
        policy_logstd: Head of the log-standard-deviation; a parameter ``[1, A]`` with `ppo_like_backbone`.

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
        lstm_units: int | None = None,
        lstm_layer_norm: bool = False,
    ) -> None:
        super().__init__(
            obs_dim,
            policy_layer_sizes,
            value_layer_sizes,
            shared_encoder,
            ppo_like_backbone,
            lstm_units,
            lstm_layer_norm,
        )
        low, high = finite_bounds(action_low, action_high, act_dim)
        # Buffers: a policy that is loaded brings its bounds along.
        self.register_buffer("action_low", low)
        self.register_buffer("action_high", high)
        self.policy_mean = nn.Linear(self._policy_features, act_dim)
        self.policy_logstd: nn.Linear | nn.Parameter
        self.value_head = nn.Linear(self._value_features, 1)
        if ppo_like_backbone:
            orthogonal(self.policy_mean, 0.01)
            orthogonal(self.value_head, 1.0)
            self.policy_logstd = nn.Parameter(torch.full((1, act_dim), float(log_std_init)))
        else:
            self.policy_logstd = nn.Linear(self._policy_features, act_dim)
            for head, bias in ((self.policy_mean, 0.0), (self.policy_logstd, -0.5), (self.value_head, 0.0)):
                nn.init.xavier_uniform_(head.weight)
                nn.init.constant_(head.bias, bias)

    def policy_logstd_parameters(self) -> list[nn.Parameter]:
        """List what the log-standard-deviation is made with."""
        head = self.policy_logstd
        return list(head.parameters()) if isinstance(head, nn.Linear) else [head]

    def _heads(self, features: Tensor, obs: Tensor) -> Parameters:
        mean: Tensor = self.policy_mean(features)
        head = self.policy_logstd
        log_std: Tensor = head(features) if isinstance(head, nn.Linear) else head.squeeze(0).expand_as(mean)
        return mean, log_std.clamp(*LOG_STD_RANGE)

    # Actions

    def sample_action(
        self,
        mean: Tensor,
        log_std: Tensor,
        deterministic: bool = False,
        generator: torch.Generator | None = None,
        noise: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Sample an action a row, or take the mean's: actions ``[B, A]`` and their log-densities ``[B, 1]``.

        The noise is drawn here, unless it is given.
        """
        raw = mean
        if not deterministic:
            noise = self.draw_noise(mean, generator) if noise is None else noise
            # LaTeX: u = \mu + \sigma \xi, \quad \xi \sim \mathcal{N}(0, I)
            raw = mean + log_std.exp() * noise
        # LaTeX[Haarnoja2018, app. C]: \log \pi(a) = \log \mathcal{N}(u; \mu, \sigma) - \log \left| \frac{\partial a}{\partial u} \right|
        log_prob = gaussian_log_prob(mean, log_std, raw) - self.log_volume(raw)
        return self.squash(raw), log_prob.unsqueeze(-1)

    def mode(self, parameters: Parameters) -> Tensor:
        """Give the mean's actions, ``[..., A]``."""
        return self.squash(parameters[0])

    def draw_noise(self, like: Tensor, generator: torch.Generator | None) -> Tensor:
        """Draw what actions are sampled with, ``[..., A]``, where `like` ``[..., ·]`` is."""
        shape = (*like.shape[:-1], len(self.action_low))
        return torch.randn(shape, generator=generator, device=like.device, dtype=like.dtype)

    def sample(self, parameters: Parameters, noise: Tensor) -> Tensor:
        """Turn standard normal noise into actions, ``[..., A]``."""
        mean, log_std = parameters
        return self.sample_action(mean, log_std, noise=noise)[0]

    def log_prob(self, mean: Tensor, log_std: Tensor, actions: Tensor) -> Tensor:
        """Give the log-density of actions ``[B, A]`` on the scale of the environment: ``[B, 1]``."""
        raw = self.unsquash(actions)
        # LaTeX[Haarnoja2018, app. C]: \log \pi(a) = \log \mathcal{N}(u; \mu, \sigma) - \log \left| \frac{\partial a}{\partial u} \right|
        return (gaussian_log_prob(mean, log_std, raw) - self.log_volume(raw)).unsqueeze(-1)

    def squash(self, raw: Tensor) -> Tensor:
        """Turn raw actions into actions."""
        # LaTeX: a_j = c_j + h_j \tanh(u_j)
        actions = self._center + self._half * torch.tanh(raw)
        return actions.clamp(self.action_low, self.action_high)  # rounding may lead out of the box

    def unsquash(self, actions: Tensor) -> Tensor:
        """Turn actions back into raw ones; those at the bounds into large, but finite ones."""
        # LaTeX: u_j = \mathrm{artanh}\left( \mathrm{clip}\left( \frac{a_j - c_j}{h_j},\; -1 + 10^{-6},\; 1 - 10^{-6} \right) \right)
        return torch.atanh(((actions - self._center) / self._half).clamp(-EDGE, EDGE))

    def log_volume(self, raw: Tensor) -> Tensor:
        """Give by how much squashing stretches space around raw actions ``[..., A]``, as a logarithm: ``[...]``."""
        # LaTeX: \log (1 - \tanh^2 u_j) = 2 \left( \log 2 - u_j - \log(1 + e^{-2 u_j}) \right)
        slope = 2 * (math.log(2) - raw - nn.functional.softplus(-2 * raw))
        # LaTeX[Haarnoja2018, app. C]: \log \left| \frac{\partial a}{\partial u} \right| = \sum_j \left( \log h_j + \log (1 - \tanh^2 u_j) \right)
        return (self._half.log() + slope).sum(-1)

    @property
    def _center(self) -> Tensor:
        # LaTeX: c_j = \tfrac12 (a_{\max,j} + a_{\min,j})
        return (self.action_high + self.action_low) / 2

    @property
    def _half(self) -> Tensor:
        # LaTeX: h_j = \tfrac12 (a_{\max,j} - a_{\min,j})
        return (self.action_high - self.action_low) / 2


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
