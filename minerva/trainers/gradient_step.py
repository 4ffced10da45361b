"""One gradient step: loss, gradient, clipping, optimizer; plain, or as one function, compiled or captured."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, ClassVar, NamedTuple, Protocol

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad_and_value

from minerva.trainers.accelerate import accelerated

Losses = tuple[Tensor, ...]
"""Scalars; the first is the loss that is minimized."""
LossFunction = Callable[[Any, tuple[Tensor, ...]], Losses]
"""From a module and a minibatch to its losses."""


class Taken(NamedTuple):
    """What a gradient step gave."""

    losses: Tensor  # [L]
    applied: Tensor  # scalar, 0 or 1: 0 where loss or gradient was not finite, and nothing was changed


class GradientStep(Protocol):
    """Minimizes a loss, a minibatch at a time; `begin` and `end` stand around some of them.

    Attributes:
        static_shapes: Whether every minibatch must have the size of the first.
    """

    static_shapes: ClassVar[bool]

    def begin(self) -> None:
        """Prepare for some steps."""
        ...

    def __call__(self, minibatch: tuple[Tensor, ...]) -> Taken:
        """Take one step."""
        ...

    def end(self) -> None:
        """Leave module and optimizer as the steps made them."""
        ...


class PlainStep:
    """The gradient step as torch runs it, one operation after the other."""

    static_shapes: ClassVar[bool] = False

    def __init__(
        self, module: nn.Module, optimizer: torch.optim.Optimizer, loss: LossFunction, max_grad_norm: float
    ) -> None:
        self._module = module
        self._parameters = list(module.parameters())
        self._optimizer = optimizer
        self._loss = loss
        self._max_grad_norm = max_grad_norm

    def begin(self) -> None:
        """Nothing to prepare."""

    def __call__(self, minibatch: tuple[Tensor, ...]) -> Taken:
        """Take one step, or none where the loss or its gradient is not finite."""
        losses = self._loss(self._module, minibatch)
        self._optimizer.zero_grad(set_to_none=True)
        torch.autograd.backward(losses[0])
        norm = nn.utils.clip_grad_norm_(self._parameters, self._max_grad_norm)
        applied = torch.isfinite(norm + losses[0].detach())
        if applied:
            self._optimizer.step()
        return Taken(torch.stack([value.detach() for value in losses]), applied)

    def end(self) -> None:
        """Nothing to put back."""


class FlatStep:
    """The whole gradient step as one function of flat parameters, for Adam: to be compiled, or on a GPU captured.

    The loss is the one that the plain step uses. Parameters and Adam's moments are gathered into flat vectors in
    `begin` and put back in `end`, so module, optimizer and checkpoint look the same on either path.

    Args:
        module: What is trained.
        optimizer: Adam over all of the module's parameters, in one group.
        loss: Of static shapes: every minibatch must have the size of the first.
        max_grad_norm: Gradients are scaled down to this norm.
        compile_it: Whether the step is compiled.
        capture_it: Whether it is captured as a graph.
    """

    static_shapes: ClassVar[bool] = True

    def __init__(
        self,
        module: nn.Module,
        optimizer: torch.optim.Adam,
        loss: LossFunction,
        max_grad_norm: float,
        compile_it: bool = False,
        capture_it: bool = False,
    ) -> None:
        self._parameters = list(module.parameters())
        self._optimizer = optimizer
        device = self._parameters[0].device
        # The same memory from first to last, which is what a graph writes into.
        self._flat, self._average, self._square = (_flatten(self._parameters) for _ in range(3))
        # Of shape [1]: the compiler takes a scalar on the CPU for a constant and would lose what is written into it.
        self._count = torch.zeros(1, dtype=torch.float64, device=device)
        self._rate = torch.zeros(1, device=device)
        written = (self._flat, self._average, self._square, self._count)
        step = _adam_step(module, optimizer, loss, max_grad_norm)
        self._step = accelerated(step, written, compile_it, capture_it)
        self._captured = capture_it

    def begin(self) -> None:
        """Gather parameters and moments."""
        states = [self._optimizer.state[parameter] for parameter in self._parameters]
        for parameter, state in zip(self._parameters, states, strict=True):
            if not state:  # Adam makes it at its first step
                state["step"] = torch.zeros((), device=parameter.device)
                state["exp_avg"] = torch.zeros_like(parameter.detach())
                state["exp_avg_sq"] = torch.zeros_like(parameter.detach())
        self._flat.copy_(_flatten(self._parameters))
        self._average.copy_(_flatten(state["exp_avg"] for state in states))
        self._square.copy_(_flatten(state["exp_avg_sq"] for state in states))
        self._count.copy_(states[0]["step"].reshape(1))
        self._rate.fill_(self._optimizer.param_groups[0]["lr"])

    def __call__(self, minibatch: tuple[Tensor, ...]) -> Taken:
        """Take one step, or none where the loss or its gradient is not finite."""
        with torch.no_grad():
            found = self._step(self._rate, *minibatch)
            if self._captured:  # the next step writes over it
                found = found.clone()
        return Taken(found[1:], found[0])

    def end(self) -> None:
        """Put parameters and moments back, in place."""
        states = [self._optimizer.state[parameter] for parameter in self._parameters]
        for vector, old in (
            (self._flat, [parameter.detach() for parameter in self._parameters]),
            (self._average, [state["exp_avg"] for state in states]),
            (self._square, [state["exp_avg_sq"] for state in states]),
        ):
            pieces = torch.split_with_sizes(vector, [tensor.numel() for tensor in old])
            torch._foreach_copy_(old, [piece.view_as(tensor) for piece, tensor in zip(pieces, old, strict=True)])
        count = self._count[0]
        torch._foreach_copy_([state["step"] for state in states], [count] * len(states))


def _flatten(tensors: Iterable[Tensor]) -> Tensor:
    return torch.cat([tensor.detach().reshape(-1) for tensor in tensors])


class _Loss(nn.Module):
    """A loss function as a module, so that it can be called with parameters from elsewhere."""

    def __init__(self, module: nn.Module, loss: LossFunction) -> None:
        super().__init__()
        self.module = module
        self._loss = loss

    def forward(self, minibatch: tuple[Tensor, ...]) -> Losses:
        return self._loss(self.module, minibatch)


def _adam_step(
    module: nn.Module, optimizer: torch.optim.Adam, loss: LossFunction, max_grad_norm: float
) -> Callable[..., Tensor]:
    """Write the gradient step as a function of flat vectors, which it changes in place.

    It returns whether it did so, 0 or 1, and the losses after it, as one vector.
    """
    holder = _Loss(module, loss)
    layout = [(f"module.{name}", parameter.shape) for name, parameter in module.named_parameters()]
    sizes = [shape.numel() for _, shape in layout]
    (beta1, beta2), eps = optimizer.param_groups[0]["betas"], optimizer.param_groups[0]["eps"]

    def losses_of(flat: Tensor, minibatch: tuple[Tensor, ...]) -> tuple[Tensor, Losses]:
        pieces = zip(layout, torch.split_with_sizes(flat, sizes), strict=True)
        losses = functional_call(holder, {name: piece.view(shape) for (name, shape), piece in pieces}, (minibatch,))
        return losses[0], tuple(value.detach() for value in losses)

    def step(flat: Tensor, average: Tensor, square: Tensor, count: Tensor, rate: Tensor, *minibatch: Tensor) -> Tensor:
        gradient, (total, losses) = grad_and_value(losses_of, has_aux=True)(flat, minibatch)
        norm = gradient.norm()
        applied = torch.isfinite(norm + total)
        # LaTeX: g \leftarrow g \min\left( 1,\; \frac{g_{\max}}{\lVert g \rVert_2 + 10^{-6}} \right)
        gradient = gradient * (max_grad_norm / (norm + 1e-6)).clamp(max=1.0)
        new_count = count + applied
        # LaTeX[Kingma2015, alg. 1]: m_t = \beta_1 m_{t-1} + (1 - \beta_1)\, g_t
        new_average = torch.lerp(average, gradient, 1 - beta1)
        # LaTeX[Kingma2015, alg. 1]: v_t = \beta_2 v_{t-1} + (1 - \beta_2)\, g_t^2
        new_square = beta2 * square + (1 - beta2) * gradient * gradient
        # LaTeX[Kingma2015, alg. 1]: b_1 = 1 - \beta_1^t
        first = (1 - beta1**new_count).to(flat.dtype)
        # LaTeX[Kingma2015, alg. 1]: b_2 = 1 - \beta_2^t
        second = (1 - beta2**new_count).to(flat.dtype)
        # LaTeX[Kingma2015, alg. 1]: \theta_t = \theta_{t-1} - \frac{\lambda}{b_1} \cdot \frac{m_t}{\sqrt{v_t / b_2} + \epsilon}
        new_flat = flat - rate / first * new_average / ((new_square / second).sqrt() + eps)
        for old, new in ((flat, new_flat), (average, new_average), (square, new_square)):
            old.copy_(torch.where(applied, new, old))
        count.copy_(new_count)
        return torch.stack([applied.to(total.dtype), *losses])

    return step
