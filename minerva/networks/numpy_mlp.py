"""Small networks on NumPy: for a few observations at a time, torch's dispatch costs more than the work itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from minerva.networks.recurrent import LSTMCore

Array = NDArray[np.float32]


class NumpyMLP:
    """Run an MLP on NumPy, on views of its weights: a `nn.Sequential` of Linear, LayerNorm, activations and Identity.

    The views share the module's storage, so they see what an optimizer or `load_state_dict` writes into it; the module
    must stay on the CPU. Results agree with the module's to float32 rounding.

    Args:
        network: The module, on the CPU.
    """

    def __init__(self, network: nn.Module) -> None:
        self._layers = [_layer(module) for module in _modules(network)]

    @staticmethod
    def runs(network: nn.Module) -> bool:
        """Return whether all layers of a network are among these."""
        return all(_runs(module) for module in _modules(network))

    def __call__(self, x: Array) -> Array:
        """Map ``[B, in]`` to ``[B, out]``."""
        for layer in self._layers:
            x = layer(x)
        return x


class NumpyLSTM:
    """Run an LSTM core on NumPy: `LSTMCore.step` on views of the core's own weights.

    Args:
        core: The module, on the CPU.
    """

    def __init__(self, core: LSTMCore) -> None:
        units = core.out_dim
        self._units = units
        self._weight_x, self._weight_h = (w.detach().numpy().T for w in (core.weight_x, core.weight_h))
        self._bias = core.bias.detach().numpy()
        self._norm_x, self._norm_h, self._norm_c = map(_layer, (core.norm_x, core.norm_h, core.norm_c))
        # One call of tanh for all gates: sigmoid(z) = (tanh(z / 2) + 1) / 2, and nothing that could overflow.
        self._scale = np.full(4 * units, 0.5, dtype=np.float32)
        self._scale[2 * units : 3 * units] = 1  # the candidate is a tanh as it is
        self._shift = 1 - self._scale

    def __call__(self, x: Array, state: Array) -> tuple[Array, Array]:
        """Compute one step: from inputs ``[n, F]`` and states ``[n, S]`` to outputs ``[n, units]`` and states."""
        units = self._units
        gates = self._norm_x(x @ self._weight_x)
        gates += self._norm_h(state[:, :units] @ self._weight_h)
        gates += self._bias
        gates *= self._scale
        np.tanh(gates, out=gates)
        gates *= self._scale
        # LaTeX: \sigma(z) = \tfrac12 \tanh\left( \tfrac12 z \right) + \tfrac12
        gates += self._shift
        after = np.empty_like(state)
        h, c = after[:, :units], after[:, units:]
        np.multiply(gates[:, units : 2 * units], state[:, units:], out=c)
        # LaTeX: c_t = \sigma(f)\, c_{t-1} + \sigma(i) \tanh(g)
        c += gates[:, :units] * gates[:, 2 * units : 3 * units]
        # LaTeX: h_t = \sigma(o) \tanh(c_t)
        h[:] = gates[:, 3 * units :] * np.tanh(self._norm_c(c))
        return h, after


def noise_source(
    kind: Literal["normal", "uniform"], action_dim: int, generator: torch.Generator
) -> Callable[[int], Array]:
    """Return a function that draws the noise to sample n actions with, ``[n, A]``; its next call overwrites the result.

    It draws what `torch.randn` or `torch.rand` would (of a CPU generator), but into storage that is used again.
    """
    fill = torch.Tensor.normal_ if kind == "normal" else torch.Tensor.uniform_
    noise = torch.empty(0, action_dim)
    view: Array = noise.numpy()

    def draw(count: int) -> Array:
        nonlocal noise, view
        if len(view) != count:
            noise = torch.empty(count, action_dim)
            view = noise.numpy()
        fill(noise, generator=generator)
        return view

    return draw


def _runs(module: nn.Module) -> bool:
    # Subclasses may compute something else, and a layer may lack what the arrays are views of.
    if type(module) in (nn.Linear, nn.LayerNorm):
        return isinstance(module.weight, nn.Parameter) and isinstance(module.bias, nn.Parameter)
    return type(module) in _LAYERS and getattr(module, "alpha", 1) == 1


def _layer(module: nn.Module) -> Callable[[Array], Array]:
    if not _runs(module):
        names = ", ".join(kind.__name__ for kind in _LAYERS)
        raise ValueError(f"network: must consist of {names} layers, got {type(module).__name__}.")
    return _LAYERS[type(module)](module)


def _modules(network: nn.Module) -> list[nn.Module]:
    return list(network) if isinstance(network, nn.Sequential) else [network]


def _linear(module: nn.Linear) -> Callable[[Array], Array]:
    weight, bias = module.weight.detach().numpy().T, module.bias.detach().numpy()

    def linear(x: Array) -> Array:
        y: Array = x.dot(weight)
        y += bias
        return y

    return linear


def _layer_norm(module: nn.LayerNorm) -> Callable[[Array], Array]:
    weight, bias, eps = module.weight.detach().numpy(), module.bias.detach().numpy(), np.float32(module.eps)
    share = np.float32(1 / module.normalized_shape[0])

    def layer_norm(x: Array) -> Array:
        y: Array = x - x.sum(-1, keepdims=True) * share
        # LaTeX[Ba2016]: \sigma^2 = \frac{1}{H} \sum_{i=1}^{H} (x_i - \bar{x})^2
        variance = np.einsum("bi,bi->b", y, y)[:, None] * share
        # LaTeX: y_i = \frac{x_i - \bar{x}}{\sqrt{\sigma^2 + \epsilon}}
        y *= 1 / np.sqrt(variance + eps)
        y *= weight
        y += bias
        return y

    return layer_norm


def _elu(x: Array) -> Array:
    below = np.minimum(x, 0)
    np.exp(below, out=below)  # several times as fast as expm1, and as exact where 1 is taken off a float32
    below -= 1
    # LaTeX: \mathrm{ELU}(x) = \max\left( x,\; e^{\min(x, 0)} - 1 \right)
    return np.maximum(x, below)


_LAYERS: dict[type[nn.Module], Callable[[Any], Callable[[Array], Array]]] = {
    nn.Linear: _linear,
    nn.LayerNorm: _layer_norm,
    nn.Tanh: lambda _: np.tanh,
    nn.ReLU: lambda _: lambda x: np.maximum(x, 0),
    nn.ELU: lambda _: _elu,
    nn.Identity: lambda _: lambda x: x,
}
