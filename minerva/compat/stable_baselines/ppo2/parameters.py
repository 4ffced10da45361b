"""The weights of a model under the names and in the shapes that stable-baselines gives them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from minerva.compat.stable_baselines.common.policies import ActorCriticPolicy
from minerva.networks.cnn import NatureCNN
from minerva.networks.recurrent import LSTMCore
from minerva.trainers.ppo.agent import Agent

Arrays = dict[str, NDArray[Any]]
Convert = Callable[[Tensor], Tensor]


class Parameter(NamedTuple):
    """A weight's name and form, as `PPO2.get_parameter_list` returns it."""

    name: str
    shape: tuple[int, ...]
    dtype: str = "float32"


class Weight(NamedTuple):
    """A weight of the networks, and how it is converted to stable-baselines' form and back."""

    name: str
    tensor: Tensor
    to_old: Convert
    from_old: Convert


class UnusedHead(NamedTuple):
    """The layer "q", which stable-baselines builds and saves, and which nothing is computed with."""

    w: Tensor  # [features of the critic, outputs of the policy]
    b: Tensor


def unused_head(agent: Agent) -> UnusedHead:
    """Build the layer "q" of an agent, filled with zeros."""
    layers = [m for m in agent.policy.value_head.modules() if isinstance(m, nn.Linear)]
    size = agent.policy.head.size
    return UnusedHead(torch.zeros(layers[-1].in_features, size), torch.zeros(size))


def named_weights(agent: Agent, policy: ActorCriticPolicy, unused: UnusedHead) -> list[Weight]:
    """List the weights in the order in which stable-baselines creates them.

    Weights that it does not know, such as those of an activation function, have Minerva's names after "model/".
    """
    network = agent.policy
    shared, policy_sizes, value_sizes, after = policy.layers
    weights: list[Weight] = []
    trunk = "shared_fc" if policy.named_by_net_arch or not policy.recurrent else "pi_fc"
    encoder, other = network.policy_encoder, network.value_encoder
    if isinstance(encoder, NatureCNN):
        weights += _convolutions(encoder)
    elif policy.shares:
        weights += _layers(encoder, [f"{trunk}{i}" for i in range(len(shared))])
    if network.policy_core is not None:
        weights += _lstm(network.policy_core)
    own, critics = (network.policy_head, network.value_head) if policy.shares else (encoder, other)
    joint = [f"shared_fc{len(shared) + 1 + i}" for i in range(len(after))]
    own_layers = _layers(own, joint + [f"pi_fc{i}" for i in range(len(policy_sizes))])
    critic_layers = _layers(critics, joint + [f"vf_fc{i}" for i in range(len(value_sizes))])
    start = 2 * len(joint)
    weights += own_layers[:start]
    for i in range(start, max(len(own_layers), len(critic_layers)), 2):  # by turns
        weights += own_layers[i : i + 2] + critic_layers[i : i + 2]
    weights += _linear("vf", _last(network.value_head)) + _linear("pi", _last(network.policy_head))
    if isinstance(network.policy_logstd, nn.Parameter):
        weights.append(_as_it_is("pi/logstd", network.policy_logstd))
    weights += [_as_it_is("q/w", unused.w), _as_it_is("q/b", unused.b)]
    known = {id(weight.tensor) for weight in weights}
    for name, parameter in agent.named_parameters():
        if id(parameter) not in known:
            weights.append(_as_it_is(name.replace(".", "/"), parameter))
    return [weight._replace(name=f"model/{weight.name}:0") for weight in weights]


def to_arrays(weights: list[Weight]) -> Arrays:
    """Return copies of weights as NumPy arrays by name."""
    with torch.no_grad():
        return {weight.name: weight.to_old(weight.tensor).cpu().numpy().copy() for weight in weights}


def write_weights(weights: list[Weight], arrays: Mapping[str, Any], exact_match: bool) -> None:
    """Replace weights by arrays. Nothing is replaced if one of them does not fit.

    Args:
        weights: The model's.
        arrays: By name.
        exact_match: Whether all weights must be given.

    Raises:
        KeyError: A name is not one of the model's.
        RuntimeError: A weight is missing, and `exact_match` is set.
        ValueError: An array has another shape than its weight, or holds no finite numbers.
    """
    wanted = {weight.name: weight for weight in weights}
    for name in arrays:
        if name not in wanted:
            raise KeyError(f"{name}: is not a parameter of this model, which has {', '.join(wanted)}.")
    missing = [name for name in wanted if name not in arrays]
    if exact_match and missing:
        raise RuntimeError(
            f"parameters: must hold all of the model's, but {', '.join(missing)} are missing; add them, or pass "
            "exact_match=False to keep the model's."
        )
    new = [(wanted[name], _checked(wanted[name], array)) for name, array in arrays.items()]
    with torch.no_grad():
        for weight, value in new:
            weight.tensor.copy_(weight.from_old(value).reshape(weight.tensor.shape))


