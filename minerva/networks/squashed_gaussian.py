"""V-MPO's networks: its architecture, and an actor-critic with a Gaussian squashed into the action bounds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from gymnasium import Space
from torch import Tensor, nn

from minerva.networks.action_critic import bound
from minerva.networks.actor_critic import ActorCritic, Architecture
from minerva.networks.heads import SquashedGaussianHead
from minerva.networks.layer_norm_mlp import LayerNormMLP
from minerva.networks.mlp import HiddenLayers


def vmpo_architecture(
    policy_layer_sizes: Sequence[int],
    value_layer_sizes: Sequence[int],
    ppo_like_backbone: bool,
    log_std_init: float = 0.0,
    **settings: Any,
) -> Architecture:
    """Return V-MPO's architecture: layer-normalized networks, or PPO's (orthogonal, tanh, a free standard deviation).

    Raises:
        ValueError: There is no layer.
    """
    for name, sizes in (("policy_layer_sizes", policy_layer_sizes), ("value_layer_sizes", value_layer_sizes)):
        if not len(sizes):
            raise ValueError(f"{name}: must name at least one layer, such as (256, 256); got {sizes!r}.")
    return Architecture(
        policy_layer_sizes,
        value_layer_sizes,
        HiddenLayers if ppo_like_backbone else lambda in_dim, sizes: LayerNormMLP(in_dim, sizes, activate_final=True),
        orthogonal_heads=ppo_like_backbone,
        log_std_init=log_std_init if ppo_like_backbone else None,
        **settings,
    )


class SquashedGaussianPolicy(ActorCritic):
    """A diagonal Gaussian whose samples pass through tanh and are scaled to the action bounds, and a critic.

    Means and standard deviations belong to samples before the tanh, densities to actions on the environment's scale.

    Args:
        obs_dim: O.
        act_dim: A.
        policy_layer_sizes: Units of the policy's hidden layers.
        value_layer_sizes: Units of the critic's hidden layers; not used with `shared_encoder`.
        action_low: Lower bounds, ``[A]`` or a number; -1 by default.
        action_high: Upper bounds, ``[A]`` or a number; 1 by default.
        shared_encoder: Whether the critic uses the policy's hidden layers.
        ppo_like_backbone: Whether the networks are PPO's: orthogonal, tanh, one standard deviation for all states.
        observation_space: Before flattening; needed for images.
        **settings: Further fields of `Architecture`, and `log_std_init` of that one standard deviation.

    Raises:
        ValueError: A bound is infinite, a lower bound is not below the upper one, or there is no layer.
    """

    head: SquashedGaussianHead

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
        observation_space: Space[Any] | None = None,
        **settings: Any,
    ) -> None:
        low, high = -1.0 if action_low is None else action_low, 1.0 if action_high is None else action_high
        architecture = vmpo_architecture(
            policy_layer_sizes, value_layer_sizes, ppo_like_backbone, shared_encoder=shared_encoder, **settings
        )
        head = SquashedGaussianHead(bound(low, act_dim), bound(high, act_dim))
        super().__init__(head, architecture, obs_dim, observation_space=observation_space)

    @property
    def policy_mean(self) -> nn.Module:
        """The head of the mean."""
        return self.policy_head

    @property
    def action_low(self) -> Tensor:
        """Lower bounds of actions, ``[A]``."""
        return self.head.low

    @property
    def action_high(self) -> Tensor:
        """Upper bounds of actions, ``[A]``."""
        return self.head.high

    def policy_logstd_parameters(self) -> list[nn.Parameter]:
        """List the parameters of the log-standard-deviation."""
        log_std = self.policy_logstd
        return list(log_std.parameters()) if isinstance(log_std, nn.Linear) else [log_std]  # type: ignore[list-item]

    def sample_action(
        self,
        mean: Tensor,
        log_std: Tensor,
        deterministic: bool = False,
        generator: torch.Generator | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Sample one action per row, or take the mean's: actions ``[B, A]`` and their log-densities ``[B, 1]``."""
        head = self.head
        samples = mean
        if not deterministic:
            # LaTeX: u = \mu + \sigma \xi, \quad \xi \sim \mathcal{N}(0, I)
            samples = mean + log_std.exp() * head.draw_noise(mean.shape[:-1], generator, mean)
        # LaTeX[Haarnoja2018, app. C]: \log \pi(a) = \log \mathcal{N}(u; \mu, \sigma) - \log \left| \frac{\partial a}{\partial u} \right|
        log_prob = head.sample_log_prob((mean, log_std), samples) - head.log_volume(samples)
        return head.squash(samples), log_prob.unsqueeze(-1)

    def log_prob(self, mean: Tensor, log_std: Tensor, actions: Tensor) -> Tensor:
        """Return the log-density of actions ``[B, A]`` on the environment's scale: ``[B, 1]``."""
        return self.head.log_prob((mean, log_std), actions).unsqueeze(-1)
