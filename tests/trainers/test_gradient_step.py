from __future__ import annotations

import copy
import os
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, nn

from minerva.trainers.accelerate import compiler_available
from minerva.trainers.gradient_step import FlatStep, GradientStep, PlainStep

needs_compiler = pytest.mark.skipif(
    not compiler_available() and not os.environ.get("CI"), reason="no C++ compiler is installed (Debian: g++)"
)


class Regression(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 1)
        self.scale = nn.Parameter(torch.ones(1))

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.layer(x)
        return self.scale * y.squeeze(-1).tanh()


def loss(module: Regression, minibatch: tuple[Tensor, ...]) -> tuple[Tensor, Tensor]:
    x, y, w = minibatch
    error = module(x) - y
    return (w * error**2).sum() / w.sum().clamp(min=1), (w * error).sum()


def minibatches(count: int, rows: int = 6) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(1)
    for _ in range(count):
        x = torch.randn(rows, 3, generator=generator)
        yield x, 5 * x.sum(-1), torch.ones(rows)


def make(module: Regression, step_class: type[PlainStep] | type[FlatStep]) -> tuple[GradientStep, torch.optim.Adam]:
    optimizer = torch.optim.Adam(module.parameters(), lr=0.01, eps=1e-5, fused=True)
    if step_class is FlatStep:
        return FlatStep(module, optimizer, loss, 0.5, compile_it=True), optimizer
    return PlainStep(module, optimizer, loss, 0.5), optimizer


def assert_same_state(one: torch.optim.Adam, other: torch.optim.Adam, rtol: float, atol: float) -> None:
    for a, b in zip(one.state.values(), other.state.values(), strict=True):
        for name in ("step", "exp_avg", "exp_avg_sq"):
            torch.testing.assert_close(a[name], b[name], rtol=rtol, atol=atol)


@needs_compiler
def test_compiled_and_plain_steps_are_the_same_algorithm() -> None:
    torch.manual_seed(0)
    plain_module = Regression()
    compiled_module = copy.deepcopy(plain_module)
    plain, plain_optimizer = make(plain_module, PlainStep)
    fast, compiled_optimizer = make(compiled_module, FlatStep)
    assert torch.equal(plain_module.layer.weight, compiled_module.layer.weight)
    for epoch in range(2):  # the second starts from moments that are there, with another learning rate
        for optimizer in (plain_optimizer, compiled_optimizer):
            optimizer.param_groups[0]["lr"] = 0.01 / (1 + epoch)
        plain.begin()
        fast.begin()
        for minibatch in minibatches(9):
            one, other = plain(minibatch), fast(minibatch)
            assert one.applied and other.applied
            torch.testing.assert_close(one.losses, other.losses, rtol=1e-4, atol=1e-5)
        plain.end()
        fast.end()
        for a, b in zip(plain_module.parameters(), compiled_module.parameters(), strict=True):
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-6)
        assert_same_state(plain_optimizer, compiled_optimizer, rtol=1e-4, atol=1e-6)
    assert compiled_optimizer.state[compiled_module.scale]["step"] == 18
    assert (plain_module.scale - 1).abs() > 0.01  # and it did go somewhere

    # a minibatch that is not a number changes nothing, on either path
    for step, module, optimizer in (
        (plain, plain_module, plain_optimizer),
        (fast, compiled_module, compiled_optimizer),
    ):
        before = copy.deepcopy((module.state_dict(), optimizer.state_dict()["state"]))
        for bad in (torch.nan, torch.inf):
            x, y, w = next(minibatches(1))
            y = y.clone()
            y[2] = bad
            step.begin()
            taken = step((x, y, w))
            step.end()
            assert not taken.applied
            after = (module.state_dict(), optimizer.state_dict()["state"])
            torch.testing.assert_close(after, before, rtol=0, atol=0)


@needs_compiler
def test_compiled_steps_are_the_same_twice() -> None:
    results = []
    for _ in range(2):
        torch.manual_seed(0)
        module = Regression()
        step, _ = make(module, FlatStep)
        step.begin()
        for minibatch in minibatches(6):
            step(minibatch)
        step.end()
        results.append(module.state_dict())
    torch.testing.assert_close(results[0], results[1], rtol=0, atol=0)


@pytest.mark.formula(
    "minerva.trainers.gradient_step",
    r"g \leftarrow g \min\left( 1,\; \frac{g_{\max}}{\lVert g \rVert_2 + 10^{-6}} \right)",
    r"m_t = \beta_1 m_{t-1} + (1 - \beta_1)\, g_t",
    r"v_t = \beta_2 v_{t-1} + (1 - \beta_2)\, g_t^2",
    r"b_1 = 1 - \beta_1^t",
    r"b_2 = 1 - \beta_2^t",
    r"\theta_t = \theta_{t-1} - \frac{\lambda}{b_1} \cdot \frac{m_t}{\sqrt{v_t / b_2} + \epsilon}",
)
def test_what_is_compiled_equals_torchs_adam_to_the_last_digits() -> None:
    torch.manual_seed(0)
    module = Regression().double()
    reference = copy.deepcopy(module)
    rate = 2.0**-7  # exact in the float32 that it is handed over in
    step = FlatStep(module, torch.optim.Adam(module.parameters(), lr=rate, eps=1e-3), loss, 0.5)
    optimizer = torch.optim.Adam(reference.parameters(), lr=rate, eps=1e-3)
    clipped = 0
    step.begin()
    for k, (x, y, w) in enumerate(minibatches(30)):
        # Errors large and small: some gradients are clipped and others not.
        target = reference(x.double()).detach() + 0.01 * y.double() if k % 3 else y.double()
        step((x.double(), target, w.double()))
        optimizer.zero_grad()
        loss(reference, (x.double(), target, w.double()))[0].backward()  # type: ignore[no-untyped-call]
        clipped += int(nn.utils.clip_grad_norm_(reference.parameters(), 0.5) > 0.5)
        optimizer.step()
    step.end()
    assert 5 < clipped < 25
    for found, expected in zip(module.parameters(), reference.parameters(), strict=True):
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)


def test_gradients_are_clipped() -> None:
    torch.manual_seed(0)
    module = Regression()
    optimizer = torch.optim.SGD(module.parameters(), lr=1.0)
    before = [p.detach().clone() for p in module.parameters()]
    step = PlainStep(module, optimizer, loss, 0.5)
    step.begin()
    step(next(minibatches(1)))
    step.end()
    moved = torch.stack([(p - b).norm() for p, b in zip(module.parameters(), before, strict=True)]).norm()
    torch.testing.assert_close(moved, torch.tensor(0.5), rtol=1e-4, atol=0)
