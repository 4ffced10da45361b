from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import nn

from minerva.networks.heads import CategoricalHead, MultiCategoricalHead
from minerva.trainers.vmpo.discrete_policy import DiscretePolicy


def make_policy(**arguments: Any) -> DiscretePolicy:
    torch.manual_seed(0)
    return DiscretePolicy(5, CategoricalHead(3), (6, 4), (7,), **arguments)


def test_heads_start_as_the_continuous_policys_do() -> None:
    policy = make_policy()
    for head, size in ((policy.policy_logits, 4), (policy.value_head, 7)):
        bound = math.sqrt(6 / (head.in_features + head.out_features))  # Xavier's
        assert head.in_features == size and not head.bias.any() and 0.3 * bound < head.weight.abs().max() <= bound
    like_ppo = make_policy(ppo_like_backbone=True)
    for head, gain in ((like_ppo.policy_logits, 0.01), (like_ppo.value_head, 1.0)):
        weight = head.weight.detach()
        torch.testing.assert_close(weight @ weight.T, gain**2 * torch.eye(len(weight)), rtol=1e-4, atol=1e-7)
    assert [type(layer) for layer in like_ppo.policy_encoder] == [nn.Linear, nn.Tanh] * 2


def test_what_a_mask_forbids_has_no_probability_and_the_mask_is_not_seen() -> None:
    policy = make_policy(mask_dim=3)
    obs = torch.randn(2, 2)
    masks = torch.tensor([[1.0, 0.0, 1.0], [0.0, 0.0, 1.0]])
    rows = torch.cat([obs, masks], dim=1)
    *_, value = policy.forward_all(rows)
    (logits,) = policy(rows)
    assert torch.equal(logits.isinf(), masks == 0)
    free, _ = policy.forward_all(torch.cat([obs, torch.ones(2, 3)], dim=1))
    assert torch.equal(logits[masks > 0], free[masks > 0])
    assert torch.equal(value, policy.get_value(torch.cat([obs, torch.ones(2, 3)], dim=1)))
    actions = policy.choose((logits.repeat(200, 1),), False, torch.Generator().manual_seed(0))
    assert set(actions[::2, 0].tolist()) == {0.0, 2.0} and set(actions[1::2, 0].tolist()) == {2.0}


def test_actions_are_the_likeliest_or_sampled_from_the_generator_alone() -> None:
    policy = DiscretePolicy(2, MultiCategoricalHead([3, 2]))
    (logits,) = policy(torch.randn(4000, 2))
    logits = 0 * logits + torch.tensor([0.0, 1.0, -1.0, 0.5, 0.0])
    assert torch.equal(policy.choose((logits,), True, None), torch.tensor([[1.0, 0.0]]).expand(4000, -1))
    before = torch.random.get_rng_state()
    first, again = (policy.choose((logits,), False, torch.Generator().manual_seed(1)) for _ in range(2))
    assert torch.equal(torch.random.get_rng_state(), before) and torch.equal(first, again)
    for entry, part in ((0, slice(0, 3)), (1, slice(3, 5))):
        shares = torch.bincount(first[:, entry].long()) / 4000
        torch.testing.assert_close(shares, torch.softmax(logits[0, part], 0).detach(), rtol=0, atol=0.03)


def test_no_layer_is_an_error() -> None:
    with pytest.raises(ValueError, match="value_layer_sizes: must name at least one layer"):
        DiscretePolicy(2, CategoricalHead(2), (4,), ())
