from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from minerva.networks.layer_norm_mlp import LayerNormMLP


@pytest.mark.parametrize(
    ("sizes", "activate_final", "kinds"),
    [
        ((5,), False, [nn.Linear, nn.LayerNorm, nn.Tanh]),
        ((5,), True, [nn.Linear, nn.LayerNorm, nn.Tanh]),
        ((5, 4), False, [nn.Linear, nn.LayerNorm, nn.Tanh, nn.Linear]),
        ((5, 4), True, [nn.Linear, nn.LayerNorm, nn.Tanh, nn.Linear, nn.ELU]),
        ((5, 4, 3), False, [nn.Linear, nn.LayerNorm, nn.Tanh, nn.Linear, nn.ELU, nn.Linear]),
        ((5, 4, 3), True, [nn.Linear, nn.LayerNorm, nn.Tanh, nn.Linear, nn.ELU, nn.Linear, nn.ELU]),
    ],
)
def test_layers(sizes: tuple[int, ...], activate_final: bool, kinds: list[type[nn.Module]]) -> None:
    network = LayerNormMLP(7, sizes, activate_final)
    assert [type(layer) for layer in network] == kinds
    linear = [layer for layer in network if isinstance(layer, nn.Linear)]
    assert [(layer.in_features, layer.out_features) for layer in linear] == list(zip((7, *sizes), sizes, strict=False))
    assert network(torch.zeros(2, 7)).shape == (2, sizes[-1])


def test_forward_by_hand() -> None:
    torch.manual_seed(0)
    network = LayerNormMLP(3, (4, 2), activate_final=True)
    first, norm, _, second, _ = network
    assert isinstance(first, nn.Linear) and isinstance(norm, nn.LayerNorm) and isinstance(second, nn.Linear)
    with torch.no_grad():
        norm.weight.add_(0.5)
        norm.bias.add_(0.25)
        second.bias.copy_(torch.tensor([-3.0, 3.0]))  # one side of the ELU each
    x = torch.randn(6, 3)
    y = (x @ first.weight.T + first.bias).detach().double().numpy()
    y = (y - y.mean(1, keepdims=True)) / np.sqrt(y.var(1, keepdims=True) + 1e-5) * 1.5 + 0.25
    y = np.tanh(y) @ second.weight.detach().double().numpy().T + [-3.0, 3.0]
    expected = np.where(y > 0, y, np.exp(y) - 1)
    assert (y[:, 0] < 0).all() and (y[:, 1] > 0).all()
    np.testing.assert_allclose(network(x).detach().numpy(), expected, rtol=1e-5, atol=1e-6)


def test_an_empty_layer_list_is_an_error() -> None:
    with pytest.raises(ValueError, match=r"^layer_sizes: must name at least one layer"):
        LayerNormMLP(3, ())
