from __future__ import annotations

import copy
import math
from typing import Any, Literal

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import clip_grad_norm_

from minerva.acceleration.flat import FlatModule
from minerva.acceleration.learnable import Learnable, Optimizer, minimize
from tests.acceleration.samples import Minibatch, Regression, begin, computed, each_mode, loss, minibatches

Kind = Literal["adam", "sgd"]
each_kind = pytest.mark.parametrize("kind", ["adam", "sgd"])
NO_LOSS = torch.zeros(())


class Numbers(nn.Module):
    """Nothing but parameters."""

    def __init__(self, values: Tensor) -> None:
        super().__init__()
        self.values = nn.Parameter(values)


def flat_numbers(*values: float) -> FlatModule[Numbers]:
    return FlatModule(Numbers(torch.tensor(values)))


def torch_optimizer(kind: Kind, groups: Any, momentum: float, eps: float) -> torch.optim.Optimizer:
    return torch.optim.Adam(groups, eps=eps) if kind == "adam" else torch.optim.SGD(groups, momentum=momentum)


# The optimizer


@pytest.mark.formula(
    "minerva.acceleration.learnable",
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
@each_kind
@each_mode
@pytest.mark.parametrize("rates", [(0.02, 0.005), (0.02, 0.02)])
@pytest.mark.parametrize(("momentum", "eps"), [(0.9, 1e-5), (0.5, 1e-2)])
def test_equals_torchs_optimizers_over_many_steps(
    kind: Kind,
    mode: str,
    rates: tuple[float, float],
    momentum: float,
    eps: float,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    generator = torch.Generator().manual_seed(0)
    start = torch.randn(7, generator=generator, dtype=torch.float64)
    a, b = nn.Parameter(start[:3].clone()), nn.Parameter(start[3:].clone())
    # Two rates, one norm for both.
    reference = torch_optimizer(kind, [{"params": [a], "lr": rates[0]}, {"params": [b], "lr": rates[1]}], momentum, eps)
    module = FlatModule(Numbers(start.clone()))
    rate = torch.tensor([rates[0]] * 3 + [rates[1]] * 4, dtype=torch.float64) if rates[0] != rates[1] else rates[0]
    learned = Learnable.start(module.vector)
    clipped = 0
    with computed(mode, monkeypatch) as in_place:
        optimizer = Optimizer(module, rate, 1.0, kind, momentum, eps, in_place=in_place)
        for step in range(200):
            gradient = torch.randn(7, generator=generator, dtype=torch.float64) * (0.1 if step % 3 else 2.0)
            gradient[step % 7] = 0
            a.grad, b.grad = gradient[:3].clone(), gradient[3:].clone()
            clipped += int(clip_grad_norm_([a, b], 1.0) > 1)
            reference.step()
            given, kept = gradient.clone(), Learnable(*(part.clone() for part in learned))
            new = optimizer.step(learned, gradient, NO_LOSS)
            assert torch.equal(gradient, given)
            if not in_place:  # as it was
                assert all(torch.equal(x, y) for x, y in zip(learned, kept, strict=True))
            learned = new
            assert learned.steps.item() == step + 1
            torch.testing.assert_close(learned.parameters, torch.cat([a, b]).detach(), rtol=0, atol=1e-12)
    assert 50 < clipped < 150
    assert (learned.parameters - start).abs().min() > 1e-3


@each_kind
@each_mode
@pytest.mark.parametrize("vector", [False, True])
def test_a_scaled_rate_scales_the_step_and_nothing_else(
    kind: Kind, mode: str, vector: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    gradient, rate = torch.tensor([0.3, 0.4]), torch.tensor([0.1, 0.2]) if vector else 0.1

    def step(factor: float | None) -> Learnable:
        module = flat_numbers(1.0, -2.0)
        optimizer = Optimizer(module, rate, 10.0, kind, in_place=in_place)
        if factor is not None:
            optimizer = optimizer.scaled(torch.tensor(factor))
        return optimizer.step(Learnable.start(module.vector), gradient, NO_LOSS)

    with computed(mode, monkeypatch) as in_place:
        whole, quarter, none = step(None), step(0.25), step(0.0)
    before = torch.tensor([1.0, -2.0])
    torch.testing.assert_close(quarter.parameters - before, 0.25 * (whole.parameters - before), rtol=1e-5, atol=1e-7)
    assert torch.equal(quarter.average, whole.average) and torch.equal(quarter.square, whole.square)
    assert torch.equal(none.parameters, before) and (whole.parameters - before).abs().min() > 0.01


@each_mode
def test_float32_stays_near_torchs_adam(mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    parameter = nn.Parameter(torch.randn(50))
    reference = torch.optim.Adam([parameter], lr=0.01, eps=1e-5)
    module = FlatModule(Numbers(parameter.detach().clone()))
    learned = Learnable.start(module.vector)
    assert learned.parameters is module.vector
    assert not learned.average.any() and not learned.square.any() and learned.steps.tolist() == [0.0]
    with computed(mode, monkeypatch) as in_place:
        optimizer = Optimizer(module, 0.01, 1.0, in_place=in_place)
        for _ in range(300):
            parameter.grad = torch.randn(50)
            gradient = parameter.grad.clone()
            clip_grad_norm_([parameter], 1.0)
            reference.step()
            learned = optimizer.step(learned, gradient, NO_LOSS)
    assert learned.parameters.dtype == learned.average.dtype == learned.square.dtype == torch.float32
    assert learned.steps.dtype == torch.float64
    torch.testing.assert_close(learned.parameters, parameter.detach(), rtol=0, atol=2e-5)


@each_mode
def test_defaults_are_a_momentum_of_nine_tenths_and_an_eps_of_1e_5(mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with computed(mode, monkeypatch) as in_place:
        module = flat_numbers(0.0)
        # Adam's first step is g / (|g| + eps).
        start = Learnable.start(module.vector)
        found = Optimizer(module, 1.0, in_place=in_place).step(start, torch.tensor([1e-5]), NO_LOSS)
        assert found.parameters.item() == pytest.approx(-0.5, rel=1e-4)
        module = flat_numbers(0.0)
        moving = Learnable.start(module.vector)._replace(average=torch.ones(1))
        found = Optimizer(module, 1.0, kind="sgd", in_place=in_place).step(moving, torch.zeros(1), NO_LOSS)
        assert found.parameters.item() == pytest.approx(-0.9)


@pytest.mark.formula("minerva.acceleration.learnable", r"\theta_t \leftarrow \max(\theta_t, \theta_{\min})")
@each_kind
@each_mode
@pytest.mark.parametrize("vector", [False, True])
def test_parameters_stop_at_their_minimum(kind: Kind, mode: str, vector: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    module = flat_numbers(-17.99, 3.0, -30.0)
    rate = torch.full((3,), 0.1) if vector else 0.1
    with computed(mode, monkeypatch) as in_place:
        optimizer = Optimizer(module, rate, kind=kind, minimum=-18.0, in_place=in_place)
        start = Learnable.start(module.vector)
        found = optimizer.step(start, torch.tensor([1.0, 1.0, -0.5]), NO_LOSS).parameters
    assert found[0] == found[2] == -18.0 and found[1].item() == pytest.approx(2.9, rel=1e-4)


@each_kind
@each_mode
@pytest.mark.parametrize(
    ("gradient", "value"),
    [
        ((math.nan, 1.0), 0.0),
        ((1.0, math.inf), 0.0),
        ((1.0, 2.0), math.inf),
        ((1.0, 2.0), -math.inf),
        ((1.0, 2.0), math.nan),
    ],
)
@pytest.mark.parametrize("max_grad_norm", [0.5, math.inf])
def test_a_loss_or_gradient_that_is_not_finite_shows_in_the_steps(
    kind: Kind,
    mode: str,
    gradient: tuple[float, float],
    value: float,
    max_grad_norm: float,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    module = flat_numbers(1.0, -2.0)
    learned = Learnable.start(module.vector)
    with computed(mode, monkeypatch) as in_place:
        optimizer = Optimizer(module, 0.1, max_grad_norm, kind, in_place=in_place)
        learned = optimizer.step(learned, torch.tensor([0.3, 0.4]), NO_LOSS)
        kept = Learnable(*(part.clone() for part in learned))
        found = optimizer.step(learned, torch.tensor(gradient), torch.tensor(value))
        assert found.steps.isnan().all()
        assert all(torch.equal(x, y) for x, y in zip(learned, kept, strict=True))  # nothing was written
        # Whatever comes after it, it is not forgotten.
        assert optimizer.step(found, torch.tensor([0.3, 0.4]), NO_LOSS).steps.isnan().all()


# Minimizing


@each_kind
@each_mode
def test_a_step_goes_down_the_gradient_of_the_loss(kind: Kind, mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    module = Regression().double()
    reference = copy.deepcopy(module)
    optimizer = torch_optimizer(kind, [{"params": reference.parameters(), "lr": 2.0**-7}], 0.9, 1e-3)
    flat, (learned,) = begin(module)
    clipped = 0
    with computed(mode, monkeypatch) as in_place:
        own = Optimizer(flat, 2.0**-7, 0.5, kind, eps=1e-3, in_place=in_place)
        for k, (x, y, w) in enumerate(minibatches(30, dtype=torch.float64)):
            # Errors large and small: some gradients are clipped and others not.
            minibatch = Minibatch(x, reference(x).detach() + 0.01 * y if k % 3 else y, w)
            learned, error = minimize(loss, learned, own, minibatch)
            optimizer.zero_grad()
            total, expected = loss(reference, minibatch)
            torch.autograd.backward(total)
            clipped += int(clip_grad_norm_(reference.parameters(), 0.5) > 0.5)
            optimizer.step()
            torch.testing.assert_close(error, expected.detach(), rtol=1e-9, atol=1e-9)
            assert not error.requires_grad
    assert 5 < clipped < 25
    assert (learned.parameters is flat.vector) == (mode == "in place" and kind == "adam")
    for found, parameter in zip(flat.split(learned.parameters), reference.parameters(), strict=True):
        torch.testing.assert_close(found, parameter.detach(), rtol=0, atol=1e-12)
    assert all(parameter.grad is None for parameter in module.parameters())


def test_only_what_is_learned_moves_and_nothing_else_gets_a_gradient() -> None:
    class Parts(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.used, self.frozen, self.unused = (
                nn.Linear(2, 2),
                nn.Linear(2, 2).requires_grad_(False),
                nn.Linear(2, 2),
            )

    def total(module: Parts, x: Tensor, *, weight: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        y = module.frozen(module.used(x))
        return weight * y.square().sum(), {"y": y}

    module = Parts()
    before = copy.deepcopy(module)
    flat = FlatModule(module)
    optimizer = Optimizer(flat, 0.1, in_place=True)
    x = torch.randn(3, 2)
    learned, aux = minimize(total, Learnable.start(flat.vector), optimizer, x, weight=torch.tensor(2.0))
    assert learned.parameters is flat.vector and not aux["y"].requires_grad
    torch.testing.assert_close(aux["y"], before.frozen(before.used(x)).detach())
    assert not torch.equal(module.used.weight, before.used.weight)
    for name in ("frozen", "unused"):  # without a gradient Adam stays where it is
        for part, old in zip(
            module.get_submodule(name).parameters(), before.get_submodule(name).parameters(), strict=True
        ):
            assert torch.equal(part, old) and part.grad is None


def test_a_weight_in_two_places_gets_both_gradients() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(2, 2, bias=False), nn.Linear(2, 2, bias=False)
            self.second.weight = self.first.weight

    def total(module: Tied, x: Tensor) -> tuple[Tensor, Tensor]:
        return module.second(module.first(x)).square().sum(), x

    module = Tied()
    flat, x = FlatModule(module), torch.randn(3, 2)
    weight = module.first.weight.detach().clone().requires_grad_()
    (gradient,) = torch.autograd.grad((x @ weight.T @ weight.T).square().sum(), weight)
    optimizer = Optimizer(flat, 1.0, kind="sgd")
    for vector in (flat.vector, flat.vector.clone()):  # its own parameters, and a vector in their place
        learned, _ = minimize(total, Learnable.start(vector), optimizer, x)
        torch.testing.assert_close(learned.parameters.view(2, 2), weight.detach() - gradient)
    assert torch.equal(module.first.weight, weight)


def test_parameters_after_a_step_can_be_stepped_from_again() -> None:
    torch.manual_seed(0)
    flat, (start,) = begin(Regression())
    optimizer = Optimizer(flat, 0.01)
    kept = flat.vector.clone()
    one, two = minibatches(2)
    first, _ = minimize(loss, start, optimizer, one)
    second, _ = minimize(loss, first, optimizer, two)
    assert torch.equal(flat.vector, kept) and second.steps.item() == 2
    flat.vector.copy_(first.parameters)
    again, _ = minimize(loss, first._replace(parameters=flat.vector), optimizer, two)
    torch.testing.assert_close(again, second, rtol=0, atol=0)


def test_what_is_frozen_later_stays_and_the_rest_learns() -> None:
    module = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 1))
    flat = FlatModule(module)
    learnable, optimizer = Learnable.start(flat.vector), Optimizer(flat, 1e-2)
    module[0].requires_grad_(False)
    before = {name: parameter.detach().clone() for name, parameter in module.named_parameters()}

    def loss(network: nn.Sequential, x: Tensor) -> tuple[Tensor, tuple[()]]:
        return network(x).square().mean(), ()

    for _ in range(3):  # from the second on, the vector is no longer the module's own
        learnable, _ = minimize(loss, learnable, optimizer, torch.ones(2, 3))
    after = dict(zip(flat.names, flat.split(learnable.parameters), strict=True))
    assert all(torch.equal(after[name], before[name]) == name.startswith("0.") for name in before)
