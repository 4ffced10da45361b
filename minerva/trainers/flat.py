"""Parameters as one vector: what a whole update needs to be a function that can be compiled, captured, or undone."""

from __future__ import annotations

import copy
from typing import Any, Generic, Literal, NamedTuple, TypeVar

import torch
from torch import Tensor, nn
from torch.func import functional_call

M = TypeVar("M", bound=nn.Module)


class FlatModule:
    """A module whose parameters are views of one vector, and which can be called with another vector in its place.

    Writing into `vector` changes the module, and loading a state into the module changes `vector`. The module must be
    on its device before, and stay there.

    Args:
        module: Its parameters are moved into the vector.
    """

    def __init__(self, module: nn.Module) -> None:
        self.module = module
        self._layout = [(name, parameter.shape) for name, parameter in module.named_parameters()]
        self._sizes = [shape.numel() for _, shape in self._layout]
        self.vector = torch.cat([parameter.detach().reshape(-1) for parameter in module.parameters()])
        self._tie()

    def _tie(self) -> None:
        pieces = torch.split_with_sizes(self.vector, self._sizes)
        for parameter, piece in zip(self.module.parameters(), pieces, strict=True):
            parameter.data = piece.view(parameter.shape)

    def __deepcopy__(self, memo: dict[int, Any]) -> FlatModule:
        # Parameters are copied apart from the vector that they are views of: a copy would learn, and not show it.
        twin = memo[id(self)] = copy.copy(self)
        twin.module, twin.vector = copy.deepcopy(self.module, memo), copy.deepcopy(self.vector, memo)
        twin._tie()
        return twin

    def __call__(self, vector: Tensor, *inputs: Tensor) -> Any:
        """Call the module with the parameters of `vector`."""
        pieces = zip(self._layout, torch.split_with_sizes(vector, self._sizes), strict=True)
        return functional_call(self.module, {name: piece.view(shape) for (name, shape), piece in pieces}, inputs)

    def expanded(self, values: dict[str, float]) -> Tensor:
        """Make a vector with one value for all entries of each parameter, by the start of its name."""
        parts = []
        for (name, _), size in zip(self._layout, self._sizes, strict=True):
            (value,) = [value for start, value in values.items() if name.startswith(start)]
            parts.append(torch.full((size,), value))
        return torch.cat(parts).to(self.vector.device)


class Twin(Generic[M]):
    """A module for the CPU: a copy of one that is on a GPU, or the module itself where it is on the CPU already.

    Args:
        module: What learns.
        wanted: Whether there is to be a copy at all.

    Attributes:
        module: What acts.
    """

    def __init__(self, module: M, wanted: bool = True) -> None:
        self._original = module
        self._flat: FlatModule | None = None
        self.module = module
        if wanted and next(module.parameters()).device.type != "cpu":
            self.module = copy.deepcopy(module).cpu()
            self._flat = FlatModule(self.module)

    def refresh(self) -> None:
        """Take over what the module has learned, in one transfer."""
        if self._flat is not None:
            learned = [parameter.detach().reshape(-1) for parameter in self._original.parameters()]
            self._flat.vector.copy_(torch.cat(learned))


class Stepped(NamedTuple):
    """What an optimizer's step would lead to."""

    vector: Tensor
    moments: Tensor
    norm: Tensor  # of the gradient before clipping


class FlatOptimizer:
    """Adam, or gradient descent with momentum, as a function of vectors; the gradient's norm is clipped first.

    Args:
        kind: "adam" or "sgd", as `torch.optim` has them.
        rate: Learning rate; a vector for one an entry.
        max_grad_norm: Gradients are scaled down to this norm.
        momentum: With "sgd".
        eps: With "adam".
    """

    def __init__(
        self,
        kind: Literal["adam", "sgd"],
        rate: float | Tensor,
        max_grad_norm: float,
        momentum: float = 0.9,
        eps: float = 1e-5,
    ) -> None:
        self._kind = kind
        self._rate = rate
        self._max_grad_norm = max_grad_norm
        self._momentum = momentum
        self._eps = eps

    @staticmethod
    def first_moments(vector: Tensor) -> Tensor:
        """Make the moments to begin with, ``[2, P]``."""
        return torch.zeros(2, len(vector), device=vector.device)

    def __call__(
        self, vector: Tensor, moments: Tensor, gradient: Tensor, count: Tensor, share: Tensor | float = 1.0
    ) -> Stepped:
        """Compute one step; nothing is changed in place.

        Args:
            vector: ``[P]``.
            moments: ``[2, P]``.
            gradient: ``[P]``.
            count: Steps taken before this one, ``[1]``, float64.
            share: Of the learning rate, for one that falls.
        """
        norm = gradient.norm()
        rate = self._rate * share
        # LaTeX: g \leftarrow g \min\left( 1,\; \frac{g_{\max}}{\lVert g \rVert_2 + 10^{-6}} \right)
        gradient = gradient * (self._max_grad_norm / (norm + 1e-6)).clamp(max=1.0)
        if self._kind == "sgd":
            # LaTeX: m_t = \beta m_{t-1} + g_t
            average = self._momentum * moments[0] + gradient
            # LaTeX: \theta_t = \theta_{t-1} - \lambda m_t
            return Stepped(vector - rate * average, torch.stack([average, moments[1]]), norm)
        beta1, beta2 = 0.9, 0.999
        # LaTeX[Kingma2015, alg. 1]: m_t = \beta_1 m_{t-1} + (1 - \beta_1)\, g_t
        average = torch.lerp(moments[0], gradient, 1 - beta1)
        # LaTeX[Kingma2015, alg. 1]: v_t = \beta_2 v_{t-1} + (1 - \beta_2)\, g_t^2
        square = beta2 * moments[1] + (1 - beta2) * gradient * gradient
        # LaTeX[Kingma2015, alg. 1]: b_1 = 1 - \beta_1^t
        first = (1 - beta1 ** (count + 1)).to(vector.dtype)
        # LaTeX[Kingma2015, alg. 1]: b_2 = 1 - \beta_2^t
        second = (1 - beta2 ** (count + 1)).to(vector.dtype)
        # LaTeX[Kingma2015, alg. 1]: \Delta_t = \frac{m_t / b_1}{\sqrt{v_t / b_2} + \epsilon}
        direction = (average / first) / ((square / second).sqrt() + self._eps)
        # LaTeX[Kingma2015, alg. 1]: \theta_t = \theta_{t-1} - \lambda \Delta_t
        return Stepped(vector - rate * direction, torch.stack([average, square]), norm)
