"""The policies of stable-baselines: each describes the networks of a PPO agent and builds it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np
from gymnasium import Space
from torch import nn

from minerva.compat.stable_baselines.common.activations import activation_name, activation_of
from minerva.networks.actor_critic import ActorCritic, Architecture
from minerva.networks.heads import head_for
from minerva.networks.mlp import HiddenLayers
from minerva.trainers.ppo.agent import Agent

Features = Literal["mlp", "cnn"]
Sizes = tuple[int, ...]

LSTM = "lstm"


class Layers(NamedTuple):
    """Sizes of the hidden layers, parsed from `net_arch`."""

    shared: Sizes  # before the LSTM, or before policy and critic split
    policy: Sizes
    value: Sizes
    after: Sizes = ()  # shared, after the LSTM


def nature_cnn(images: Any, **kwargs: Any) -> Any:
    """Choose the convolutions of `CnnPolicy`, as the value of `cnn_extractor`; it cannot be called.

    Raises:
        TypeError: It is called: TensorFlow's tensors cannot be used here.
    """
    raise TypeError("nature_cnn: cannot be called here; pass it as cnn_extractor, or use CnnPolicy.")


class BasePolicy:
    """Base class of all policies.

    Args:
        sess: Accepted and ignored, as are the others except spaces: the networks are built by `build`.
        ob_space: The observation space of one environment.
        ac_space: The action space of one environment.
        n_env: Accepted and ignored.
        n_steps: Accepted and ignored.
        n_batch: Accepted and ignored.
        reuse: Accepted and ignored.
        scale: Accepted and ignored.

    Raises:
        ValueError: The class is not a subclass of `FeedForwardPolicy` or `LstmPolicy`.
    """

    recurrent: ClassVar[bool] = False

    def __init__(
        self,
        sess: Any = None,
        ob_space: Space[Any] | None = None,
        ac_space: Space[Any] | None = None,
        n_env: int = 1,
        n_steps: int = 1,
        n_batch: int | None = None,
        reuse: bool = False,
        scale: bool = False,
    ) -> None:
        if not isinstance(self, (FeedForwardPolicy, LstmPolicy)):
            raise ValueError(
                f"policy: {type(self).__name__} must be a subclass of FeedForwardPolicy or LstmPolicy, which describe "
                f"their networks by net_arch, act_fun and feature_extraction; got one of "
                f"{type(self).__mro__[1].__name__}, which builds a TensorFlow graph that PyTorch cannot run."
            )
        self.sess, self.ob_space, self.ac_space = sess, ob_space, ac_space
        self.n_env, self.n_steps, self.n_batch, self.reuse = n_env, n_steps, n_batch, reuse


class ActorCriticPolicy(BasePolicy):
    """Description of the networks of policy and critic; use its subclasses.

    Attributes:
        extraction: "mlp" or "cnn".
        layers: Sizes of the hidden layers.
        lstm_units: Units of the LSTM, or None.
        layer_norm: Whether the LSTM has layer normalization.
    """

    features: ClassVar[Features] = "cnn"
    normalizes: ClassVar[bool] = False
    extraction: Features
    layers: Layers
    lstm_units: int | None
    layer_norm: bool

    def _describe(
        self,
        layers: Sequence[int] | None,
        net_arch: Sequence[Any] | None,
        act_fun: Any,
        cnn_extractor: Any,
        feature_extraction: Features | None,
        unknown: dict[str, Any],
        n_lstm: int | None = None,
        layer_norm: bool | None = None,
    ) -> None:
        known = ("net_arch", "act_fun", "layers", "feature_extraction", *(("n_lstm",) if self.recurrent else ()))
        for name in unknown:
            raise ValueError(f"policy_kwargs: {name!r} is not one of {', '.join(known)}.")
        if net_arch is not None and layers is not None:
            raise ValueError("layers: cannot be combined with net_arch, got both; give net_arch alone.")
        self.extraction = feature_extraction or self.features
        if self.extraction not in ("mlp", "cnn"):
            raise ValueError(f"feature_extraction: must be 'mlp' or 'cnn', got {feature_extraction!r}.")
        if net_arch is not None and self.extraction == "cnn":
            raise ValueError(f"net_arch: is for 'mlp', the layers of a CNN are fixed; got {net_arch!r}. Omit it.")
        if cnn_extractor is not nature_cnn and self.extraction == "cnn":
            raise ValueError(
                f"cnn_extractor: must be nature_cnn, got {cnn_extractor!r}: functions on TensorFlow's tensors cannot "
                "run on PyTorch. For an encoder of your own, use Minerva's PPO with encoder='custom'."
            )
        if self.recurrent and not _is_size(n_lstm):
            raise ValueError(f"n_lstm: must be a positive integer, got {n_lstm!r}.")
        self.lstm_units = int(n_lstm) if self.recurrent and n_lstm else None
        self.layer_norm = self.recurrent and (self.normalizes if layer_norm is None else bool(layer_norm))
        self.act_fun = act_fun
        self.activation = activation_of(act_fun)
        self.named_by_net_arch = net_arch is not None
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

    def plain_architecture(self) -> dict[str, Any]:
        """Return the arguments of `FeedForwardPolicy` or `LstmPolicy` that describe these networks, as plain values."""
        plain: dict[str, Any] = {"feature_extraction": self.extraction, "act_fun": activation_name(self.act_fun)}
        if self.recurrent:
            plain |= {"n_lstm": self.lstm_units, "layer_norm": self.layer_norm}
        shared, policy, value, after = map(list, self.layers)
        if self.extraction == "mlp" and self.recurrent and not self.named_by_net_arch:
            plain["layers"] = shared
        elif self.extraction == "mlp":
            core = [LSTM] if self.recurrent else []
            plain["net_arch"] = [*shared, *core, *after, {"pi": policy, "vf": value}]
        return plain

    def build(self, observation_space: Space[Any], action_space: Space[Any], obs_dim: int, mask_dim: int) -> Agent:
        """Build the networks.

        Args:
            observation_space: The observation space before flattening.
            action_space: The action space of one environment.
            obs_dim: O, length of an observation row, action mask included.
            mask_dim: K, length of the action mask; 0 without one.
        """
        head = head_for(action_space)
        shared, policy_sizes, value_sizes, after = self.layers
        separate = (after + policy_sizes, after + value_sizes)
        encoders = (shared, ()) if self.shares else separate
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
        if after:  # one set of layers, under the names of both heads
            assert isinstance(policy.policy_head, nn.Sequential) and isinstance(policy.value_head, nn.Sequential)
            for i in range(0, 2 * len(after), 2):  # each layer is followed by its activation
                policy.value_head[i] = policy.policy_head[i]
        return Agent(obs_dim, head.action_dim, normalize_obs=False, policy=policy)


class FeedForwardPolicy(ActorCriticPolicy):
    """A policy without a recurrent state; subclass it for networks of your own.

    Args:
        sess: Accepted and ignored, as are the others up to `reuse` except spaces.
        ob_space: The observation space of one environment.
        ac_space: The action space of one environment.
        n_env: Accepted and ignored.
        n_steps: Accepted and ignored.
        n_batch: Accepted and ignored.
        reuse: Accepted and ignored.
        layers: Units per hidden layer, an older form of `net_arch`.
        net_arch: Units per hidden layer: numbers for layers that policy and critic share, then a dict with ``pi`` and
            ``vf`` for the separate layers of policy and critic.
        act_fun: The activation function: torch's (``torch.tanh``, ``torch.nn.ReLU``), TensorFlow's, a name ("tanh",
            "relu", …), or a custom function of tensors of torch.
        cnn_extractor: `nature_cnn`.
        feature_extraction: "mlp" or "cnn".
        **kwargs: None are known.

    Raises:
        ValueError: An argument is unknown or invalid.
    """

    def __init__(
        self,
        sess: Any = None,
        ob_space: Space[Any] | None = None,
        ac_space: Space[Any] | None = None,
        n_env: int = 1,
        n_steps: int = 1,
        n_batch: int | None = None,
        reuse: bool = False,
        layers: Sequence[int] | None = None,
        net_arch: Sequence[Any] | None = None,
        act_fun: Any = "tanh",
        cnn_extractor: Any = nature_cnn,
        feature_extraction: Features | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(sess, ob_space, ac_space, n_env, n_steps, n_batch, reuse)
        self._describe(layers, net_arch, act_fun, cnn_extractor, feature_extraction, kwargs)


class RecurrentActorCriticPolicy(ActorCriticPolicy):
    """Base class of policies with a recurrent state."""

    recurrent = True


class LstmPolicy(RecurrentActorCriticPolicy):
    """A policy with an LSTM, which policy and critic share; subclass it for networks of your own.

    Args:
        sess: Accepted and ignored, as are the others up to `n_batch` except spaces.
        ob_space: The observation space of one environment.
        ac_space: The action space of one environment.
        n_env: Accepted and ignored.
        n_steps: Accepted and ignored.
        n_batch: Accepted and ignored.
        n_lstm: Units of the LSTM.
        reuse: Accepted and ignored.
        layers: Units per hidden layer before the LSTM, an older form of `net_arch`.
        net_arch: As for `FeedForwardPolicy`, with ``"lstm"`` at the place of the LSTM among the shared layers.
        act_fun: As for `FeedForwardPolicy`.
        cnn_extractor: `nature_cnn`.
        layer_norm: Whether the LSTM has layer normalization.
        feature_extraction: "mlp" or "cnn".
        **kwargs: None are known.

    Raises:
        ValueError: An argument is unknown or invalid.
    """

    def __init__(
        self,
        sess: Any = None,
        ob_space: Space[Any] | None = None,
        ac_space: Space[Any] | None = None,
        n_env: int = 1,
        n_steps: int = 1,
        n_batch: int | None = None,
        n_lstm: int = 256,
        reuse: bool = False,
        layers: Sequence[int] | None = None,
        net_arch: Sequence[Any] | None = None,
        act_fun: Any = "tanh",
        cnn_extractor: Any = nature_cnn,
        layer_norm: bool | None = None,
        feature_extraction: Features | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(sess, ob_space, ac_space, n_env, n_steps, n_batch, reuse)
        self._describe(layers, net_arch, act_fun, cnn_extractor, feature_extraction, kwargs, n_lstm, layer_norm)


class MlpPolicy(FeedForwardPolicy):
    """Separate tanh networks for policy and critic, with two layers of 64 units each."""

    features = "mlp"


class CnnPolicy(FeedForwardPolicy):
    """One convolutional network, shared by policy and critic."""


class MlpLstmPolicy(LstmPolicy):
    """Two tanh layers of 64 units and an LSTM of 256 units, shared by policy and critic."""

    features = "mlp"


class MlpLnLstmPolicy(MlpLstmPolicy):
    """`MlpLstmPolicy` with layer normalization in the LSTM."""

    normalizes = True


class CnnLstmPolicy(LstmPolicy):
    """One convolutional network and an LSTM of 256 units, shared by policy and critic."""


class CnnLnLstmPolicy(CnnLstmPolicy):
    """`CnnLstmPolicy` with layer normalization in the LSTM."""

    normalizes = True


POLICIES: dict[str, type[ActorCriticPolicy]] = {
    policy.__name__: policy
    for policy in (MlpPolicy, CnnPolicy, MlpLstmPolicy, CnnLstmPolicy, MlpLnLstmPolicy, CnnLnLstmPolicy)
}


def register_policy(name: str, policy: type[ActorCriticPolicy]) -> None:
    """Register a policy class under a name, by which `PPO2` then finds it.

    Raises:
        ValueError: It is not a policy class, or the name belongs to another class.
    """
    if not (isinstance(policy, type) and issubclass(policy, ActorCriticPolicy)):
        raise ValueError(f"policy: must be a subclass of FeedForwardPolicy or LstmPolicy, got {policy!r}.")
    if POLICIES.get(name, policy) is not policy:
        raise ValueError(f"name: {name!r} must be a new one, it belongs to {POLICIES[name]!r}; choose another name.")
    POLICIES[name] = policy


def get_policy_from_name(base_policy_type: type[BasePolicy], name: str) -> type[ActorCriticPolicy]:
    """Return the policy class that is registered under a name.

    Raises:
        ValueError: There is none, or it is not a subclass of `base_policy_type`.
    """
    policy = policy_class(name)
    if not issubclass(policy, base_policy_type):
        raise ValueError(f"policy: must be a subclass of {base_policy_type.__name__}, got {policy.__name__}.")
    return policy


def policy_class(policy: str | type[ActorCriticPolicy]) -> type[ActorCriticPolicy]:
    """Return the policy class for a name or a class.

    Raises:
        ValueError: There is no such policy.
    """
    if isinstance(policy, str) and policy in POLICIES:
        return POLICIES[policy]
    if isinstance(policy, type) and issubclass(policy, ActorCriticPolicy):
        return policy
    raise ValueError(f"policy: must be {', '.join(POLICIES)}, by name or class; got {policy!r}.")


def make_policy(
    policy: str | type[ActorCriticPolicy],
    policy_kwargs: dict[str, Any] | None,
    observation_space: Space[Any] | None = None,
    action_space: Space[Any] | None = None,
) -> ActorCriticPolicy:
    """Build a policy description from a name or class and its arguments.

    Raises:
        ValueError: An argument is unknown or invalid.
    """
    made: Callable[..., ActorCriticPolicy] = policy_class(policy)
    return made(None, observation_space, action_space, 1, 1, None, reuse=False, **(policy_kwargs or {}))


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
        policy, value = (_sizes(separate.get(name, [])) for name in ("pi", "vf"))
        return Layers(_sizes(parts), policy, value, _sizes(after))
    except TypeError as error:
        raise ValueError(f"net_arch: {rule}; got {net_arch!r}.") from error


def _sizes(values: Any) -> Sizes:
    if not isinstance(values, (list, tuple)) or not all(map(_is_size, values)):
        raise TypeError
    return tuple(map(int, values))


def _is_size(value: Any) -> bool:
    return isinstance(value, (int, np.integer)) and not isinstance(value, bool) and bool(value > 0)


def plain_kwargs(policy_kwargs: dict[str, Any] | None) -> dict[str, Any]:
    """Return a policy's arguments as plain values: a known activation as its name, a custom one as a placeholder."""
    given = dict(policy_kwargs or {})
    act_fun = {"act_fun": activation_name(given.pop("act_fun"))} if "act_fun" in given else {}
    if given.get("cnn_extractor") is nature_cnn:
        del given["cnn_extractor"]
    return {**{name: _plain(value) for name, value in given.items()}, **act_fun}


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _plain(part) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(part) for part in value]
    return value.item() if isinstance(value, np.generic) else value
