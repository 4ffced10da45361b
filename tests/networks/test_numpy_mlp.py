from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from minerva.networks.layer_norm_mlp import LayerNormMLP
from minerva.networks.mlp import HiddenLayers
from minerva.networks.numpy_mlp import NumpyMLP


@pytest.mark.parametrize("rows", [1, 8, 64])
@pytest.mark.parametrize("layers", [(64, 64), (32,), (256, 128, 64)])
def test_equals_the_module(rows: int, layers: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    network = nn.Sequential(*HiddenLayers(17, layers), nn.Linear(layers[-1], 6))
    x = torch.randn(rows, 17)
    with torch.no_grad():
        np.testing.assert_allclose(NumpyMLP(network)(x.numpy()), network(x).numpy(), rtol=1e-5, atol=1e-6)


@pytest.mark.formula(
    "minerva.networks.numpy_mlp",
    r"\sigma^2 = \frac{1}{H} \sum_{i=1}^{H} (x_i - \bar{x})^2",
    r"y_i = \frac{x_i - \bar{x}}{\sqrt{\sigma^2 + \epsilon}}",
    r"\mathrm{ELU}(x) = \max\left( x,\; e^{\min(x, 0)} - 1 \right)",
)
@pytest.mark.parametrize("rows", [1, 8, 64])
@pytest.mark.parametrize("layers", [(64, 64), (32,), (256, 128, 64)])
def test_equals_a_network_with_layer_norm_and_elu(rows: int, layers: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    network = LayerNormMLP(17, layers, activate_final=True)
    with torch.no_grad():
        for parameter in network.parameters():  # the norm's own scale and shift must matter
            parameter.add_(torch.randn(parameter.shape), alpha=0.1)
        x = 3 * torch.randn(rows, 17) + 1
        kept = x.clone()
        found = NumpyMLP(network)(x.numpy())
        assert found.dtype == np.float32 and torch.equal(x, kept)
        np.testing.assert_allclose(found, network(x).numpy(), rtol=1e-5, atol=5e-6)


@pytest.mark.formula("minerva.networks.numpy_mlp", r"y_i = \frac{x_i - \bar{x}}{\sqrt{\sigma^2 + \epsilon}}")
def test_layer_norm_of_small_numbers() -> None:
    # Where the constant under the root outweighs the variance.
    network = nn.Sequential(nn.LayerNorm(8))
    x = 1e-3 * torch.randn(4, 8, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        np.testing.assert_allclose(NumpyMLP(network)(x.numpy()), network(x).numpy(), rtol=1e-4, atol=1e-6)


def test_sees_what_is_written_into_the_module_later_and_leaves_its_input_alone() -> None:
    network, other = HiddenLayers(3, (8, 2)), HiddenLayers(3, (8, 2))
    fast = NumpyMLP(network)
    x = np.ones((4, 3), dtype=np.float32)
    network.load_state_dict(other.state_dict())
    with torch.no_grad():
        np.testing.assert_allclose(fast(x), other(torch.from_numpy(x)).numpy(), rtol=1e-5)
        optimizer = torch.optim.Adam(network.parameters(), lr=0.1, fused=True)
    network(torch.from_numpy(x)).sum().backward()
    optimizer.step()
    with torch.no_grad():
        np.testing.assert_allclose(fast(x), network(torch.from_numpy(x)).numpy(), rtol=1e-5)
    assert (x == 1).all()


def test_equals_a_network_with_relu() -> None:
    torch.manual_seed(0)
    network, x = nn.Sequential(nn.Linear(5, 9), nn.ReLU(), nn.Linear(9, 2)), torch.randn(6, 5)
    with torch.no_grad():
        np.testing.assert_allclose(NumpyMLP(network)(x.numpy()), network(x).numpy(), rtol=1e-5, atol=1e-6)


def test_says_what_it_runs_before_it_refuses() -> None:
    layers: list[nn.Module] = [nn.Linear(2, 2), nn.LayerNorm(2), nn.Tanh(), nn.ReLU(), nn.ELU(), nn.Identity()]
    assert NumpyMLP.runs(nn.Sequential(*layers))
    for other in (nn.GELU(), nn.ELU(alpha=0.5)):
        assert not NumpyMLP.runs(nn.Sequential(*layers, other))


def test_refuses_other_layers() -> None:
    with pytest.raises(ValueError, match="Linear, LayerNorm, Tanh, ReLU, ELU, Identity layers, got GELU"):
        NumpyMLP(nn.Sequential(nn.Linear(2, 2), nn.GELU()))
    with pytest.raises(ValueError, match="got ELU"):
        NumpyMLP(nn.Sequential(nn.Linear(2, 2), nn.ELU(alpha=0.5)))
