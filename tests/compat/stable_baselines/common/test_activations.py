from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from minerva.compat.stable_baselines.common.activations import activation_of
from minerva.compat.stable_baselines.common.policies import plain_kwargs


@pytest.mark.parametrize("given", [torch.tanh, nn.Tanh, "tanh", nn.functional.tanh])
def test_forms_of_an_activation(given: Any) -> None:
    assert activation_of(given) is nn.Tanh
    assert plain_kwargs({"act_fun": given, "n_lstm": 3}) == {"act_fun": "tanh", "n_lstm": 3}


def test_custom_activations() -> None:
    assert torch.equal(activation_of(lambda x: x + 1)()(torch.zeros(2)), torch.ones(2))
    assert activation_of(nn.Hardtanh) is nn.Hardtanh
    assert plain_kwargs({"act_fun": nn.Hardtanh}) == {"act_fun": "function"}


@pytest.mark.parametrize(("name", "wanted"), [("relu", nn.ReLU), ("tanh", nn.Tanh), ("swish", nn.SiLU)])
def test_activations_of_tensorflow(name: str, wanted: Any) -> None:
    def function(x: Any) -> Any:
        raise AssertionError("is not called")

    function.__name__, function.__module__ = name, "tensorflow.python.ops.nn_ops"
    assert activation_of(function) is wanted
    function.__name__ = "leaky_relu"  # its slope is 0.2, and torch's 0.01
    assert activation_of(function)()(torch.tensor(-1.0)) == torch.tensor(-0.2)
    assert plain_kwargs({"act_fun": function}) == {"act_fun": "tf.leaky_relu"}
