"""A stand-in for TensorFlow with what scripts take from it for stable-baselines' policies: activation functions."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

__version__ = "1.15.0"


def _activation(name: str, torch_name: str) -> Callable[[Any], Any]:
    def apply(x: Any) -> Any:
        import torch

        return getattr(torch.nn.functional, torch_name)(x)

    apply.__name__ = apply.__qualname__ = name
    apply.__doc__ = f"Apply {name} to a torch tensor."
    return apply


class _Part(SimpleNamespace):
    """A part of the stand-in; what it does not have raises an AttributeError with a sentence."""

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(_sentence(name))


def _sentence(name: str) -> str:
    return (
        f"tensorflow.{name} is not available: TensorFlow is not installed, and Minerva stands in only for activation "
        "functions (tf.nn.relu, tf.nn.tanh, …). Write this part of the script with torch."
    )


relu = _activation("relu", "relu")
tanh = _activation("tanh", "tanh")
sigmoid = _activation("sigmoid", "sigmoid")
elu = _activation("elu", "elu")
selu = _activation("selu", "selu")
leaky_relu = _activation("leaky_relu", "leaky_relu")
softplus = _activation("softplus", "softplus")
swish = _activation("swish", "silu")

nn = _Part(
    relu=relu,
    tanh=tanh,
    sigmoid=sigmoid,
    elu=elu,
    selu=selu,
    leaky_relu=leaky_relu,
    softplus=softplus,
    swish=swish,
)
logging = _Part(DEBUG=10, INFO=20, WARN=30, ERROR=40, FATAL=50, set_verbosity=lambda level: None)
compat = _Part(v1=sys.modules[__name__])


def __getattr__(name: str) -> Any:
    raise AttributeError(_sentence(name))
