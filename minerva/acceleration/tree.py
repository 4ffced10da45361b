"""Nested tuples and dictionaries of tensors."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, TypeVar

from torch import Tensor

Tree = TypeVar("Tree")


def leaves(tree: Any) -> list[Tensor]:
    """List the tensors of nested tuples and dictionaries, in order."""
    if isinstance(tree, Tensor):
        return [tree]
    parts = tree.values() if isinstance(tree, dict) else tree
    return [leaf for part in parts for leaf in ((part,) if isinstance(part, Tensor) else leaves(part))]


def rebuild(tree: Tree, tensors: Iterator[Tensor]) -> Tree:
    """Build the same nested tuples and dictionaries with other tensors."""
    result: Any
    if isinstance(tree, Tensor):
        result = next(tensors)
    elif isinstance(tree, dict):
        result = {name: rebuild(part, tensors) for name, part in tree.items()}
    else:
        parts = [rebuild(part, tensors) for part in tree]  # type: ignore[attr-defined]
        result = type(tree)(*parts) if hasattr(tree, "_fields") else tuple(parts)
    return result  # type: ignore[no-any-return]


def detached(tree: Tree) -> Tree:
    """Detach every tensor from the graph that computed it."""
    return rebuild(tree, (leaf.detach() for leaf in leaves(tree)))
