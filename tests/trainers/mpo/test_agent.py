from __future__ import annotations

import copy
import math

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.distributions import Independent, Normal

from minerva.networks.action_critic import Critic as NetworksCritic
from minerva.networks.diagonal_gaussian import DiagonalGaussianPolicy as NetworksPolicy
from minerva.trainers.actor import Actor
from minerva.trainers.mpo.agent import Critic, DiagonalGaussianPolicy, MPOAgent
from minerva.trainers.mpo.config import MPOConfig
from tests.trainers.mpo.small_agent import ACT, HIGH, LOW, OBS, ROWS, make_agent, state_of, transitions
from tests.trainers.ppo.small_run import same

# The agent at the start


def test_networks_at_the_start() -> None:
    torch.manual_seed(0)
    agent = MPOAgent(OBS, ACT, LOW, HIGH, "cpu", [8, 5], [7])
    assert agent.config.policy_layer_sizes == (8, 5) and agent.config.critic_layer_sizes == (7,)
    assert Critic is NetworksCritic and DiagonalGaussianPolicy is NetworksPolicy
    assert next(agent.policy.encoder.parameters()).shape == (8, OBS)
    assert next(agent.q.encoder.parameters()).shape == (7, OBS + ACT)
    for network in (agent.policy, agent.q):
        np.testing.assert_array_equal(network.action_low, LOW)
        np.testing.assert_array_equal(network.action_high, HIGH)
    for online, target in ((agent.policy, agent.policy_target), (agent.q, agent.q_target)):
        assert same(online.state_dict(), target.state_dict())
        assert all(parameter.requires_grad for parameter in online.parameters())
        assert not any(parameter.requires_grad for parameter in target.parameters())
        assert next(online.parameters()).data_ptr() != next(target.parameters()).data_ptr()
    assert isinstance(agent.obs_normalizer, nn.Identity)


def test_duals_at_the_start() -> None:
    agent = MPOAgent(OBS, ACT, LOW, HIGH)
    # The parameters, before the softplus.
    assert agent.log_temperature.item() == 1.0
    assert agent.log_alpha_mean.tolist() == [10.0] * ACT and agent.log_alpha_stddev.tolist() == [1000.0] * ACT
    agent = MPOAgent(
        OBS,
        ACT,
        LOW,
        HIGH,
        temperature_init=-3.0,
        lambda_init=0.7,
        init_log_alpha_mean=None,
        init_log_alpha_stddev=None,
    )
    assert agent.log_temperature.item() == -3.0
    for parameter in (agent.log_alpha_mean, agent.log_alpha_stddev):
        assert nn.functional.softplus(parameter).tolist() == pytest.approx([0.7] * ACT, rel=1e-6)
    agent = MPOAgent(OBS, ACT, LOW, HIGH, temperature_init=-50.0, lambda_init=1e-12, init_log_alpha_mean=None)
    assert agent.log_temperature.item() == -18.0 and agent.log_alpha_mean.tolist() == [-18.0] * ACT


def test_settings_come_from_a_config_and_from_fields_on_top_of_it() -> None:
    config = MPOConfig(gamma=0.5, policy_layer_sizes=(4,))
    agent = MPOAgent(OBS, ACT, -1.0, 1.0, config=config, q_lr=0.1)
    assert (agent.config.gamma, agent.config.q_lr, agent.config.policy_layer_sizes) == (0.5, 0.1, (4,))
    with pytest.raises(ValueError, match=r"^gama: not a setting of MPOConfig\. Did you mean gamma"):
        MPOAgent(OBS, ACT, -1.0, 1.0, gama=0.9)


# Acting


def log_density(mean: Tensor, log_std: Tensor, actions: Tensor) -> Tensor:
    policy = Independent(Normal(mean.double(), log_std.double().exp()), 1)
    density: Tensor = policy.log_prob(actions.double())  # type: ignore[no-untyped-call]
    return density


@pytest.mark.parametrize("shape", [(OBS,), (1, OBS), (7, OBS)])
@pytest.mark.parametrize("deterministic", [False, True])
def test_acting(shape: tuple[int, ...], deterministic: bool) -> None:
    agent = make_agent()
    obs = np.random.default_rng(0).normal(size=shape)
    state = agent.generator.get_state()
    executed, raw, log_prob = agent.act_with_logp(obs, deterministic)
    assert all(isinstance(part, np.ndarray) and part.dtype == np.float32 for part in (executed, raw, log_prob))
    assert executed.shape == raw.shape == (*shape[:-1], ACT) and log_prob.shape == (*shape[:-1], 1)
    np.testing.assert_array_equal(executed, np.clip(raw, LOW, HIGH).astype(np.float32))
    with torch.no_grad():
        mean, log_std = agent.policy(torch.as_tensor(obs, dtype=torch.float32))
    expected = log_density(mean, log_std, torch.from_numpy(raw)).numpy()
    np.testing.assert_allclose(log_prob[..., 0], expected, rtol=1e-5, atol=1e-5)
    assert np.array_equal(raw, mean.numpy()) == deterministic

    agent.generator.set_state(state)
    assert np.array_equal(agent.act(obs, deterministic), executed)
    agent.generator.set_state(state)
    tensors = agent.act_with_logp(torch.from_numpy(obs), deterministic)  # tensors give tensors
    for tensor, array in zip(tensors, (executed, raw, log_prob), strict=True):
        assert isinstance(tensor, Tensor) and not tensor.requires_grad and np.array_equal(tensor.numpy(), array)
    again = agent.act(obs, deterministic)
    assert np.array_equal(again, executed) == deterministic


