"""The policies of stable-baselines: each describes the networks of a PPO agent and builds it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, ClassVar, Literal, NamedTuple

import torch
from gymnasium import Space
from torch import nn

from minerva.networks.actor_critic import ActorCritic, Architecture
from minerva.networks.heads import head_for
from minerva.networks.mlp import HiddenLayers
from minerva.trainers.ppo.agent import Agent

Activation = Callable[[], nn.Module]
Features = Literal["mlp", "cnn"]
Sizes = tuple[int, ...]

_ACTIVATIONS: dict[str, tuple[Activation, tuple[Any, ...]]] = {
    "tanh": (nn.Tanh, (torch.tanh, nn.functional.tanh)),
    "relu": (nn.ReLU, (torch.relu, nn.functional.relu)),
    "elu": (nn.ELU, (nn.functional.elu,)),
    "selu": (nn.SELU, (torch.selu, nn.functional.selu)),
    "leaky_relu": (nn.LeakyReLU, (nn.functional.leaky_relu,)),
    "sigmoid": (nn.Sigmoid, (torch.sigmoid, nn.functional.sigmoid)),
    "softplus": (nn.Softplus, (nn.functional.softplus,)),
    "swish": (nn.SiLU, (nn.functional.silu,)),
}
LSTM = "lstm"
CUSTOM_FUNCTION = "function"
"""Placeholder in a file for a custom activation function."""


class Layers(NamedTuple):
    """Sizes of the hidden layers, parsed from `net_arch`."""

    shared: Sizes  # before the LSTM, or before policy and critic split
    policy: Sizes
    value: Sizes


class FunctionModule(nn.Module):
    """A module that applies a plain function.

    Args:
        function: Maps a tensor to one of the same shape.
    """

    def __init__(self, function: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self._function = function

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Apply the function."""
        return self._function(x)


class Policy:
    """Description of the networks of policy and critic.

    Args:
        net_arch: Units per hidden layer: numbers for layers that policy and critic share, then a dict with ``pi`` and
            ``vf`` for the separate layers of policy and critic; ``"lstm"`` marks the place of the LSTM.
        act_fun: The activation function: torch's (``torch.tanh``, ``torch.nn.ReLU``), a name ("tanh", "relu", …), or a
            custom function.
        layers: Units per hidden layer, an older form of `net_arch`.
        n_lstm: Units of the LSTM.
        feature_extraction: "mlp" or "cnn".
    """

    features: ClassVar[Features] = "mlp"
    recurrent: ClassVar[bool] = False
    layer_norm: ClassVar[bool] = False

    def __init__(
        self,
        net_arch: Sequence[Any] | None = None,
        act_fun: Any = "tanh",
        layers: Sequence[int] | None = None,
        n_lstm: int = 256,
        feature_extraction: Features | None = None,
    ) -> None:
        if net_arch is not None and layers is not None:
            raise ValueError("layers: cannot be combined with net_arch, got both; give net_arch alone.")
        self.extraction: Features = feature_extraction or self.features
        if self.extraction not in ("mlp", "cnn"):
            raise ValueError(f"feature_extraction: must be 'mlp' or 'cnn', got {feature_extraction!r}.")
        if net_arch is not None and self.extraction == "cnn":
            raise ValueError(f"net_arch: is for 'mlp', the layers of a CNN are fixed; got {net_arch!r}. Omit it.")
        if isinstance(n_lstm, bool) or not isinstance(n_lstm, int) or n_lstm < 1:
            raise ValueError(f"n_lstm: must be a positive integer, got {n_lstm!r}.")
        self.lstm_units = n_lstm if self.recurrent else None
        self.act_fun = act_fun
        self.activation = activation_of(act_fun)
        self.layers = self._layers(net_arch, layers)

    def _layers(self, net_arch: Sequence[Any] | None, layers: Sequence[int] | None) -> Layers:
        if net_arch is not None:
            return parse_net_arch(net_arch, self.recurrent)
        sizes = parse_net_arch([64, 64] if layers is None else list(layers), recurrent=False).shared
        if self.extraction == "cnn":
            return Layers((), (), ())
        return Layers(sizes, (), ()) if self.recurrent else Layers((), sizes, sizes)

    @property
    def shares(self) -> bool:
        """Whether policy and critic share layers."""
        return self.recurrent or self.extraction == "cnn" or bool(self.layers.shared)

    def build(self, observation_space: Space[Any], action_space: Space[Any], obs_dim: int, mask_dim: int) -> Agent:
        """Build the networks.

        Args:
            observation_space: The observation space before flattening.
            action_space: The action space of one environment.
            obs_dim: O, length of an observation row, action mask included.
            mask_dim: K, length of the action mask; 0 without one.
        """
        head = head_for(action_space)
        separate = (self.layers.policy, self.layers.value)
        encoders = (self.layers.shared, ()) if self.shares else separate
        architecture = Architecture(
            *encoders,
            partial(HiddenLayers, activation=self.activation),
            self.extraction,
            self.shares,
            self.lstm_units,
            self.layer_norm,
            head_layer_sizes=separate if self.shares else ((), ()),
            activation=self.activation,
        )
        policy = ActorCritic(head, architecture, obs_dim, mask_dim, observation_space)
        return Agent(obs_dim, head.action_dim, normalize_obs=False, policy=policy)


