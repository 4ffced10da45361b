from __future__ import annotations

import copy
from typing import Any, Literal

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import clip_grad_norm_, parameters_to_vector

from minerva.trainers.flat import FlatModule, FlatOptimizer


class Small(nn.Module):
    scale: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(3, 4)
        self.second = nn.Linear(4, 2)
        self.gain = nn.Parameter(torch.tensor(1.5))  # a scalar
        self.register_buffer("scale", torch.tensor([2.0, 3.0]))

    def forward(self, x: Tensor, shift: Tensor) -> Tensor:
        y: Tensor = self.second(torch.tanh(self.first(x))) * self.gain * self.scale + shift
        return y


# Modules


def test_the_vector_is_the_modules_memory() -> None:
    torch.manual_seed(0)
    module = Small()
    before = copy.deepcopy(module)
    parameters = list(module.parameters())
    flat = FlatModule(module)
    assert torch.equal(flat.vector, parameters_to_vector(before.parameters()))
    assert not flat.vector.requires_grad
    assert all(a is b for a, b in zip(module.parameters(), parameters, strict=True))
    x, shift = torch.randn(5, 3), torch.tensor(1.0)
    assert torch.equal(module(x, shift), before(x, shift))
    # Either way round.
    flat.vector.add_(1)
    assert torch.equal(module.first.weight, before.first.weight + 1) and module.gain.item() == 2.5
    module.load_state_dict(before.state_dict())
    assert torch.equal(flat.vector, parameters_to_vector(before.parameters()))


def test_a_call_with_another_vector() -> None:
    torch.manual_seed(0)
    flat, other = FlatModule(Small()), Small()
    kept = flat.vector.clone()
    x, shift = torch.randn(5, 3), torch.tensor([1.0, -1.0])
    vector = parameters_to_vector(other.parameters()).detach().requires_grad_()
    found = flat(vector, x, shift)
    assert torch.equal(found, other(x, shift))
    assert torch.equal(flat.vector, kept)
    (gradient,) = torch.autograd.grad(found.square().sum(), vector)
    other(x, shift).square().sum().backward()
    expected = torch.cat([p.grad.reshape(-1) for p in other.parameters() if p.grad is not None])
    torch.testing.assert_close(gradient, expected)


def test_a_copy_is_tied_to_a_vector_of_its_own() -> None:
    flat = FlatModule(Small())
    kept = flat.vector.clone()
    twin = copy.deepcopy(flat)
    twin.vector.add_(1)
    assert torch.equal(twin.vector, parameters_to_vector(twin.module.parameters()))
    assert torch.equal(twin.vector, kept + 1)
    assert torch.equal(flat.vector, kept) and torch.equal(parameters_to_vector(flat.module.parameters()), kept)


def test_one_value_for_each_parameter() -> None:
    found = FlatModule(Small()).expanded({"first": 1.0, "second.weight": 2.0, "second.bias": 3.0, "gain": 4.0})
    # The module's own parameters come before those of its parts.
    assert found.tolist() == [4.0] + [1.0] * 16 + [2.0] * 8 + [3.0] * 2
    with pytest.raises(ValueError, match="unpack"):
        FlatModule(Small()).expanded({"first": 1.0, "second": 2.0})


# The optimizer


def torch_optimizer(kind: str, groups: Any, momentum: float, eps: float) -> torch.optim.Optimizer:
    return torch.optim.Adam(groups, eps=eps) if kind == "adam" else torch.optim.SGD(groups, momentum=momentum)