def test_actions_follow_the_policy() -> None:
    agent = make_agent()
    obs = torch.randn(1, OBS).expand(20_000, OBS)
    executed, raw, _ = agent.act_with_logp(obs)
    with torch.no_grad():
        mean, log_std = agent.policy(obs[:1])
    torch.testing.assert_close(raw.mean(0), mean[0], atol=0.05, rtol=0)
    torch.testing.assert_close(raw.std(0), log_std[0].exp(), atol=0, rtol=0.03)
    assert ((executed >= torch.from_numpy(LOW)) & (executed <= torch.from_numpy(HIGH))).all()
    assert (raw != executed).any()


def test_acting_with_another_generator_leaves_the_agents_own_alone() -> None:
    agent = make_agent()
    obs, state, nothing = torch.randn(4, OBS), agent.generator.get_state(), agent.initial_state(4)
    assert nothing.shape == (4, 0) and agent.state_dim == 0
    generator = torch.Generator().manual_seed(3)
    sampled, _ = agent.act_recurrent(obs, nothing, deterministic=False, generator=generator)
    assert torch.equal(agent.generator.get_state(), state)
    agent.generator.manual_seed(3)
    _, raw, _ = agent.act_with_logp(obs)
    assert torch.equal(raw, sampled)
    agent.generator.set_state(state)
    assert torch.equal(
        agent.act_recurrent(obs, nothing, deterministic=True)[0], agent.act_with_logp(obs, deterministic=True)[1]
    )
    assert torch.equal(agent.generator.get_state(), state)


NOTHING = np.zeros((6, 0), np.float32)  # a policy that is not recurrent has no state


def seeded_actor(agent: MPOAgent) -> Actor:
    actor = Actor(agent.policy, seed=3, log_probs=True)
    actor.generator.manual_seed(7)
    return actor


@pytest.mark.formula(
    "minerva.trainers.actor",
    r"\log b(a) = \sum_j \left( -\tfrac12 \xi_j^2 - \log \sigma_j \right) - \tfrac{A}{2} \log 2\pi",
)
def test_the_actor_equals_the_policy_before_and_after_an_update() -> None:
    agent = make_agent()
    actor = seeded_actor(agent)
    noise = torch.Generator().manual_seed(7)
    obs = np.random.default_rng(0).normal(size=(6, OBS)).astype(np.float32)
    means = []
    for seed in range(3):
        raw, state, log_probs = actor(obs, NOTHING, NOTHING)
        assert raw.dtype == log_probs.dtype == np.float32 and raw.shape == (6, ACT) and log_probs.shape == (6,)
        assert state.shape == (6, 0)
        with torch.no_grad():
            mean, log_std = agent.policy(torch.from_numpy(obs))
            expected = mean + log_std.exp() * torch.randn((6, ACT), generator=noise)
        np.testing.assert_allclose(raw, expected, rtol=1e-5, atol=1e-5)
        expected = log_density(mean, log_std, torch.from_numpy(raw))
        np.testing.assert_allclose(log_probs, expected.numpy(), rtol=1e-4, atol=1e-4)
        means.append(mean)
        assert agent.update(transitions(seed)) is not None
        actor.invalidate()
    assert (means[0] != means[1]).all() and (means[1] != means[2]).all()


def test_what_the_actor_returned_is_not_overwritten_by_its_next_call() -> None:
    actor = seeded_actor(make_agent())
    obs = np.zeros((6, OBS), np.float32)
    first = actor(obs, NOTHING, NOTHING)
    kept = [part.copy() for part in first]
    actor(obs, NOTHING, NOTHING)
    assert all(np.array_equal(part, other) for part, other in zip(first, kept, strict=True))


def test_the_actors_log_std_is_clamped_and_bad_outputs_become_0() -> None:
    agent = make_agent()
    actor = seeded_actor(agent)
    with torch.no_grad():
        agent.policy.policy_logstd.bias.copy_(torch.tensor([1e4, math.inf]))
        agent.policy.policy_mean.bias.copy_(torch.tensor([math.nan, -math.inf]))
    raw, _, log_probs = actor(np.zeros((6, OBS), np.float32), NOTHING, NOTHING)
    noise = torch.randn((6, ACT), generator=torch.Generator().manual_seed(7))
    np.testing.assert_allclose(raw, noise * torch.tensor([math.exp(2), 1.0]), rtol=1e-6)
    np.testing.assert_allclose(log_probs, -0.5 * (noise**2).sum(-1) - 2 - math.log(2 * math.pi), rtol=1e-5)


# Saving


def test_an_agent_goes_on_from_its_saved_state() -> None:
    agent, other = make_agent(), make_agent(seed=5)
    for seed in range(2):
        agent.update(transitions(seed))
    with pytest.warns(RuntimeWarning):
        agent.update({**transitions(), "rewards": np.full((ROWS, 1), math.nan)})
    other.load_state_dict(agent.state_dict())
    other.load_optimizer_state(agent.optimizer_state())
    other.generator.set_state(agent.generator.get_state())
    assert other.skipped.item() == 1 and other.state.q.steps.item() == 2
    assert agent.update(transitions(2)) == other.update(transitions(2))
    assert same(state_of(agent), state_of(other))
    saved = agent.optimizer_state()
    agent.update(transitions(3))
    assert torch.equal(saved["policy.average"], other.state.policy.average)  # a copy


def test_a_copy_learns_as_the_agent_does_and_apart_from_it() -> None:
    agent = make_agent(target_networks_update_period=2)
    agent.update(transitions(0))
    twin = copy.deepcopy(agent)
    kept = state_of(agent)
    for seed in (1, 2):
        twin.update(transitions(seed))
    assert same(state_of(agent), kept)
    for seed in (1, 2):
        agent.update(transitions(seed))
    assert same(state_of(agent), state_of(twin))
    obs = np.zeros((2, OBS))
    assert np.array_equal(agent.act(obs, deterministic=True), twin.act(obs, deterministic=True))
