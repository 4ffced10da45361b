from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from minerva.networks.action_critic import Critic, SmallInitLinear, bound
from tests.networks.samples import move_parameters


@pytest.mark.parametrize("std", [0.01, 0.5])
def test_a_small_start(std: float) -> None:
    torch.manual_seed(0)
    layer = SmallInitLinear(300, 200, std)
    weight = layer.weight.detach().double() / std
    assert isinstance(layer, nn.Linear) and weight.shape == (200, 300) and not layer.bias.any()
    # A standard normal cut at 2: nothing outside, much of it near the cut, and this variance.
    density, inside = math.exp(-2) / math.sqrt(2 * math.pi), math.erf(2 / math.sqrt(2))
    assert 1.99 < weight.abs().max().item() <= 2.0 + 1e-6
    assert weight.mean().item() == pytest.approx(0, abs=0.02)
    assert weight.var().item() == pytest.approx(1 - 4 * density / inside, rel=0.02)


def test_the_small_start_is_a_hundredth_by_default() -> None:
    torch.manual_seed(0)
    assert SmallInitLinear(500, 100).weight.std().item() == pytest.approx(0.0088, rel=0.02)


def make_critic(low: Any = (-1.0, -0.5), high: Any = (0.5, 2.0), layers: tuple[int, ...] = (6, 4)) -> Critic:
    torch.manual_seed(0)
    critic = Critic(3, 2, layers, low, high)
    move_parameters(critic, 0.3)
    return critic


def test_layers_and_initialization() -> None:
    torch.manual_seed(0)
    critic = Critic(11, 5, (256, 128), -1.0, 1.0)
    kinds = [nn.Linear, nn.LayerNorm, nn.Tanh, nn.Linear, nn.ELU]
    assert [type(layer) for layer in critic.encoder] == kinds
    first, norm, _, second, _ = critic.encoder
    assert isinstance(first, nn.Linear) and isinstance(second, nn.Linear) and isinstance(norm, nn.LayerNorm)
    assert first.weight.shape == (256, 16) and second.weight.shape == (128, 256)
    assert isinstance(critic.head, SmallInitLinear) and critic.head.weight.shape == (1, 128)
    assert critic.head.weight.abs().max() <= 0.02 and not critic.head.bias.any()
    # PyTorch's own start elsewhere: uniform up to 1 / sqrt(inputs), biases too.
    for layer in (first, second):
        limit = 1 / math.sqrt(layer.in_features)
        for tensor in (layer.weight, layer.bias):
            assert 0.95 * limit < tensor.abs().max().item() <= limit
            assert tensor.std().item() == pytest.approx(limit / math.sqrt(3), rel=0.12)
    assert (norm.weight == 1).all() and not norm.bias.any()
    assert {name for name, _ in critic.named_buffers()} == {"action_low", "action_high"}


def test_forward_by_hand() -> None:
    critic = make_critic()
    obs, actions = torch.randn(7, 3), 3 * torch.randn(7, 2)
    w = {name: parameter.detach().double().numpy() for name, parameter in critic.named_parameters()}
    x = np.concatenate([obs.double().numpy(), np.clip(actions.double().numpy(), [-1.0, -0.5], [0.5, 2.0])], axis=1)
    x = x @ w["encoder.0.weight"].T + w["encoder.0.bias"]
    x = (x - x.mean(1, keepdims=True)) / np.sqrt(x.var(1, keepdims=True) + 1e-5)
    x = np.tanh(x * w["encoder.1.weight"] + w["encoder.1.bias"]) @ w["encoder.3.weight"].T + w["encoder.3.bias"]
    assert (x > 0).any() and (x < 0).any()
    x = np.where(x > 0, x, np.exp(x) - 1) @ w["head.weight"].T + w["head.bias"]
    found = critic(obs, actions)
    assert found.shape == (7, 1)
    np.testing.assert_allclose(found.detach().numpy(), x, rtol=1e-5, atol=1e-6)


def test_actions_are_clipped_to_the_bounds_of_each_dimension() -> None:
    critic = make_critic()
    obs = torch.randn(3).expand(4, 3)
    outside = torch.tensor([[-5.0, 0.0], [5.0, 0.0], [0.0, -5.0], [0.0, 5.0]])
    edges = torch.tensor([[-1.0, 0.0], [0.5, 0.0], [0.0, -0.5], [0.0, 2.0]])
    assert torch.equal(critic(obs, outside), critic(obs, edges))
    assert len({round(value, 6) for value in critic(obs, edges).flatten().tolist()}) == 4
    assert not torch.equal(critic(obs, edges), critic(obs, edges * 0.9))


def test_any_leading_shape() -> None:
    critic = make_critic()
    obs, actions = torch.randn(2, 5, 4, 3), torch.randn(2, 5, 4, 2)
    found = critic(obs, actions)
    assert found.shape == (2, 5, 4, 1)
    flat = critic(obs.reshape(-1, 3), actions.reshape(-1, 2))
    torch.testing.assert_close(found.reshape(-1, 1), flat)


@pytest.mark.parametrize("value", [0.5, [0.5, 0.5], np.array([0.5, 0.5]), torch.tensor(0.5), np.float64(0.5)])
def test_a_bound_of_a_number_or_an_array(value: Any) -> None:
    found = bound(value, 2)
    assert found.dtype == torch.float32 and found.tolist() == [0.5, 0.5]
    found[0] = 7  # memory of its own, an entry each
    assert found.tolist() == [7.0, 0.5]
    assert bound(value, 2).tolist() == [0.5, 0.5]


def test_bounds_may_be_infinite() -> None:
    critic = make_critic(-math.inf, math.inf)
    obs = torch.randn(1, 3)
    assert not torch.equal(critic(obs, torch.full((1, 2), 5.0)), critic(obs, torch.full((1, 2), 50.0)))