def _checked(weight: Weight, array: Any) -> Tensor:
    shape = tuple(weight.to_old(weight.tensor).shape)
    try:
        value = array.float() if isinstance(array, Tensor) else torch.from_numpy(np.array(array, dtype=np.float32))
    except (TypeError, ValueError) as error:
        raise ValueError(f"{weight.name}: must be an array of numbers, got {type(array).__name__}.") from error
    if tuple(value.shape) != shape:
        raise ValueError(f"{weight.name}: must have the shape {shape}, got {tuple(value.shape)}.")
    if not value.isfinite().all():
        raise ValueError(f"{weight.name}: must hold finite numbers, got {value[~value.isfinite()][0].item()}.")
    return value


# Kinds of layers


def _as_it_is(name: str, tensor: Tensor) -> Weight:
    return Weight(name, tensor, lambda x: x, lambda x: x)


def _transposed(name: str, tensor: Tensor) -> Weight:
    return Weight(name, tensor, lambda x: x.T, lambda x: x.T)


def _linear(name: str, layer: nn.Linear) -> list[Weight]:
    return [_transposed(f"{name}/w", layer.weight), _as_it_is(f"{name}/b", layer.bias)]


def _layers(network: nn.Module, names: list[str]) -> list[Weight]:
    """Return the weights of the first linear layers of a network, one layer per name."""
    linear = (module for module in network.modules() if isinstance(module, nn.Linear))
    return [weight for name, layer in zip(names, linear, strict=False) for weight in _linear(name, layer)]


def _last(network: nn.Module) -> nn.Linear:
    return [module for module in network.modules() if isinstance(module, nn.Linear)][-1]


def _convolutions(encoder: NatureCNN) -> Iterator[Weight]:
    """Yield the weights of the convolutions, ``[height, width, in, out]``, and of the layer after them.

    TensorFlow flattens images by height, width and channel; torch by channel, height and width.
    """
    channels = 1
    convolutions = [layer for layer in encoder.layers if isinstance(layer, nn.Conv2d)]
    for i, layer in enumerate(convolutions, start=1):
        assert layer.bias is not None
        yield Weight(f"c{i}/w", layer.weight, lambda x: x.permute(2, 3, 1, 0), lambda x: x.permute(3, 2, 0, 1))
        yield Weight(f"c{i}/b", layer.bias, lambda x: x.view(1, -1, 1, 1), lambda x: x.flatten())
        channels = layer.out_channels
    linear = _last(encoder)

    def to_old(x: Tensor) -> Tensor:  # [out, C H W] to [H W C, out]
        return x.reshape(len(x), channels, -1).transpose(1, 2).flatten(1).T

    def from_old(x: Tensor) -> Tensor:
        return x.T.reshape(x.shape[1], -1, channels).transpose(1, 2).flatten(1)

    yield Weight("fc1/w", linear.weight, to_old, from_old)
    yield _as_it_is("fc1/b", linear.bias)


def _lstm(core: LSTMCore) -> Iterator[Weight]:
    """Yield the weights of the LSTM, with the gates in the order input, forget, output, candidate."""
    for name, tensor in (("wx", core.weight_x), ("wh", core.weight_h)):
        yield Weight(f"lstm1/{name}", tensor, lambda x: _swapped(x).T, lambda x: _swapped(x.T))
    yield Weight("lstm1/b", core.bias, _swapped, _swapped)
    if not isinstance(core.norm_x, nn.LayerNorm):
        return
    for part, norm in (("x", core.norm_x), ("h", core.norm_h), ("c", core.norm_c)):
        assert isinstance(norm, nn.LayerNorm)
        convert = _as_it_is("", norm.weight).to_old if part == "c" else _swapped
        yield Weight(f"lstm1/g{part}", norm.weight, convert, convert)
        yield Weight(f"lstm1/b{part}", norm.bias, convert, convert)


def _swapped(x: Tensor) -> Tensor:
    """Exchange the last two gates of four."""
    i, f, candidate, output = x.chunk(4)
    return torch.cat([i, f, output, candidate])
