"""PPO's networks: an action head, an encoder and a memory, put together."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from gymnasium import Space
from torch import Tensor, nn

from minerva.networks.cnn import NatureCNN
from minerva.networks.encoders import DictEncoder, encoder_for, looks_at_images
from minerva.networks.heads import ActionHead, GaussianHead, Parameters, head_for
from minerva.networks.lstm import LSTMCore
from minerva.networks.mlp import Hidden, tanh_mlp
from minerva.networks.trunk import Column, Trunk
from minerva.trainers.ppo.config import PPOConfig
from minerva.utils.running_norm import RunningNorm

MakeEncoder = Callable[[], nn.Module]
"""Makes a user's own encoder, from rows ``[B, O]`` to features ``[B, F]``."""


class ActionAndValue(NamedTuple):
    """What the policy and the critic say of a batch of observations."""

    action: Tensor  # [B, A], not clipped
    log_prob: Tensor  # [B]
    entropy: Tensor  # [B]
    value: Tensor  # [B, 1]


class Agent(nn.Module):
    """A policy and a critic: by default a Gaussian one and two tanh networks that share nothing but the normalizer.

    `get_value`, `get_deterministic_action` and `get_action_and_value` take raw observations. What the rollout stores is
    normalized already; `act`, `step` and `describe` take that. Where there is a memory, the former begin with an empty
    one.

    Args:
        obs_dim: O, an action mask at the end of the row included.
        act_dim: A.
        policy_layer_sizes: Units of the policy's hidden layers.
        value_layer_sizes: Units of the critic's hidden layers.
        normalize_obs: Whether raw observations are normalized.
        log_std_init: Where the logarithm of a Gaussian's standard deviation starts.
        head: How actions are distributed; by default as a Gaussian.
        trunk: What stands in place of the hidden layers named above.
        layers_after: Hidden layers of policy and critic after a trunk.
        mask_dim: K, entries at the end of a row that say which actions are allowed.

    Attributes:
        actor_mean: The policy's network, or what of it stands after a trunk: the mean of a Gaussian, else logits.
        actor_logstd: ``[1, A]``, with a Gaussian alone.
        critic: The critic's network, likewise.
    """

    actor_logstd: nn.Parameter

    def __init__(
        self,
        obs_dim: int,
        act_dim: int,
        policy_layer_sizes: Sequence[int],
        value_layer_sizes: Sequence[int],
        normalize_obs: bool = True,
        log_std_init: float = 0.0,
        head: ActionHead | None = None,
        trunk: Trunk | None = None,
        layers_after: tuple[Sequence[int], Sequence[int]] = ((), ()),
        mask_dim: int = 0,
    ) -> None:
        super().__init__()
        for name, sizes in (("policy_layer_sizes", policy_layer_sizes), ("value_layer_sizes", value_layer_sizes)):
            if not sizes:
                raise ValueError(f"{name}: must name at least one layer, such as (64, 64); got {sizes!r}.")
        self.head = head or GaussianHead(act_dim)
        self.mask_dim = mask_dim
        seen = obs_dim - mask_dim
        self.obs_normalizer: RunningNorm | nn.Identity = (
            RunningNorm(seen, passed=mask_dim) if normalize_obs else nn.Identity()
        )
        self.trunk = trunk
        if trunk is None:
            self.actor_mean = tanh_mlp(seen, policy_layer_sizes, self.head.size, out_gain=0.01)
            self.critic = tanh_mlp(seen, value_layer_sizes, 1, out_gain=1.0)
        else:
            width = (trunk.value or trunk.policy).out_dim
            self.actor_mean = tanh_mlp(trunk.policy.out_dim, layers_after[0], self.head.size, out_gain=0.01)
            self.critic = tanh_mlp(width, layers_after[1], 1, out_gain=1.0)
        self._gaussian = isinstance(self.head, GaussianHead)
        start = nn.Parameter(torch.full((1, act_dim), float(log_std_init))) if self._gaussian else None
        self.register_parameter("actor_logstd", start)

    @property
    def state_dim(self) -> int:
        """S, length of the memory's state; 0 without a memory."""
        return 0 if self.trunk is None else self.trunk.state_dim

    @property
    def takes_bytes(self) -> bool:
        """Whether images may stay bytes, because the encoder scales them itself."""
        return self.trunk is not None and not isinstance(self.trunk.policy.encoder, Hidden)

    def empty_state(self, count: int) -> Tensor:
        """Give the state of a memory that has seen nothing, ``[count, S]``."""
        return torch.zeros(count, self.state_dim, device=self.device)

    @property
    def device(self) -> torch.device:
        """Where the networks are."""
        return next(self.critic.parameters()).device

    # On raw observations

    def get_value(self, x: Tensor) -> Tensor:
        """Value raw observations ``[B, O]``: ``[B, 1]``."""
        return self._look(self._prepared(x))[1].unsqueeze(-1)

    def get_deterministic_action(self, x: Tensor) -> Tensor:
        """Give the likeliest action for raw observations ``[B, O]``, the mean of a Gaussian: ``[B, A]``."""
        return self.head.mode(self._policy(self._prepared(x))[0])

    def get_action_and_value(self, x: Tensor, action: Tensor | None = None) -> ActionAndValue:
        """Act in raw observations ``[B, O]``, or score the actions given."""
        parameters, value, _ = self._look(self._prepared(x))
        if action is None:
            with torch.no_grad():
                action = self._sample(parameters, None)
        log_prob, entropy = self.score(parameters, action)
        return ActionAndValue(action, log_prob, entropy, value.unsqueeze(-1))

    @torch.no_grad()
    def choose(self, x: Tensor, deterministic: bool, generator: torch.Generator | None = None) -> Tensor:
        """Give the likeliest action for raw observations ``[B, O]``, or a sampled one: ``[B, A]``."""
        return self.choose_on(x, self.empty_state(len(x)), deterministic, generator)[0]

    @torch.no_grad()
    def choose_on(
        self, x: Tensor, state: Tensor, deterministic: bool, generator: torch.Generator | None = None
    ) -> tuple[Tensor, Tensor]:
        """Do so with a memory: from states ``[B, S]`` on, which are returned as they are after."""
        parameters, state = self._policy(self._prepared(x), state)
        return (self.head.mode(parameters) if deterministic else self._sample(parameters, generator)), state

    def _prepared(self, x: Tensor) -> Tensor:
        x = x if self.takes_bytes or x.dtype != torch.uint8 else x.float()
        if isinstance(self.obs_normalizer, RunningNorm):
            x = self.obs_normalizer(x.to(self.obs_normalizer.mean.device))
        return x.to(self.device)

    # On normalized observations

    @torch.no_grad()
    def act(self, obs: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """Sample actions ``[B, A]`` for normalized observations ``[B, O]``."""
        return self._sample(self._policy(obs)[0], generator)

    @torch.no_grad()
    def step(
        self, obs: Tensor, state: Tensor, starts: Tensor, generator: torch.Generator | None = None
    ) -> tuple[Tensor, Tensor]:
        """Sample actions with a memory that is emptied where an episode begins; as the collector asks for it."""
        if self.state_dim:
            state = state * (1 - starts).unsqueeze(-1).to(state.device)
        parameters, state = self._policy(obs, state)
        return self._sample(parameters, generator), state

    def describe(self, obs: Tensor, state: Tensor, starts: Tensor) -> tuple[Parameters, Tensor]:
        """Give the distributions of actions, and values ``[...]``, of normalized observations of any batch shape.

        Args:
            obs: ``[..., O]``; with a memory they are sequences, ``[T, n, O]``.
            state: The memory's before the first of them, ``[n, S]``.
            starts: ``[T, n]``, 1 where an episode begins.
        """
        seen, mask = self._parted(obs)
        if self.trunk is None:
            for_policy = for_value = seen
        else:
            for_policy, for_value, _ = self.trunk(seen, state, starts)
        return self._distribution(for_policy, mask), self.critic(for_value).squeeze(-1)

    def score(self, parameters: Parameters, actions: Tensor) -> tuple[Tensor, Tensor]:
        """Give log-probabilities of actions and entropies, ``[...]``."""
        log_prob = self.head.log_prob(parameters, actions)
        return log_prob, self.head.entropy(parameters).expand(log_prob.shape)

    def _look(self, obs: Tensor, state: Tensor | None = None) -> tuple[Parameters, Tensor, Tensor]:
        """Do what `describe` does for single rows ``[B, O]``; the third is the state after them."""
        seen, mask = self._parted(obs)
        if state is None:
            state = self.empty_state(len(obs))
        if self.trunk is None:
            for_policy = for_value = seen
        else:
            for_policy, for_value, state = self.trunk.step(seen, state)
        return self._distribution(for_policy, mask), self.critic(for_value).squeeze(-1), state

    def _policy(self, obs: Tensor, state: Tensor | None = None) -> tuple[Parameters, Tensor]:
        """Do so without asking the critic, but for its memory, which goes along."""
        seen, mask = self._parted(obs)
        if state is None:
            state = self.empty_state(len(obs))
        if self.trunk is None:
            features = seen
        elif self.trunk.recurrent:
            features, _, state = self.trunk.step(seen, state)
        else:
            features, _ = self.trunk.policy.step(seen, state)
        return self._distribution(features, mask), state

    def _parted(self, obs: Tensor) -> tuple[Tensor, Tensor | None]:
        return (obs[..., : -self.mask_dim], obs[..., -self.mask_dim :]) if self.mask_dim else (obs, None)

    def _distribution(self, features: Tensor, mask: Tensor | None) -> Parameters:
        given: Tensor = self.actor_mean(features)
        parameters = (given, self.actor_logstd) if self._gaussian else (given,)
        return parameters if mask is None else self.head.masked(parameters, mask)

    def _sample(self, parameters: Parameters, generator: torch.Generator | None) -> Tensor:
        given = parameters[0]
        return self.head.sample(parameters, draw_noise(self.head, len(given), generator, given.device))


def make_agent(
    config: PPOConfig,
    observation_space: Space[Any],
    action_space: Space[Any],
    obs_dim: int,
    mask_dim: int = 0,
    make_encoder: MakeEncoder | None = None,
) -> Agent:
    """Put an agent together from what the config names.

    Args:
        config: PPO's hyperparameters.
        observation_space: Before flattening.
        action_space: Of one environment.
        obs_dim: O, length of a row, mask included.
        mask_dim: K.
        make_encoder: Makes the user's own encoder, with `encoder` "custom".
    """
    head = head_for(action_space)
    seen = obs_dim - mask_dim

    def column(layer_sizes: Sequence[int]) -> Column:
        encoder, features = _encoder(config, observation_space, seen, layer_sizes, make_encoder)
        memory = LSTMCore(features, config.lstm_units, config.lstm_layer_norm) if config.lstm_units else None
        return Column(encoder, memory, features)

    kind = encoder_kind(config, observation_space)
    trunk = None
    if kind != "mlp" or config.shared_encoder or config.lstm_units:
        own = column(config.policy_layer_sizes)
        trunk = Trunk(own, None if config.shared_encoder else column(config.critic_layer_sizes))
    return Agent(
        obs_dim,
        head.action_dim,
        config.policy_layer_sizes,
        config.critic_layer_sizes,
        config.normalize_obs and kind == "mlp",
        config.log_std_init,
        head,
        trunk,
        mask_dim=mask_dim,
    )


def encoder_kind(config: PPOConfig, observation_space: Space[Any]) -> str:
    """Say which encoder "auto" stands for: convolutions where there is an image."""
    if config.encoder != "auto":
        return config.encoder
    return "cnn" if looks_at_images(observation_space) else "mlp"


def _encoder(
    config: PPOConfig,
    space: Space[Any],
    seen: int,
    layer_sizes: Sequence[int],
    make_encoder: MakeEncoder | None,
) -> tuple[nn.Module, int]:
    kind = encoder_kind(config, space)
    if kind == "mlp":
        hidden = Hidden(seen, layer_sizes)
        return hidden, hidden.out_dim
    if kind == "cnn":
        return encoder_for(space)
    if make_encoder is None:
        raise ValueError(
            "encoder: 'custom' needs the function that makes it: PPOTrainer(..., make_encoder=...), or "
            "minerva.load(..., make_encoder=...)."
        )
    encoder = make_encoder()
    with torch.no_grad():
        features = encoder(torch.zeros(2, seen))
    if features.dim() != 2 or len(features) != 2:
        raise ValueError(
            f"make_encoder: its module must map rows of shape (B, {seen}) to features of shape (B, F), got "
            f"{tuple(features.shape)} for B = 2."
        )
    return encoder, features.shape[1]


def draw_noise(
    head: ActionHead, count: int, generator: torch.Generator | None, device: torch.device | None = None
) -> Tensor:
    """Draw what `count` actions are sampled with, ``[count, A]``."""
    draw = torch.randn if head.noise == "normal" else torch.rand
    return draw(count, head.action_dim, generator=generator, device=device)


def can_be_captured(agent: Agent) -> bool:
    """Whether what the agent does is the same operations every time, as a graph on a GPU needs it.

    A memory's sequences are cut where episodes begin, and of a user's own encoder nothing is known.
    """
    encoders = [] if agent.trunk is None else [column.encoder for column in agent.trunk.columns]
    return not agent.state_dim and all(isinstance(encoder, (Hidden, NatureCNN, DictEncoder)) for encoder in encoders)
