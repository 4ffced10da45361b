from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from minerva.networks.mlp import HiddenLayers, orthogonal


def gram(weight: torch.Tensor) -> torch.Tensor:
    # The shorter side is orthonormal up to the gain.
    rows, columns = weight.shape
    return weight @ weight.T if rows <= columns else weight.T @ weight


@pytest.mark.parametrize(("inputs", "outputs"), [(8, 8), (3, 16), (16, 3)])
@pytest.mark.parametrize("gain", [math.sqrt(2), 0.01, 1.0])
def test_orthogonal_weights_of_the_gain_and_zero_bias(inputs: int, outputs: int, gain: float) -> None:
    layer = orthogonal(nn.Linear(inputs, outputs), gain)
    expected = gain**2 * torch.eye(min(inputs, outputs))
    torch.testing.assert_close(gram(layer.weight.detach()), expected, rtol=1e-4, atol=1e-5 * gain)
    assert torch.equal(layer.bias, torch.zeros(outputs))


def test_layers_of_a_network() -> None:
    network = HiddenLayers(5, (7, 6))
    assert [type(layer) for layer in network] == [nn.Linear, nn.Tanh] * 2
    linear = [layer for layer in network if isinstance(layer, nn.Linear)]
    assert [(layer.in_features, layer.out_features) for layer in linear] == [(5, 7), (7, 6)]
    for layer in linear:
        weight = gram(layer.weight.detach())
        torch.testing.assert_close(weight, 2 * torch.eye(len(weight)), rtol=1e-4, atol=1e-5)
        assert not layer.bias.any()


def test_forward_is_what_it_says() -> None:
    network = HiddenLayers(4, (5, 3))
    first, _, second, _ = network
    assert isinstance(first, nn.Linear) and isinstance(second, nn.Linear)
    x = torch.randn(2, 6, 4)
    hidden = torch.tanh(x @ first.weight.T + first.bias)
    torch.testing.assert_close(network(x), torch.tanh(hidden @ second.weight.T + second.bias))


def test_hidden_layers_say_how_wide_they_end() -> None:
    hidden = HiddenLayers(4, (6, 5), nn.ReLU)
    assert hidden.out_dim == 5 and hidden(torch.zeros(2, 4)).shape == (2, 5)
    assert [type(layer) for layer in hidden] == [nn.Linear, nn.ReLU] * 2
    assert [type(layer) for layer in HiddenLayers(4, (6,))] == [nn.Linear, nn.Tanh]
