"""Activation functions of policies: torch's and TensorFlow's, by their names, and custom ones."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import nn

Activation = Callable[[], nn.Module]

_ACTIVATIONS: dict[str, tuple[Activation, tuple[Any, ...]]] = {
    "tanh": (nn.Tanh, (torch.tanh, nn.functional.tanh)),
    "relu": (nn.ReLU, (torch.relu, nn.functional.relu)),
    "relu6": (nn.ReLU6, (nn.functional.relu6,)),
    "elu": (nn.ELU, (nn.functional.elu,)),
    "selu": (nn.SELU, (torch.selu, nn.functional.selu)),
    "leaky_relu": (nn.LeakyReLU, (nn.functional.leaky_relu,)),
    "tf.leaky_relu": (partial(nn.LeakyReLU, 0.2), ()),
    "sigmoid": (nn.Sigmoid, (torch.sigmoid, nn.functional.sigmoid)),
    "softplus": (nn.Softplus, (nn.functional.softplus,)),
    "softsign": (nn.Softsign, (nn.functional.softsign,)),
    "swish": (nn.SiLU, (nn.functional.silu,)),
}
"""By name: the module, and torch's functions. Those of TensorFlow with another slope have names of their own."""
_TENSORFLOW = ("tensorflow", "minerva.compat.tensorflow")
CUSTOM_FUNCTION = "function"
"""Placeholder in a file for a custom activation function."""


class FunctionModule(nn.Module):
    """A torch module that applies a plain function, such as an activation.

    Args:
        function: Maps a tensor to one of the same shape.
    """

    def __init__(self, function: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self._function = function

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Apply the function."""
        return self._function(x)


def activation_of(act_fun: Any) -> Activation:
    """Return the constructor of an activation module.

    Raises:
        ValueError: `act_fun` is neither a known name nor a function.
    """
    name = activation_name(act_fun)
    if name in _ACTIVATIONS:
        return _ACTIVATIONS[name][0]
    if isinstance(act_fun, type) and issubclass(act_fun, nn.Module):
        return act_fun
    if callable(act_fun):
        return lambda: FunctionModule(act_fun)
    raise ValueError(
        f"act_fun: must be {', '.join(_ACTIVATIONS)}, or a function such as torch.tanh; got {act_fun!r}. If the "
        "file was saved with a custom function, pass it again: PPO2.load(path, policy_kwargs=dict(act_fun=...)), or "
        "pass the class that names it: PPO2.load(path, policy=...)."
    )


def activation_name(act_fun: Any) -> str:
    """Return the name of a known activation, or a placeholder for a custom one."""
    for name, (module, functions) in _ACTIVATIONS.items():
        if act_fun is module or act_fun in functions or (isinstance(act_fun, str) and act_fun == name):
            return name
    if str(getattr(act_fun, "__module__", "")).startswith(_TENSORFLOW):
        name = getattr(act_fun, "__name__", "")
        return f"tf.{name}" if f"tf.{name}" in _ACTIVATIONS else name if name in _ACTIVATIONS else CUSTOM_FUNCTION
    return CUSTOM_FUNCTION
