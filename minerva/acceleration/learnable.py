"""A gradient step as a function: parameters, moments and a loss in, new parameters and moments out."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Concatenate, Generic, Literal, NamedTuple, ParamSpec, TypeVar

import torch
from torch import Tensor, nn

from minerva.acceleration.compiled import Compiled
from minerva.acceleration.flat import FlatModule
from minerva.acceleration.tree import detached

M = TypeVar("M", bound=nn.Module)
Aux = TypeVar("Aux")
P = ParamSpec("P")

BETA1, BETA2 = 0.9, 0.999


class Learnable(NamedTuple):
    """Parameters as one vector, with the moments and the step count of their optimizer."""

    parameters: Tensor  # [P]
    average: Tensor  # [P], of gradients; with SGD the momentum
    square: Tensor  # [P], average of squared gradients
    steps: Tensor  # [1], float64: steps taken; not a number after a step whose loss or gradient was not finite

    @classmethod
    def start(cls, vector: Tensor) -> Learnable:
        """Return a learnable before its first step. It shares the vector's storage."""
        steps = torch.zeros(1, dtype=torch.float64, device=vector.device)
        return cls(vector, torch.zeros_like(vector), torch.zeros_like(vector), steps)


@dataclass(frozen=True)
class Optimizer(Generic[M]):
    """Compute steps of Adam, or of gradient descent with momentum, after clipping the gradient's norm.

    Attributes:
        module: What learns.
        learning_rate: A number, or a vector with one rate per parameter.
        max_grad_norm: Larger gradients are scaled down to this norm; None for no limit.
        kind: "adam" or "sgd", as `torch.optim` has them.
        momentum: Used by "sgd".
        eps: Used by "adam".
        minimum: Parameters are clamped to this after a step; None for no bound.
        in_place: Write over what `step` is given, where nothing is traced. It saves memory traffic with large networks
            and is right where the old parameters are not needed again.
        total: Sums a tensor over several processes that learn together, each from its part of the loss; None for one.
    """

    module: FlatModule[M]
    learning_rate: float | Tensor
    max_grad_norm: float | None = None
    kind: Literal["adam", "sgd"] = "adam"
    momentum: float = 0.9
    eps: float = 1e-5
    minimum: float | None = None
    in_place: bool = False
    total: Callable[[Tensor], Tensor] | None = None

    def scaled(self, factor: Tensor) -> Optimizer[M]:
        """Return the same optimizer with its learning rate multiplied."""
        return replace(self, learning_rate=self.learning_rate * factor)

    def step(self, old: Learnable, gradient: Tensor, loss: Tensor) -> Learnable:
        """Compute one step.

        Args:
            old: What was learned before.
            gradient: ``[P]``.
            loss: Its value, a scalar.
        """
        # An infinite loss can have a finite gradient. `steps` then carries on that something was not finite.
        norm = torch.where(loss.isfinite(), gradient.norm(), torch.nan)
        in_place = self.in_place and not Compiled.tracing
        if in_place and not norm.isfinite():
            return old._replace(steps=torch.full_like(old.steps, torch.nan))
        new = self._step(old, gradient, norm)
        if self.minimum is not None:
            # LaTeX: \theta_t \leftarrow \max(\theta_t, \theta_{\min})
            new = new._replace(parameters=new.parameters.clamp(min=self.minimum))
        return new if in_place else new._replace(steps=torch.where(norm.isfinite(), new.steps, torch.nan))

    def _step(self, old: Learnable, gradient: Tensor, norm: Tensor) -> Learnable:
        steps = old.steps + 1
        max_grad_norm = math.inf if self.max_grad_norm is None else self.max_grad_norm
        # LaTeX: g \leftarrow g \min\left( 1,\; \frac{g_{\max}}{\lVert g \rVert_2 + 10^{-6}} \right)
        gradient = gradient * (max_grad_norm / (norm + 1e-6)).clamp(max=1.0)
        if self.kind == "adam" and not Compiled.tracing:
            return self._fused_adam(old, gradient, steps)
        if self.kind == "sgd":
            # LaTeX: m_t = \beta m_{t-1} + g_t
            average = self.momentum * old.average + gradient
            # LaTeX: \theta_t = \theta_{t-1} - \lambda m_t
            parameters = old.parameters - self.learning_rate * average
            return Learnable(parameters, average, old.square, steps)
        # Written out, so that the compiler merges it with everything around it.
        # LaTeX[Kingma2015, alg. 1]: m_t = \beta_1 m_{t-1} + (1 - \beta_1)\, g_t
        average = torch.lerp(old.average, gradient, 1 - BETA1)
        # LaTeX[Kingma2015, alg. 1]: v_t = \beta_2 v_{t-1} + (1 - \beta_2)\, g_t^2
        square = BETA2 * old.square + (1 - BETA2) * gradient * gradient
        # LaTeX[Kingma2015, alg. 1]: b_1 = 1 - \beta_1^t
        correction = (1 - BETA1**steps).to(gradient.dtype)
        # LaTeX[Kingma2015, alg. 1]: b_2 = 1 - \beta_2^t
        square_correction = (1 - BETA2**steps).to(gradient.dtype)
        # LaTeX[Kingma2015, alg. 1]: \Delta_t = \frac{m_t / b_1}{\sqrt{v_t / b_2} + \epsilon}
        direction = (average / correction) / ((square / square_correction).sqrt() + self.eps)
        # LaTeX[Kingma2015, alg. 1]: \theta_t = \theta_{t-1} - \lambda \Delta_t
        parameters = old.parameters - self.learning_rate * direction
        return Learnable(parameters, average, square, steps)

    def _fused_adam(self, old: Learnable, gradient: Tensor, steps: Tensor) -> Learnable:
        """Compute the same with torch's fused kernel, which is quicker than separate operations."""
        new = old if self.in_place else Learnable(*(part.clone() for part in old))
        scalar = not isinstance(self.learning_rate, Tensor) or self.learning_rate.numel() == 1
        # The kernel takes one learning rate. Where there are several, it computes the move at a rate of 1.
        target = new.parameters if scalar else torch.zeros_like(gradient)
        torch._fused_adam_(
            [target], [gradient], [new.average], [new.square], [], [steps.to(torch.float32)],
            lr=self._scalar_rate() if scalar else 1.0, beta1=BETA1, beta2=BETA2, weight_decay=0.0, eps=self.eps,
            amsgrad=False, maximize=False,
        )  # fmt: skip
        if not scalar:
            new.parameters.addcmul_(torch.as_tensor(self.learning_rate), target)
        new.steps.copy_(steps)
        return new

    def _scalar_rate(self) -> float | Tensor:
        rate = self.learning_rate
        if not isinstance(rate, Tensor):
            return rate
        return rate.item() if rate.device.type == "cpu" else rate.reshape(())