class MlpPolicy(Policy):
    """Separate tanh networks for policy and critic, with two layers of 64 units each."""


class CnnPolicy(Policy):
    """One convolutional network, shared by policy and critic."""

    features = "cnn"


class MlpLstmPolicy(Policy):
    """Two tanh layers of 64 units and an LSTM of 256 units, shared by policy and critic."""

    recurrent = True


class MlpLnLstmPolicy(MlpLstmPolicy):
    """`MlpLstmPolicy` with layer normalization in the LSTM."""

    layer_norm = True


class CnnLstmPolicy(Policy):
    """One convolutional network and an LSTM of 256 units, shared by policy and critic."""

    features = "cnn"
    recurrent = True


class CnnLnLstmPolicy(CnnLstmPolicy):
    """`CnnLstmPolicy` with layer normalization in the LSTM."""

    layer_norm = True


POLICIES: dict[str, type[Policy]] = {
    policy.__name__: policy
    for policy in (MlpPolicy, CnnPolicy, MlpLstmPolicy, CnnLstmPolicy, MlpLnLstmPolicy, CnnLnLstmPolicy)
}


def policy_class(policy: str | type[Policy]) -> type[Policy]:
    """Return the policy class for a name or a class.

    Raises:
        ValueError: There is no such policy.
    """
    if isinstance(policy, str) and policy in POLICIES:
        return POLICIES[policy]
    if isinstance(policy, type) and issubclass(policy, Policy):
        return policy
    raise ValueError(f"policy: must be {', '.join(POLICIES)}, by name or class; got {policy!r}.")


def make_policy(policy: str | type[Policy], policy_kwargs: dict[str, Any] | None) -> Policy:
    """Build a policy description from a name or class and its arguments.

    Raises:
        ValueError: An argument is unknown or invalid.
    """
    known = ("net_arch", "act_fun", "layers", "n_lstm", "feature_extraction")
    given = dict(policy_kwargs or {})
    for name in given:
        if name not in known:
            raise ValueError(f"policy_kwargs: {name!r} is not one of {', '.join(known)}.")
    return policy_class(policy)(**given)


def parse_net_arch(net_arch: Sequence[Any], recurrent: bool) -> Layers:
    """Parse `net_arch`.

    Raises:
        ValueError: `net_arch` has another form.
    """
    rule = "must be a list of positive integers, then at most one dict with lists for 'pi' and 'vf', such as "
    rule += "[64, 'lstm', dict(pi=[64], vf=[64])]" if recurrent else "[64, dict(pi=[64], vf=[64])]"
    if not isinstance(net_arch, (list, tuple)):
        raise ValueError(f"net_arch: {rule}; got {net_arch!r}.")
    parts = list(net_arch)
    separate = parts.pop() if parts and isinstance(parts[-1], dict) else {}
    if recurrent:
        if parts.count(LSTM) != 1:
            raise ValueError(f"net_arch: must name 'lstm' once for a recurrent policy, got {net_arch!r}; {rule}.")
        place = parts.index(LSTM)
        parts, after = parts[:place], parts[place + 1 :]
    else:
        after = []
    try:
        if not set(separate) <= {"pi", "vf"}:
            raise TypeError
        return Layers(_sizes(parts), *(_sizes(after) + _sizes(separate.get(name, [])) for name in ("pi", "vf")))
    except TypeError as error:
        raise ValueError(f"net_arch: {rule}; got {net_arch!r}.") from error


def _sizes(values: Any) -> Sizes:
    if not isinstance(values, (list, tuple)):
        raise TypeError
    for value in values:
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise TypeError
    return tuple(values)


def activation_of(act_fun: Any) -> Activation:
    """Return the constructor of an activation module.

    Raises:
        ValueError: `act_fun` is neither a known name nor a function.
    """
    for name, (module, functions) in _ACTIVATIONS.items():
        if act_fun is module or act_fun in functions or (isinstance(act_fun, str) and act_fun == name):
            return module
    if isinstance(act_fun, type) and issubclass(act_fun, nn.Module):
        return act_fun
    if callable(act_fun):
        return lambda: FunctionModule(act_fun)
    raise ValueError(
        f"act_fun: must be {', '.join(_ACTIVATIONS)}, or a function such as torch.tanh; got {act_fun!r}. If the "
        "file was saved with a custom function, pass it again: PPO2.load(path, policy_kwargs=dict(act_fun=...))."
    )


def plain_kwargs(policy_kwargs: dict[str, Any] | None) -> dict[str, Any]:
    """Return a policy's arguments as plain values: a known activation as its name, a custom one as a placeholder."""
    plain = dict(policy_kwargs or {})
    if "act_fun" in plain:
        module = activation_of(plain["act_fun"]) if plain["act_fun"] != CUSTOM_FUNCTION else None
        plain["act_fun"] = next((name for name, (known, _) in _ACTIVATIONS.items() if known is module), CUSTOM_FUNCTION)
    return plain
