from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parameters_to_vector

from minerva.acceleration.flat import CpuCopy, FlatModule
from minerva.networks.actor_critic import ActorCritic, Architecture
from minerva.networks.heads import GaussianHead


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


class Tied(nn.Module):
    """One weight in two places, and one that is frozen."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.fixed = nn.Linear(3, 3), nn.Linear(3, 3), nn.Linear(3, 3)
        self.second.weight = self.first.weight
        self.fixed.requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.fixed(self.second(torch.tanh(self.first(x))))
        return y


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
    kept, parameters = flat.vector.clone(), list(flat.module.parameters())
    x, shift = torch.randn(5, 3), torch.tensor([1.0, -1.0])
    vector = parameters_to_vector(other.parameters()).detach().requires_grad_()
    with flat.at(vector) as module:
        assert module is flat.module
        found = module(x, shift)
    assert torch.equal(found, other(x, shift))
    assert torch.equal(flat.vector, kept)
    assert all(a is b for a, b in zip(flat.module.parameters(), parameters, strict=True))
    (gradient,) = torch.autograd.grad(found.square().sum(), vector)
    other(x, shift).square().sum().backward()
    expected = torch.cat([p.grad.reshape(-1) for p in other.parameters() if p.grad is not None])
    torch.testing.assert_close(gradient, expected)


def test_calls_with_other_vectors_may_be_nested_and_fail() -> None:
    flat = FlatModule(Small())
    x, shift = torch.randn(5, 3), torch.zeros(2)
    parameters = list(flat.module.parameters())
    first, second = (torch.randn_like(flat.vector) for _ in range(2))
    with flat.at(first):
        expected = flat.module(x, shift)
        with pytest.raises(KeyError), flat.at(second):
            assert not torch.equal(flat.module(x, shift), expected)
            raise KeyError
        assert torch.equal(flat.module(x, shift), expected)
    assert all(a is b for a, b in zip(flat.module.parameters(), parameters, strict=True))


def test_the_module_is_differentiated_by_its_own_parameters_or_by_views() -> None:
    flat = FlatModule(Small())
    own = flat.leaves(flat.vector)
    assert all(a is b for a, b in zip(own, flat.module.parameters(), strict=True))
    other = flat.vector.clone()
    views = flat.leaves(other)
    assert all(view.requires_grad and view.is_leaf for view in views) and not other.requires_grad
    assert [view.shape for view in views] == [parameter.shape for parameter in own]
    other.fill_(7)
    assert all((view == 7).all() for view in views)


def test_a_copy_is_tied_to_a_vector_of_its_own() -> None:
    flat = FlatModule(Small())
    kept = flat.vector.clone()
    twin = copy.deepcopy(flat)
    twin.vector.add_(1)
    assert torch.equal(twin.vector, parameters_to_vector(twin.module.parameters()))
    assert torch.equal(twin.vector, kept + 1)
    assert torch.equal(flat.vector, kept) and torch.equal(parameters_to_vector(flat.module.parameters()), kept)
    # And it holds other vectors in its own module.
    before = [parameter.clone() for parameter in flat.module.parameters()]
    with twin.at(torch.zeros_like(kept)) as module:
        assert module is twin.module and not module.first.weight.any()
        assert all(torch.equal(a, b) for a, b in zip(flat.module.parameters(), before, strict=True))


def test_a_weight_in_two_places_is_one_and_a_frozen_one_is_left_out() -> None:
    torch.manual_seed(0)
    module = Tied()
    before = copy.deepcopy(module)
    flat = FlatModule(module)
    assert flat.names == ["first.weight", "first.bias", "second.bias"] and flat.vector.shape == (15,)
    x, vector = torch.randn(4, 3), torch.randn(15)
    with flat.at(vector):
        found = module(x)
    weight, first, second = vector[:9].view(3, 3), vector[9:12], vector[12:]
    expected = before.fixed(torch.tanh(x @ weight.T + first) @ weight.T + second)
    torch.testing.assert_close(found, expected)
    for name in ("first", "second"):
        assert module.get_submodule(name).weight is module.first.weight
    flat.vector.zero_()
    assert not module.second.weight.any() and torch.equal(module.fixed.weight, before.fixed.weight)
    # A copy has the same ties.
    twin = copy.deepcopy(flat)
    assert twin.module.second.weight is twin.module.first.weight is not module.first.weight
    twin.vector.fill_(2)
    assert (twin.module.second.weight == 2).all() and not module.second.weight.any()


def test_a_target_network_has_its_frozen_parameters_in_the_vector() -> None:
    module = Small().requires_grad_(False)
    flat = FlatModule(module, frozen=True)
    assert torch.equal(flat.vector, parameters_to_vector(module.parameters())) and len(flat.vector) == 27
    assert not any(parameter.requires_grad for parameter in module.parameters())


def test_one_value_for_each_parameter() -> None:
    found = FlatModule(Small()).fill_by_prefix({"first": 1.0, "second.weight": 2.0, "second.bias": 3.0, "gain": 4.0})
    # The module's own parameters come before those of its parts.
    assert found.tolist() == [4.0] + [1.0] * 16 + [2.0] * 8 + [3.0] * 2
    with pytest.raises(ValueError, match="unpack"):
        FlatModule(Small()).fill_by_prefix({"first": 1.0, "second": 2.0})


def test_on_the_cpu_no_copy_is_made() -> None:
    module = Small()
    copied = CpuCopy(module)
    assert copied.module is module
    copied.invalidate()
    copied.refresh()
    assert copied.module is module


@pytest.mark.parametrize("recurrent", [False, True])
def test_a_copy_takes_over_each_parameter_by_its_name(recurrent: bool) -> None:
    # As on a GPU, where the learning module is another one; the vector has an order of its own.
    architecture = Architecture((16, 16), (16,), lstm_units=8 if recurrent else None)
    learning, acting = (ActorCritic(GaussianHead(3), architecture, 5) for _ in range(2))
    copied = CpuCopy(learning, wanted=False)
    copied.module, copied._flat = acting, FlatModule(acting, frozen=True)
    copied.refresh()
    name = "policy_head.weight"
    assert not torch.equal(acting.get_parameter(name), learning.get_parameter(name))  # nothing was learned yet
    copied.invalidate()
    copied.refresh()
    for name, parameter in learning.named_parameters():
        assert torch.equal(acting.get_parameter(name), parameter), name
