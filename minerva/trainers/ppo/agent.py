"""PPO's agent: an actor-critic with its observation normalizer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from minerva.networks.actor_critic import ActorCritic, Architecture
from minerva.networks.encoders import encoder_kind
from minerva.networks.heads import GaussianHead, head_for
from minerva.networks.mlp import HiddenLayers
from minerva.trainers.actor import BaseAgent, Shapes
from minerva.trainers.ppo.config import PPOConfig
from minerva.utils.running_norm import RunningNorm


class ActionAndValue(NamedTuple):
    """The output of PPO's agent for a batch of observations: actions, their log-probabilities, entropies and values."""

    action: Tensor  # [B, A], not clipped
    log_prob: Tensor  # [B]
    entropy: Tensor  # [B]
    value: Tensor  # [B, 1]


class Agent(BaseAgent):
    """PPO's agent: a policy and a critic, by default a Gaussian and two tanh networks that share only the normalizer.

    Its methods take raw observations; a recurrent policy begins with an empty state.

    Args:
        obs_dim: O, an action mask at the end of the row included.
        act_dim: A.
        policy_layer_sizes: Units of the policy's hidden layers.
        value_layer_sizes: Units of the critic's hidden layers.
        normalize_obs: Whether raw observations are normalized.
        log_std_init: Initial logarithm of the Gaussian's standard deviation.
        policy: Another actor-critic, in place of what the other arguments before describe.
        obs_clip: Normalized observations are clipped to this many standard deviations.

    Attributes:
        policy: Policy and critic.
    """

    policy: ActorCritic

    def __init__(
        self,
        obs_dim: int,
        act_dim: int,
        policy_layer_sizes: Sequence[int] = (64, 64),
        value_layer_sizes: Sequence[int] = (64, 64),
        normalize_obs: bool = True,
        log_std_init: float = 0.0,
        policy: ActorCritic | None = None,
        obs_clip: float = 10.0,
    ) -> None:
        super().__init__()
        for name, sizes in (("policy_layer_sizes", policy_layer_sizes), ("value_layer_sizes", value_layer_sizes)):
            if not sizes:
                raise ValueError(f"{name}: must name at least one layer, such as (64, 64); got {sizes!r}.")
        architecture = Architecture(policy_layer_sizes, value_layer_sizes, log_std_init=log_std_init)
        self.policy = policy or ActorCritic(GaussianHead(act_dim), architecture, obs_dim)
        mask_dim = self.policy.mask_dim
        self.obs_normalizer: RunningNorm | nn.Identity = (
            RunningNorm(obs_dim - mask_dim, obs_clip, passed=mask_dim) if normalize_obs else nn.Identity()
        )

    @property
    def actor_mean(self) -> nn.Module:
        """The policy's network up to the mean of a Gaussian, or to logits."""
        return _joined(self.policy.policy_encoder, self.policy.policy_core, self.policy.policy_head)

    @property
    def actor_logstd(self) -> nn.Parameter:
        """The logarithm of a Gaussian's standard deviation, ``[1, A]``."""
        log_std = self.policy.policy_logstd
        if not isinstance(log_std, nn.Parameter):
            raise AttributeError  # nn.Module then names the attribute: only a Gaussian policy has it
        return log_std

    @property
    def critic(self) -> nn.Module:
        """The critic's network."""
        return _joined(self.policy.value_encoder, self.policy.value_core, self.policy.value_head)

    def get_value(self, x: Tensor) -> Tensor:
        """Return the values of raw observations ``[B, O]``: ``[B, 1]``."""
        return self.policy.get_value(self.prepare(x))

    def get_deterministic_action(self, x: Tensor) -> Tensor:
        """Return the most likely action for raw observations ``[B, O]``, the mean of a Gaussian: ``[B, A]``."""
        return self.policy.head.mode(self.policy(self.prepare(x)))

    def get_action_and_value(self, x: Tensor, action: Tensor | None = None) -> ActionAndValue:
        """Sample actions for raw observations ``[B, O]``, or score the actions given."""
        *params, value = self.policy.forward_all(self.prepare(x))
        head, given = self.policy.head, tuple(params)
        if action is None:
            with torch.no_grad():
                action = head.sample(given, head.draw_noise(x.shape[:-1], None, value))
        return ActionAndValue(action, head.log_prob(given, action), head.entropy(given), value)


def _joined(encoder: nn.Module, core: nn.Module | None, head: nn.Module) -> nn.Module:
    """Return an encoder of hidden layers and a head as one network; with a core or another encoder the head alone."""
    if core is not None or not isinstance(encoder, HiddenLayers):
        return head
    return nn.Sequential(*encoder, *(head if isinstance(head, nn.Sequential) else [head]))


def make_agent(config: PPOConfig, shapes: Shapes) -> Agent:
    """Build the PPO agent that a config describes."""
    observation_space, action_space, obs_dim, mask_dim, make_encoder = shapes
    kind, head = encoder_kind(config.encoder, observation_space), head_for(action_space)
    architecture = Architecture(
        config.policy_layer_sizes,
        config.critic_layer_sizes,
        HiddenLayers,
        kind,
        config.shared_encoder,
        config.lstm_units,
        config.lstm_layer_norm,
        log_std_init=config.log_std_init,
        make_encoder=make_encoder,
    )
    policy = ActorCritic(head, architecture, obs_dim, mask_dim, observation_space)
    normalize = config.normalize_obs and kind == "mlp"
    return Agent(obs_dim, head.action_dim, normalize_obs=normalize, policy=policy, obs_clip=config.obs_clip)