def minimize(
    loss: Callable[Concatenate[M, P], tuple[Tensor, Aux]],
    learnable: Learnable,
    optimizer: Optimizer[M],
    *inputs: P.args,
    **named: P.kwargs,
) -> tuple[Learnable, Aux]:
    """Take one gradient step on a loss: return new parameters and moments, and what the loss function reported.

    Args:
        loss: A function of the module and the inputs. It returns the loss, a scalar, and auxiliary results. Where
            several processes learn together, it is this one's part of the loss, and so are the auxiliary results.
        learnable: The parameters and moments before the step.
        optimizer: How to step.
        *inputs: Further arguments of the loss.
        **named: Further arguments of the loss.

    Returns:
        The parameters and moments after the step, and the auxiliary results, detached.
    """
    parameters = optimizer.module.leaves(learnable.parameters)
    with torch.enable_grad(), optimizer.module.holding(parameters) as module:
        value, aux = loss(module, *inputs, **named)
        learned = [parameter for parameter in parameters if parameter.requires_grad]
        gradients = iter(torch.autograd.grad(value, learned, materialize_grads=True))
    with torch.no_grad():
        # What was frozen after construction has no gradient.
        parts = (next(gradients) if part.requires_grad else torch.zeros_like(part) for part in parameters)
        gradient, value = torch.cat([part.reshape(-1) for part in parts]), value.detach()
        if optimizer.total is not None:
            # Everything up to here could be compiled or captured for each process; the sum and the step could not.
            summed = optimizer.total(torch.cat([gradient, value.reshape(1)]))
            gradient, value = summed[:-1], summed[-1]
        return optimizer.step(learnable, gradient, value), detached(aux)
