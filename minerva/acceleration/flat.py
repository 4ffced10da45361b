"""A module whose parameters are one vector, so that an update can be a function of vectors."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor, nn

M = TypeVar("M", bound=nn.Module)


class FlatModule(Generic[M]):
    """Make the parameters of a module views of one vector, and let it compute with those of another vector for a while.

    Writing into `vector` changes the module, and loading a state into the module changes `vector`. The module must be
    on its device before, and stay there. Parameters that are frozen already are not part of the vector.

    Args:
        module: Its parameters are moved into the vector.
        frozen: Include frozen parameters, for a target network.
    """

    def __init__(self, module: M, frozen: bool = False) -> None:
        self.module = module
        self._frozen = frozen
        self.vector = torch.cat([parameter.detach().reshape(-1) for parameter in self._find_places()])
        self._tie()

    def _find_places(self) -> list[nn.Parameter]:
        named = [(n, p) for n, p in self.module.named_parameters() if p.requires_grad or self._frozen]
        self.names = [name for name, _ in named]
        self._parameters = [parameter for _, parameter in named]
        index = {parameter: i for i, parameter in enumerate(self._parameters)}
        # Where each parameter stands: a tied weight stands in several places.
        self._places = [
            (part._parameters, name, index[parameter])
            for part in self.module.modules()
            for name, parameter in part._parameters.items()
            if parameter in index
        ]
        self._shapes = [parameter.shape for parameter in self._parameters]
        self._sizes = [shape.numel() for shape in self._shapes]
        return self._parameters

    def _tie(self) -> None:
        for parameter, piece in zip(self._parameters, self.split(self.vector), strict=True):
            parameter.data = piece

    def __deepcopy__(self, memo: dict[int, Any]) -> FlatModule[M]:
        # Parameters are copied apart from the vector: without tying them again, a copy would learn and not show it.
        copied = memo[id(self)] = copy.copy(self)
        copied.module, copied.vector = copy.deepcopy(self.module, memo), copy.deepcopy(self.vector, memo)
        copied._find_places()
        copied._tie()
        return copied

    def split(self, vector: Tensor) -> list[Tensor]:
        """Return views of a vector in the shapes of the parameters."""
        pieces = torch.split_with_sizes(vector, self._sizes)
        return [piece.view(shape) for piece, shape in zip(pieces, self._shapes, strict=True)]

    def leaves(self, vector: Tensor) -> Sequence[Tensor]:
        """Return what to differentiate by: the module's own parameters if the vector is its own, else views of it."""
        if vector is self.vector:
            return self._parameters
        pieces = zip(self.split(vector.detach()), self._parameters, strict=True)
        return [piece.requires_grad_(parameter.requires_grad) for piece, parameter in pieces]

    @contextmanager
    def holding(self, pieces: Sequence[Tensor]) -> Iterator[M]:
        """Let the module hold these tensors in place of its parameters, within a `with` block. Calls may be nested."""
        before = [where[name] for where, name, _ in self._places]
        try:
            for where, name, i in self._places:
                where[name] = pieces[i]  # type: ignore[assignment]
            yield self.module
        finally:
            for (where, name, _), parameter in zip(self._places, before, strict=True):
                where[name] = parameter

    def at(self, vector: Tensor) -> AbstractContextManager[M]:
        """Let the module hold the parameters of `vector`, within a `with` block."""
        return self.holding(self.split(vector))

    def fill_by_prefix(self, values: Mapping[str, float]) -> Tensor:
        """Return a vector with one value for all entries of each parameter, chosen by the start of its name."""
        parts = []
        for name, size in zip(self.names, self._sizes, strict=True):
            (value,) = [value for prefix, value in values.items() if name.startswith(prefix)]
            parts.append(self.vector.new_full((size,), value))
        return torch.cat(parts)


class CpuCopy(Generic[M]):
    """Keep a copy on the CPU of a module that learns on a GPU; on the CPU it is the module itself.

    Args:
        module: What learns.
        wanted: Whether to make a copy at all.

    Attributes:
        module: The copy, or the module itself.
    """

    def __init__(self, module: M, wanted: bool = True) -> None:
        self._original = module
        self._flat: FlatModule[M] | None = None
        self._outdated = False
        self.module = module
        if wanted and next(module.parameters()).device.type != "cpu":
            self.module = copy.deepcopy(module).cpu()
            self._flat = FlatModule(self.module, frozen=True)

    def invalidate(self) -> None:
        """Mark the copy as outdated. It is renewed at the next `refresh`: until then nothing waits for the GPU."""
        self._outdated = self._flat is not None

    def refresh(self) -> None:
        """Copy the learned parameters, in one transfer, if the copy is outdated."""
        if self._outdated and self._flat is not None:
            learned = dict(self._original.named_parameters())
            self._flat.vector.copy_(torch.cat([learned[name].detach().reshape(-1) for name in self._flat.names]))
            self._outdated = False
