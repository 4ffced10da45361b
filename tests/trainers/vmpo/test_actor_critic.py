from __future__ import annotations

from typing import Any

import pytest
import torch

from minerva.networks.heads import CategoricalHead
from minerva.trainers.vmpo.actor_critic import ActorCritic
from minerva.trainers.vmpo.discrete_policy import DiscretePolicy
from minerva.trainers.vmpo.gaussian_mlp_policy import SquashedGaussianPolicy

MEMORIES: list[dict[str, Any]] = [
    {"lstm_units": 4},
    {"lstm_units": 4, "shared_encoder": True},
    {"lstm_units": 4, "lstm_layer_norm": True, "ppo_like_backbone": True},
]


def make_policy(discrete: bool, **arguments: Any) -> ActorCritic:
    torch.manual_seed(0)
    sizes: dict[str, Any] = {"policy_layer_sizes": (6, 5), "value_layer_sizes": (7,)}
    policy: ActorCritic
    if discrete:
        policy = DiscretePolicy(3, CategoricalHead(4), **sizes, **arguments)
    else:
        policy = SquashedGaussianPolicy(3, 2, **sizes, **arguments)
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter.add_(torch.randn(parameter.shape), alpha=0.3)
    return policy


@pytest.mark.parametrize("discrete", [False, True])
@pytest.mark.parametrize("arguments", MEMORIES)
def test_a_sequence_is_seen_as_step_by_step_over_the_ends_of_episodes(
    arguments: dict[str, Any], discrete: bool
) -> None:
    policy = make_policy(discrete, **arguments)
    obs, starts = torch.randn(9, 2, 3), torch.zeros(9, 2)
    starts[4, 0] = starts[0, 1] = starts[7, 1] = 1
    state = first = torch.randn(2, policy.state_dim)
    with torch.no_grad():
        whole = policy.look(obs, state, starts)
        for t in range(9):
            one = policy.look(obs[t : t + 1], state, starts[t : t + 1])
            for a, b in zip((*one.parameters, one.value), (*whole.parameters, whole.value), strict=True):
                torch.testing.assert_close(a[0], b[t], rtol=0, atol=1e-6)
            state = one.state
            if starts[t].any():  # the first of an episode is all that it knows of
                fresh = policy.forward_all(obs[t])
                for a, b in zip((*whole.parameters, whole.value), fresh, strict=True):
                    torch.testing.assert_close(a[t][starts[t] > 0], b[starts[t] > 0], rtol=0, atol=1e-6)
    torch.testing.assert_close(state, whole.state, rtol=0, atol=1e-6)
    assert not torch.allclose(whole.value[0, 0], policy.get_value(obs[0])[0])  # the state before it mattered
    assert policy.state_dim == (8 if policy.shared_encoder else 16) and first.shape == state.shape


@pytest.mark.parametrize("arguments", [{}, *MEMORIES])
def test_rows_alone_are_each_the_first_of_an_episode(arguments: dict[str, Any]) -> None:
    policy = make_policy(discrete=False, **arguments)
    obs = torch.randn(2, 5, 3)
    mean, log_std, value = policy.forward_all(obs)
    assert mean.shape == log_std.shape == (2, 5, 2) and value.shape == (2, 5, 1)
    assert torch.equal(policy.get_value(obs), value)
    for found, expected in zip(policy(obs), (mean, log_std), strict=True):
        assert torch.equal(found, expected)
    torch.testing.assert_close(policy.forward_all(obs[1, 3])[0], mean[1, 3])
    torch.testing.assert_close(policy.forward_all(obs.flatten(0, 1))[2], value.flatten(0, 1))


def test_a_shared_memory_is_one_module_with_one_set_of_names() -> None:
    policy = make_policy(discrete=True, lstm_units=4, shared_encoder=True)
    assert policy.value_memory is policy.policy_memory and policy.value_encoder is policy.policy_encoder
    assert not [name for name in policy.state_dict() if name.startswith(("value_encoder", "value_memory"))]
    apart = make_policy(discrete=True, lstm_units=4)
    names = [name for name, _ in apart.named_parameters()]
    assert all(name.startswith(("policy_", "value_")) for name in names)
    assert {"policy_memory.weight_x", "value_memory.weight_x"} <= set(names)


def test_without_a_memory_the_state_is_handed_on() -> None:
    policy = make_policy(discrete=True)
    obs, state = torch.randn(4, 2, 3), torch.zeros(2, 0)
    found = policy.look(obs, state, torch.zeros(4, 2))
    assert policy.state_dim == 0 and found.state is state
    assert torch.equal(found.value, policy.get_value(obs))
