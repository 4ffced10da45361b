from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from minerva.acceleration.tree import detached, leaves, rebuild


class Pair(NamedTuple):
    first: Tensor
    rest: tuple[Tensor, ...]


def test_leaves_come_in_order() -> None:
    a, b, c, d = torch.arange(4.0).unbind()
    assert [id(leaf) for leaf in leaves((Pair(a, (b,)), {"x": c, "y": (d,)}))] == [id(x) for x in (a, b, c, d)]
    assert [id(leaf) for leaf in leaves(a)] == [id(a)]
    assert leaves(()) == []


def test_a_tree_is_rebuilt_with_other_tensors() -> None:
    a, b, c, d = torch.arange(4.0).unbind()
    tree = (Pair(a, (b,)), {"x": c, "y": [d]})
    found = rebuild(tree, (leaf + 10 for leaf in leaves(tree)))
    assert isinstance(found[0], Pair) and found == (Pair(a + 10, (b + 10,)), {"x": c + 10, "y": (d + 10,)})


def test_what_is_detached_has_no_gradient() -> None:
    a = torch.ones(2, requires_grad=True)
    found = detached(Pair(a * 2, (a, a.sum())))
    assert isinstance(found, Pair) and not any(leaf.requires_grad for leaf in leaves(found))
    assert found.first.tolist() == [2.0, 2.0] and a.requires_grad
