"""The actor-critic of PPO and V-MPO: encoders, recurrent cores, an action head and a value head."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from gymnasium import Space
from torch import Tensor, nn

from minerva.networks.cnn import NatureCNN
from minerva.networks.encoders import DictEncoder, EncoderKind, MakeEncoder, custom_encoder, image_encoder
from minerva.networks.heads import ActionHead, DistParams, GaussianHead
from minerva.networks.layer_norm_mlp import LayerNormMLP
from minerva.networks.mlp import HiddenLayers, orthogonal
from minerva.networks.numpy_mlp import Array, NumpyLSTM, NumpyMLP
from minerva.networks.recurrent import LSTMCore

NumpyPolicy = Callable[[Array, Array, Array], tuple[tuple[Array, ...], Array]]
"""From observations ``[N, O]``, recurrent states ``[N, S]`` and where episodes begin ``[N]`` to the parameters of the
distributions of actions and the states after them, on NumPy."""


class Architecture(NamedTuple):
    """The parts that an actor-critic is built of."""

    policy_layer_sizes: Sequence[int]  # units of the policy's hidden layers
    value_layer_sizes: Sequence[int]  # units of the critic's; not used with a shared encoder
    hidden: Callable[[int, Sequence[int]], HiddenLayers | LayerNormMLP] = HiddenLayers
    encoder: EncoderKind = "mlp"  # "mlp" is `hidden`
    shared_encoder: bool = False  # whether the critic uses the policy's encoder and recurrent core
    lstm_units: int | None = None
    lstm_layer_norm: bool = False
    orthogonal_heads: bool = True  # with gains 0.01 and 1; otherwise Xavier-uniform
    log_std_init: float | None = 0.0  # of a Gaussian; None for one that depends on the state
    head_layer_sizes: tuple[Sequence[int], Sequence[int]] = ((), ())  # hidden layers after encoder and core
    activation: Callable[[], nn.Module] = nn.Tanh  # of these layers
    make_encoder: MakeEncoder | None = None  # of a user's own encoder


class ActorCriticOutput(NamedTuple):
    """The output of an actor-critic: parameters of the action distribution, values, and the recurrent state."""

    params: DistParams  # of the distributions of actions, [..., ·] each
    value: Tensor  # [...]
    recurrent_state: Tensor  # after the observations, [n, S]


class ActorCritic(nn.Module):
    """A policy and a critic: for each an encoder, a recurrent core where there is one, and a head.

    Names of the policy's parameters begin with "policy_", those of the critic's with "value_". Observations are
    normalized already, with an action mask at the end of a row where there is one.

    Args:
        head: How actions are distributed.
        architecture: What the networks are built of.
        obs_dim: O, an action mask included.
        mask_dim: K, entries of the mask.
        observation_space: Before flattening; needed for convolutions.

    Attributes:
        policy_encoder, value_encoder: From observations to features; the same module if shared.
        policy_core, value_core: Recurrent cores over the features, or None.
        policy_head: From features to the mean of a Gaussian, or to logits.
        policy_logstd: Of a Gaussian: a parameter ``[1, A]``, or a Linear where it depends on the state.
        value_head: From features to values.
        state_dim: S, length of both cores' states together; 0 without a core.

    Raises:
        ValueError: The encoder does not fit the observation space.
    """

    policy_encoder: nn.Module
    value_encoder: nn.Module
    policy_core: LSTMCore | None
    value_core: LSTMCore | None
    policy_logstd: nn.Linear | nn.Parameter | None

    def __init__(
        self,
        head: ActionHead,
        architecture: Architecture,
        obs_dim: int,
        mask_dim: int = 0,
        observation_space: Space[Any] | None = None,
    ) -> None:
        super().__init__()
        a = architecture
        self.head = head
        self.mask_dim = mask_dim
        self.shared_encoder = a.shared_encoder
        self.takes_bytes = a.encoder != "mlp"  # such an encoder scales images itself

        def column(layer_sizes: Sequence[int]) -> tuple[nn.Module, LSTMCore | None, int]:
            encoder, features = _encoder(a, layer_sizes, obs_dim - mask_dim, observation_space)
            core = LSTMCore(features, a.lstm_units, a.lstm_layer_norm) if a.lstm_units else None
            return encoder, core, a.lstm_units or features

        self.policy_encoder, self.policy_core, features = column(a.policy_layer_sizes)
        if a.shared_encoder:
            # Not as second submodules: their parameters have one name.
            object.__setattr__(self, "value_encoder", self.policy_encoder)
            object.__setattr__(self, "value_core", self.policy_core)
            value_features = features
        else:
            self.value_encoder, self.value_core, value_features = column(a.value_layer_sizes)
        self.policy_head = _head(features, a.head_layer_sizes[0], head.size, a, gain=0.01)
        self.value_head = _head(value_features, a.head_layer_sizes[1], 1, a, gain=1.0)
        self.policy_logstd = _log_std(features, head, a)
        self._policy_state = 0 if self.policy_core is None else self.policy_core.state_dim
        self.state_dim = self._policy_state * (1 if a.shared_encoder else 2)

    @property
    def device(self) -> torch.device:
        """Where the networks are."""
        return next(self.value_head.parameters()).device

    @property
    def static(self) -> bool:
        """Return whether it computes the same operations every time, as a CUDA graph needs.

        Recurrent cores treat sequences by where episodes begin, and nothing is known of a user's own encoder.
        """
        known = (HiddenLayers, LayerNormMLP, NatureCNN, DictEncoder)
        return not self.state_dim and all(isinstance(e, known) for e in (self.policy_encoder, self.value_encoder))

    def encoder_buffers(self) -> list[Tensor]:
        """List the buffers that a user's own encoder may change as it computes, such as BatchNorm's statistics."""
        return list({id(b): b for e in (self.policy_encoder, self.value_encoder) for b in e.buffers()}.values())

    # With recurrent states

    def forward_sequence(self, obs: Tensor, recurrent_state: Tensor, episode_starts: Tensor) -> ActorCriticOutput:
        """Evaluate policy and critic on sequences.

        Args:
            obs: ``[T, n, O]``; without a recurrent core ``[..., O]``.
            recurrent_state: Before the first of them, ``[n, S]``.
            episode_starts: ``[T, n]``, 1 where an episode begins: the state is reset there.
        """
        own, other = self._split_state(recurrent_state)
        features, own = _over_sequences(self.policy_encoder, self.policy_core, self._seen(obs), own, episode_starts)
        value_features = features
        if not self.shared_encoder:
            value_features, other = _over_sequences(
                self.value_encoder, self.value_core, self._seen(obs), other, episode_starts
            )
        value = self.value_head(value_features).squeeze(-1)
        state = torch.cat([own, other], dim=-1) if self.state_dim else recurrent_state
        return ActorCriticOutput(self._distribution(features, obs), value, state)

    def policy_step(self, obs: Tensor, recurrent_state: Tensor) -> tuple[DistParams, Tensor]:
        """Evaluate the policy on one observation per sequence, ``[n, O]``; the critic's core moves along.

        Returns:
            The parameters of the distributions of actions, and the states after the observations.
        """
        features = _encode(self.policy_encoder, self._seen(obs))
        if self.policy_core is None:
            return self._distribution(features, obs), recurrent_state
        own, other = self._split_state(recurrent_state)
        features, own = self.policy_core.step(features, own)
        if not self.shared_encoder and self.value_core is not None:
            _, other = self.value_core.step(_encode(self.value_encoder, self._seen(obs)), other)
        return self._distribution(features, obs), torch.cat([own, other], dim=-1)

    # Of single observations, each taken as the first of its episode

    def forward(self, obs: Tensor) -> DistParams:
        """Return how actions are distributed for observations ``[..., O]``."""
        return self._distribution(_first(self.policy_encoder, self.policy_core, self._seen(obs)), obs)

    def forward_all(self, obs: Tensor) -> tuple[Tensor, ...]:
        """Return the parameters of `forward`, and the value ``[..., 1]``; a shared encoder runs once."""
        features = _first(self.policy_encoder, self.policy_core, self._seen(obs))
        if self.shared_encoder:
            return *self._distribution(features, obs), self.value_head(features)
        return *self._distribution(features, obs), self.get_value(obs)

    def get_value(self, obs: Tensor) -> Tensor:
        """Return the values of observations ``[..., O]``: ``[..., 1]``."""
        value: Tensor = self.value_head(_first(self.value_encoder, self.value_core, self._seen(obs)))
        return value

    # On NumPy

    @property
    def runs_on_numpy(self) -> bool:
        """Return whether `numpy_policy` can do it."""
        encoders = (self.policy_encoder, self.value_encoder)
        known = all(isinstance(encoder, (HiddenLayers, LayerNormMLP)) for encoder in encoders)
        return not self.mask_dim and known and all(NumpyMLP.runs(network) for network in (*encoders, self.policy_head))

    def numpy_policy(self) -> NumpyPolicy:
        """Return `policy_step` on NumPy, with states reset where episodes begin. The module must be on the CPU."""
        encoders = [self.policy_encoder] if self.shared_encoder else [self.policy_encoder, self.value_encoder]
        heads: list[Callable[[Array], Array]] = [NumpyMLP(self.policy_head)]
        if isinstance(self.policy_logstd, nn.Linear):
            heads.append(NumpyMLP(self.policy_logstd))
        elif self.policy_logstd is not None:
            log_std = self.policy_logstd.detach().numpy()
            heads.append(lambda features: log_std)
        encode = [NumpyMLP(encoder) for encoder in encoders]
        cores = [NumpyLSTM(core) for core in (self.policy_core, self.value_core)[: len(encoders)] if core is not None]
        size = self._policy_state

        def policy(obs: Array, state: Array, episode_starts: Array) -> tuple[tuple[Array, ...], Array]:
            if not cores:
                features = encode[0](obs)
                return tuple(head(features) for head in heads), state
            if episode_starts.any():
                state = state * (1 - episode_starts)[:, None]
            after = np.empty_like(state)
            for i in reversed(range(len(cores))):  # the policy's last: its features are what is used
                where = slice(i * size, (i + 1) * size)
                features, after[:, where] = cores[i](encode[i](obs), state[:, where])
            return tuple(head(features) for head in heads), after

        return policy

    # Parts

    def _seen(self, obs: Tensor) -> Tensor:
        return obs[..., : -self.mask_dim] if self.mask_dim else obs

    def _split_state(self, state: Tensor) -> tuple[Tensor, Tensor]:
        return state[..., : self._policy_state], state[..., self._policy_state :]

    def _distribution(self, features: Tensor, obs: Tensor) -> DistParams:
        log_std = self.policy_logstd
        if isinstance(log_std, nn.Linear):
            log_std = log_std(features)
        params = self.head.distribution(self.policy_head(features), log_std)
        return self.head.masked(params, obs[..., -self.mask_dim :]) if self.mask_dim else params


def _encoder(
    a: Architecture, layer_sizes: Sequence[int], in_dim: int, space: Space[Any] | None
) -> tuple[nn.Module, int]:
    if a.encoder == "custom":
        return custom_encoder(a.make_encoder, in_dim)
    if a.encoder == "mlp":
        hidden = a.hidden(in_dim, layer_sizes)
        return hidden, hidden.out_dim
    assert space is not None
    encoder = image_encoder(space)
    return encoder, encoder.out_dim


def _head(features: int, layer_sizes: Sequence[int], size: int, a: Architecture, gain: float) -> nn.Module:
    hidden = HiddenLayers(features, layer_sizes, a.activation)
    layer = nn.Linear(hidden.out_dim, size)
    if a.orthogonal_heads:
        orthogonal(layer, gain)
    else:
        nn.init.xavier_uniform_(layer.weight)
        nn.init.zeros_(layer.bias)
    return nn.Sequential(*hidden, layer) if layer_sizes else layer


def _log_std(features: int, head: ActionHead, a: Architecture) -> nn.Linear | nn.Parameter | None:
    if not isinstance(head, GaussianHead):
        return None
    if a.log_std_init is not None:
        return nn.Parameter(torch.full((1, head.action_dim), float(a.log_std_init)))
    layer = nn.Linear(features, head.action_dim)
    nn.init.xavier_uniform_(layer.weight)
    nn.init.constant_(layer.bias, -0.5)
    return layer


def _encode(encoder: nn.Module, obs: Tensor) -> Tensor:
    # Flat: a convolution, or a user's own module, knows one batch dimension.
    features: Tensor = encoder(obs.reshape(-1, obs.shape[-1]))
    return features.reshape(*obs.shape[:-1], features.shape[-1])


def _over_sequences(
    encoder: nn.Module, core: LSTMCore | None, obs: Tensor, state: Tensor, episode_starts: Tensor
) -> tuple[Tensor, Tensor]:
    features = _encode(encoder, obs)
    return (features, state) if core is None else core(features, state, episode_starts)


def _first(encoder: nn.Module, core: LSTMCore | None, obs: Tensor) -> Tensor:
    """Return features ``[..., F]`` of observations that are the first of their episodes."""
    features = _encode(encoder, obs)
    if core is None:
        return features
    rows = features.reshape(-1, features.shape[-1])
    out, _ = core.step(rows, rows.new_zeros(len(rows), core.state_dim))
    return out.reshape(*features.shape[:-1], out.shape[-1])
