from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from minerva.networks.actor_critic import ActorCritic, Architecture
from minerva.networks.heads import MultiCategoricalHead
from minerva.trainers.ppo.agent import Agent
from minerva.utils.running_norm import RunningNorm
from tests.objectives import oracle_ppo as oracle
from tests.trainers.ppo.samples import ACT, OBS, layers_of, make_agent

# The networks


def test_initialization() -> None:
    torch.manual_seed(0)
    agent = Agent(17, 6, (64, 32), (48,))
    for network, sizes, gains in (
        (agent.actor_mean, [(64, 17), (32, 64), (6, 32)], (math.sqrt(2), math.sqrt(2), 0.01)),
        (agent.critic, [(48, 17), (1, 48)], (math.sqrt(2), 1.0)),
    ):
        assert isinstance(network, nn.Sequential)
        linear = [layer for layer in network if isinstance(layer, nn.Linear)]
        assert [tuple(layer.weight.shape) for layer in linear] == sizes
        assert [type(layer) for layer in network if not isinstance(layer, nn.Linear)] == [nn.Tanh] * (len(sizes) - 1)
        for layer, gain in zip(linear, gains, strict=True):
            weight = layer.weight.detach()
            gram = weight @ weight.T if len(weight) <= weight.shape[1] else weight.T @ weight
            torch.testing.assert_close(gram, gain**2 * torch.eye(len(gram)), rtol=1e-4, atol=1e-5 * gain)
            assert not layer.bias.any()
    assert isinstance(agent.actor_logstd, nn.Parameter)
    assert torch.equal(agent.actor_logstd, torch.zeros(1, 6))
    assert isinstance(agent.obs_normalizer, RunningNorm) and agent.obs_normalizer.mean.shape == (17,)
    # Policy and critic share no weights.
    assert not {id(p) for p in agent.actor_mean.parameters()} & {id(p) for p in agent.critic.parameters()}


def test_log_std_starts_where_told_and_normalizing_is_optional() -> None:
    agent = Agent(3, 2, (4,), (4,), normalize_obs=False, log_std_init=-0.5)
    assert agent.actor_logstd.tolist() == [[-0.5, -0.5]]
    x = torch.randn(5, 3)
    assert isinstance(agent.obs_normalizer, nn.Identity)
    assert torch.equal(agent.get_value(x), agent.critic(x))


@pytest.mark.parametrize("name", ["policy_layer_sizes", "value_layer_sizes"])
@pytest.mark.parametrize("empty", [(), []])
def test_an_empty_layer_list_names_the_field(name: str, empty: Any) -> None:
    sizes = {"policy_layer_sizes": (4,), "value_layer_sizes": (4,), name: empty}
    with pytest.raises(ValueError, match=f"^{name}: "):
        Agent(3, 2, **sizes)


def test_methods_on_raw_observations_use_the_normalizer() -> None:
    agent = make_agent()
    assert isinstance(agent.obs_normalizer, RunningNorm)
    agent.obs_normalizer.update(torch.randn(100, OBS) * 5 + 20)
    raw = torch.randn(6, OBS) * 5 + 20
    obs = agent.obs_normalizer(raw)
    values = oracle.mlp(layers_of(agent.critic), obs.double().numpy())
    means = oracle.mlp(layers_of(agent.actor_mean), obs.double().numpy())
    np.testing.assert_allclose(agent.get_value(raw).detach().numpy(), values, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(agent.get_deterministic_action(raw).detach().numpy(), means, rtol=1e-4, atol=1e-5)
    actions = torch.randn(6, ACT)
    taken, log_prob, entropy, value = agent.get_action_and_value(raw, actions)
    std = agent.actor_logstd[0].detach().double().exp().numpy()
    assert taken is actions
    assert (log_prob.shape, entropy.shape, value.shape) == ((6,), (6,), (6, 1))
    expected = oracle.log_prob(means, std, actions.double().numpy())
    np.testing.assert_allclose(log_prob.detach().numpy(), expected, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(entropy.detach().numpy(), oracle.entropy(std), rtol=1e-5)
    np.testing.assert_allclose(value.detach().numpy(), values, rtol=1e-4, atol=1e-5)
    assert agent.get_value(raw).shape == (6, 1)


def test_raw_methods_can_be_differentiated() -> None:
    agent, raw = make_agent(), torch.randn(4, OBS)
    of_mean, of_critic = next(agent.actor_mean.parameters()), next(agent.critic.parameters())
    _, log_prob, entropy, value = agent.get_action_and_value(raw, torch.randn(4, ACT))
    for output, parameter in (
        (agent.get_value(raw), of_critic),
        (agent.get_deterministic_action(raw), of_mean),
        (log_prob, of_mean),
        (entropy, agent.actor_logstd),
        (value, of_critic),
    ):
        (gradient,) = torch.autograd.grad(output.sum(), parameter)
        assert gradient.abs().sum() > 0


def test_sampled_actions_have_the_mean_and_deviation_of_the_policy() -> None:
    agent = make_agent()
    raw = torch.randn(1, OBS).expand(40_000, OBS)
    action, log_prob, _, _ = agent.get_action_and_value(raw)
    assert action.shape == (40_000, ACT) and not action.requires_grad
    torch.testing.assert_close(action.mean(0), agent.get_deterministic_action(raw)[0], rtol=0.0, atol=0.03)
    torch.testing.assert_close(action.std(0), agent.actor_logstd[0].exp(), rtol=0.03, atol=0.0)
    assert torch.equal(log_prob, agent.get_action_and_value(raw, action).log_prob)


def test_acting_draws_from_the_generator_given_and_no_other() -> None:
    agent, obs = make_agent(normalize_obs=False), torch.randn(4, OBS)

    def act(seed: int) -> torch.Tensor:
        return agent.act_recurrent(obs, agent.initial_state(4), False, torch.Generator().manual_seed(seed))[0]

    before = torch.random.get_rng_state()
    first = act(1)
    assert torch.equal(first, act(1)) and not torch.equal(first, act(2))
    assert torch.equal(torch.random.get_rng_state(), before) and not first.requires_grad
    means = oracle.mlp(layers_of(agent.actor_mean), obs.double().numpy())
    std = agent.actor_logstd[0].detach().double().exp().numpy()
    noise = torch.randn(4, ACT, generator=torch.Generator().manual_seed(1)).double().numpy()
    np.testing.assert_allclose(first.numpy(), means + std * noise, rtol=1e-5, atol=1e-6)


def test_only_a_gaussian_has_a_deviation() -> None:
    policy = ActorCritic(MultiCategoricalHead([3]), Architecture((4,), (4,)), OBS)
    with pytest.raises(AttributeError, match="actor_logstd"):
        _ = Agent(OBS, 1, policy=policy).actor_logstd


def test_with_a_recurrent_core_the_networks_named_are_the_heads() -> None:
    architecture = Architecture((4,), (4,), lstm_units=4)  # hidden layers and head would fit together without it
    agent = Agent(OBS, ACT, policy=ActorCritic(MultiCategoricalHead([3]), architecture, OBS))
    assert agent.actor_mean is agent.policy.policy_head and agent.critic is agent.policy.value_head