@pytest.mark.formula(
    "minerva.trainers.flat",
    r"g \leftarrow g \min\left( 1,\; \frac{g_{\max}}{\lVert g \rVert_2 + 10^{-6}} \right)",
    r"m_t = \beta m_{t-1} + g_t",
    r"\theta_t = \theta_{t-1} - \lambda m_t",
    r"m_t = \beta_1 m_{t-1} + (1 - \beta_1)\, g_t",
    r"v_t = \beta_2 v_{t-1} + (1 - \beta_2)\, g_t^2",
    r"b_1 = 1 - \beta_1^t",
    r"b_2 = 1 - \beta_2^t",
    r"\Delta_t = \frac{m_t / b_1}{\sqrt{v_t / b_2} + \epsilon}",
    r"\theta_t = \theta_{t-1} - \lambda \Delta_t",
)
@pytest.mark.parametrize("kind", ["adam", "sgd"])
@pytest.mark.parametrize(("momentum", "eps"), [(0.9, 1e-5), (0.5, 1e-2)])
def test_equals_torchs_optimisers_over_many_steps(kind: Literal["adam", "sgd"], momentum: float, eps: float) -> None:
    generator = torch.Generator().manual_seed(0)
    start = torch.randn(7, generator=generator, dtype=torch.float64)
    a, b = nn.Parameter(start[:3].clone()), nn.Parameter(start[3:].clone())
    # Two rates, one norm for both.
    reference = torch_optimizer(kind, [{"params": [a], "lr": 0.02}, {"params": [b], "lr": 0.005}], momentum, eps)
    rates = torch.tensor([0.02] * 3 + [0.005] * 4, dtype=torch.float64)
    optimizer = FlatOptimizer(kind, rates, 1.0, momentum, eps)
    vector, moments = start, torch.zeros(2, 7, dtype=torch.float64)
    clipped = 0
    for step in range(200):
        gradient = torch.randn(7, generator=generator, dtype=torch.float64) * (0.1 if step % 3 else 2.0)
        gradient[step % 7] = 0
        a.grad, b.grad = gradient[:3].clone(), gradient[3:].clone()
        norm = clip_grad_norm_([a, b], 1.0)
        clipped += int(norm > 1)
        reference.step()
        kept = vector.clone(), moments.clone(), gradient.clone()
        count = torch.full((1,), float(step), dtype=torch.float64)
        stepped = optimizer(vector, moments, gradient, count)
        assert all(torch.equal(x, y) for x, y in zip((vector, moments, gradient), kept, strict=True))  # as it was
        assert count.item() == step
        vector, moments = stepped.vector, stepped.moments
        torch.testing.assert_close(vector, torch.cat([a, b]).detach(), rtol=0, atol=1e-12)
        torch.testing.assert_close(stepped.norm, norm)
    assert 50 < clipped < 150
    assert (vector - start).abs().min() > 1e-3


@pytest.mark.parametrize("kind", ["adam", "sgd"])
def test_a_share_scales_the_step_and_nothing_else(kind: Literal["adam", "sgd"]) -> None:
    vector, moments, gradient = torch.tensor([1.0, -2.0]), torch.zeros(2, 2), torch.tensor([0.3, 0.4])
    optimizer, count = FlatOptimizer(kind, 0.1, 10.0), torch.zeros(1, dtype=torch.float64)
    whole = optimizer(vector, moments, gradient, count)
    quarter = optimizer(vector, moments, gradient, count, torch.tensor([0.25]))
    torch.testing.assert_close(quarter.vector - vector, 0.25 * (whole.vector - vector))
    assert torch.equal(quarter.moments, whole.moments)
    assert torch.equal(optimizer(vector, moments, gradient, count, 0.0).vector, vector)


def test_float32_stays_near_torchs_adam() -> None:
    torch.manual_seed(0)
    parameter = nn.Parameter(torch.randn(50))
    reference = torch.optim.Adam([parameter], lr=0.01, eps=1e-5)
    optimizer = FlatOptimizer("adam", 0.01, 1.0)
    vector = parameter.detach().clone()
    moments = FlatOptimizer.first_moments(vector)
    assert moments.shape == (2, 50) and not moments.any()
    for step in range(300):
        parameter.grad = torch.randn(50)
        gradient = parameter.grad.clone()
        clip_grad_norm_([parameter], 1.0)
        reference.step()
        vector, moments, _ = optimizer(vector, moments, gradient, torch.full((1,), float(step), dtype=torch.float64))
    assert vector.dtype == moments.dtype == torch.float32
    torch.testing.assert_close(vector, parameter.detach(), rtol=0, atol=2e-5)


def test_defaults_are_a_momentum_of_nine_tenths_and_an_eps_of_1e_5() -> None:
    vector, count = torch.zeros(1), torch.zeros(1, dtype=torch.float64)
    gradient = torch.tensor([1e-5])
    # Adam's first step is g / (|g| + eps).
    found = FlatOptimizer("adam", 1.0, 1.0)(vector, torch.zeros(2, 1), gradient, count).vector
    assert found.item() == pytest.approx(-0.5, rel=1e-4)
    moments = torch.tensor([[1.0], [0.0]])
    found = FlatOptimizer("sgd", 1.0, 1.0)(vector, moments, torch.zeros(1), count).vector
    assert found.item() == pytest.approx(-0.9)
