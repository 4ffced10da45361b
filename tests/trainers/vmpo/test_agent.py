from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import Space, spaces
from torch import Tensor, nn

from minerva.storage.rollout import RolloutBuffer
from minerva.trainers.actor import Actor
from minerva.trainers.vmpo.agent import VMPOAgent
from minerva.trainers.vmpo.batch import make_batch
from minerva.utils.running_norm import RunningNorm
from minerva.utils.seeding import torch_generator
from tests.objectives import oracle_ppo, oracle_vmpo
from tests.trainers.acting import on_tensors
from tests.trainers.vmpo.small_agent import (
    ACT,
    HIGH,
    LOW,
    OBS,
    as_dict,
    gaussian,
    make_agent,
    make_data,
    make_discrete_agent,
)

NOT_RECURRENT = torch.zeros(5, 0), torch.zeros(5)


def chosen(agent: VMPOAgent, raw: Tensor, seed: int | None = None) -> Tensor:
    """The most likely actions at the start of episodes, or sampled ones."""
    generator = None if seed is None else torch.Generator().manual_seed(seed)
    return agent.act_recurrent(raw, agent.initial_state(len(raw)), seed is None, generator)[0]


# The agent


def test_dual_variables_start_where_told() -> None:
    agent = make_agent(temperature_init=0.3)
    for parameter, value in ((agent.log_temperature, 0.3), (agent.log_alpha_mu, 1.0), (agent.log_alpha_sigma, 1.0)):
        assert isinstance(parameter, nn.Parameter) and parameter.shape == ()
        assert nn.functional.softplus(parameter).item() == pytest.approx(value, rel=1e-5)


def test_fields_are_the_configs() -> None:
    agent = VMPOAgent(OBS, ACT, -1.0, 1.0, gamma=0.9)
    assert (agent.config.gamma, agent.config.policy_lr, agent.config.topk_fraction) == (0.9, 5e-4, 0.5)
    assert isinstance(agent.obs_normalizer, RunningNorm)
    assert isinstance(make_agent(normalize_obs=False).obs_normalizer, nn.Identity)
    with pytest.raises(ValueError, match=r"gama: not a setting of VMPOConfig. Did you mean gamma"):
        VMPOAgent(OBS, ACT, -1.0, 1.0, gama=0.9)
    with pytest.raises(ValueError, match="action_low: must be finite"):
        VMPOAgent(OBS, ACT, -np.inf, 1.0)


def test_acting_in_one_observation_or_many() -> None:
    agent = make_agent()
    assert isinstance(agent.obs_normalizer, RunningNorm)
    agent.obs_normalizer.update(torch.randn(100, OBS) * 5 + 20)
    raw = torch.randn(6, OBS) * 5 + 20
    mean, log_std, value = agent.policy.forward_all(agent.obs_normalizer(raw))
    found = agent.act(raw, deterministic=True)
    for x, expected in zip(found, (gaussian(agent).head.squash(mean), value, mean, log_std), strict=True):
        torch.testing.assert_close(x, expected.detach())
    torch.testing.assert_close(agent.value(raw), value.detach())
    torch.testing.assert_close(chosen(agent, raw), found[0])
    single = agent.act(raw[2], deterministic=True)
    assert [tuple(x.shape) for x in single] == [(ACT,), (1,), (ACT,), (ACT,)]
    for one, many in zip(single, found, strict=True):
        torch.testing.assert_close(one, many[2])
    arrays = agent.act(raw.numpy(), deterministic=True)
    assert all(isinstance(x, np.ndarray) for x in (*arrays, agent.value(raw.numpy())))
    np.testing.assert_array_equal(arrays[0], found[0].numpy())
    # Sampled: from the generator alone.
    first = agent.act(raw, generator=torch.Generator().manual_seed(1))[0]
    assert torch.equal(first, chosen(agent, raw, seed=1))
    assert not torch.equal(first, found[0])


@pytest.mark.parametrize("fields", [{}, {"shared_encoder": True}, {"ppo_like_backbone": True}])
def test_the_actor_of_a_rollout_acts_as_the_policy_does_whatever_was_written_to_it(fields: dict[str, Any]) -> None:
    agent, obs = make_agent(**fields, policy_lr=0.1), torch.randn(5, OBS)
    act = on_tensors(Actor(agent.policy, 1))
    reference = torch_generator(1, "action_noise")

    def check() -> Tensor:
        with torch.no_grad():
            mean, log_std = agent.policy(obs)
            expected, _ = gaussian(agent).sample_action(mean, log_std, False, reference)
        found, _ = act(obs, *NOT_RECURRENT)
        assert found.dtype == torch.float32
        torch.testing.assert_close(found, expected)
        return found

    before = torch.random.get_rng_state()
    first = check()
    assert torch.equal(torch.random.get_rng_state(), before)
    agent.update(make_data(agent))
    assert not torch.equal(check(), first)
    agent.load_state_dict(make_agent(seed=5, **fields).state_dict())
    check()
    with torch.no_grad():
        for parameter in gaussian(agent).policy_logstd_parameters():
            parameter.fill_(50.0)  # clamped
    check()


@pytest.mark.formula(
    "minerva.networks.heads.GaussianHead.sample_numpy", r"a = \mu + \sigma \xi, \quad \xi \sim \mathcal{N}(0, I)"
)
@pytest.mark.formula("minerva.networks.heads.SquashedGaussianHead.numpy_sampler.sample", r"a_j = c_j + h_j \tanh(u_j)")
@pytest.mark.parametrize("ppo_like_backbone", [False, True])
def test_the_actor_of_a_rollout_squashes_noise_around_the_mean_of_the_oracles_network(ppo_like_backbone: bool) -> None:
    agent, obs = make_agent(ppo_like_backbone=ppo_like_backbone), torch.randn(5, OBS)
    found, _ = on_tensors(Actor(agent.policy, 1))(obs, *NOT_RECURRENT)
    networks = {name: value.detach().double().numpy() for name, value in agent.policy.named_parameters()}
    settings = oracle_vmpo.Settings(ppo_like_backbone=ppo_like_backbone)
    mean, log_std, _ = oracle_vmpo.forward(networks, obs.double().numpy(), settings)
    noise = torch.randn(5, ACT, generator=torch_generator(1, "action_noise")).double().numpy()
    share = 1 / (1 + np.exp(-2 * (mean + np.exp(log_std) * noise)))  # (1 + tanh u) / 2
    np.testing.assert_allclose(found.numpy(), LOW + (HIGH - LOW) * share, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("ppo_like_backbone", [False, True])
def test_one_observation_is_acted_on_like_a_batch_of_one(ppo_like_backbone: bool) -> None:
    agent = VMPOAgent(3, 2, -1.0, 1.0, ppo_like_backbone=ppo_like_backbone)
    obs = np.array([0.1, -0.2, 0.3], np.float32)
    one, batch = agent.act(obs, deterministic=True), agent.act(obs[None], deterministic=True)
    for a, b in zip(one, batch, strict=True):
        assert a.shape == b.shape[1:]
        np.testing.assert_allclose(a, b[0], rtol=1e-6)


def test_acting_and_updating_see_the_same_observations() -> None:
    # An agent of its own has a normalizer too: both must go through it, or neither.
    agent = VMPOAgent(1, 1, -1.0, 1.0, policy_layer_sizes=(4,), value_layer_sizes=(4,))
    seen: list[torch.Tensor] = []
    agent.policy.value_encoder.register_forward_pre_hook(lambda module, inputs: seen.append(inputs[0].reshape(-1)[0]))
    agent.value(np.array([[100.0]], np.float32))
    rows = {"actions": 0.1, "old_means": 0.0, "old_log_stds": 0.0, "returns": 1.0, "advantages": 1.0}
    batch = {name: np.full((4, 1), value, np.float32) for name, value in rows.items()}
    agent.update({"obs": np.full((4, 1), 100.0, np.float32), **batch})
    assert len(seen) > 1 and len({round(float(x), 4) for x in seen}) == 1
    with pytest.warns(RuntimeWarning, match="skipped"):
        assert agent.update({"obs": np.full((4, 1), np.inf, np.float32), **batch}) is None


# Discrete actions, and recurrent policies


@pytest.mark.parametrize("space", [spaces.Discrete(3), spaces.MultiDiscrete([3, 2]), spaces.MultiBinary(4)])
def test_discrete_actions_come_with_their_logits(space: Space[Any]) -> None:
    agent = make_discrete_agent(space)
    raw = torch.randn(5, OBS)
    action, value, logits = agent.act(raw, deterministic=True)
    assert torch.equal(action, agent.policy.head.mode((logits,))) and torch.equal(action, chosen(agent, raw))
    torch.testing.assert_close(value, agent.value(raw))
    single = agent.act(raw[3].numpy(), deterministic=True)
    assert all(isinstance(part, np.ndarray) for part in single) and single[0].shape == action[3].shape
    np.testing.assert_allclose(single[2], logits[3].numpy(), rtol=1e-5)
    sampled = agent.act(raw, generator=torch.Generator().manual_seed(1))[0]
    assert torch.equal(sampled, chosen(agent, raw, seed=1))


@pytest.mark.parametrize("fields", [{}, {"lstm_units": 3}, {"lstm_units": 3, "shared_encoder": True}])
@pytest.mark.parametrize("space", [None, spaces.Discrete(3), spaces.MultiDiscrete([3, 2]), spaces.MultiBinary(4)])
def test_the_actor_of_a_rollout_steps_as_the_policy_does(space: Space[Any] | None, fields: dict[str, Any]) -> None:
    agent = make_agent(**fields) if space is None else make_discrete_agent(space, **fields)
    act = on_tensors(Actor(agent.policy, 1))
    reference = torch_generator(1, "action_noise")
    state = torch.randn(5, agent.state_dim)
    for starts in (torch.zeros(5), torch.tensor([0.0, 1.0, 0.0, 0.0, 1.0])):
        obs = torch.randn(5, OBS)
        with torch.no_grad():
            params, _, after = agent.policy.forward_sequence(obs[None], state, starts[None])
        noise = agent.policy.head.draw_noise((5,), reference, obs)
        expected = agent.policy.head.sample(tuple(part[0] for part in params), noise)
        found, state = act(obs, state, starts)
        torch.testing.assert_close(found, expected)
        torch.testing.assert_close(state, after)
        assert found.dtype == state.dtype == torch.float32


def test_choices_of_a_recurrent_policy_depend_on_what_was_seen() -> None:
    agent = make_agent(lstm_units=4)
    raw = torch.randn(3, OBS)
    first, state = agent.act_recurrent(raw, agent.initial_state(3), deterministic=True)
    second, _ = agent.act_recurrent(raw, state, deterministic=True)
    torch.testing.assert_close(first, agent.act(raw, deterministic=True)[0])
    assert agent.state_dim == 16 and not torch.allclose(first, second)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            {"act_dim": 2, "action_space": spaces.Discrete(3)},
            r"act_dim: must be 1 for Discrete\(3\), got 2",
        ),
        (
            {"action_space": spaces.Discrete(3), "action_low": -1.0},
            "action_space: stands in place of action_low and action_high; give one or the other",
        ),
        (
            {"action_space": spaces.Discrete(3), "mask_dim": 2},
            r"mask_dim: must be 0 or 3 for Discrete\(3\), got 2",
        ),
        (
            {"action_space": spaces.MultiBinary(1), "mask_dim": 2},
            "mask_dim: must be 0 for MultiBinary",
        ),
        ({"mask_dim": 2}, "mask_dim: needs a discrete action_space, got 2 without one"),
        ({"action_space": spaces.Text(3)}, "action space: must be a Box, Discrete, MultiDiscrete or MultiBinary"),
        ({"action_space": spaces.Box(-np.inf, np.inf, (1,))}, "action_low: must be finite"),
    ],
)
def test_action_spaces_that_do_not_fit(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        VMPOAgent(**{"obs_dim": 4, "act_dim": 1, **arguments})


def test_a_box_may_stand_for_its_bounds() -> None:
    policy = gaussian(VMPOAgent(OBS, ACT, action_space=spaces.Box(LOW, HIGH)))
    np.testing.assert_array_equal(policy.action_low.numpy(), LOW)
    np.testing.assert_array_equal(policy.action_high.numpy(), HIGH)


# The batch of a rollout


@pytest.mark.formula("minerva.trainers.on_policy", r"A_t = \delta_t", r"R_t = A_t + V(s_t)")
@pytest.mark.parametrize("estimator", ["returns", "dae", "gae"])
def test_batch_of_a_rollout_against_the_oracle(estimator: str) -> None:
    agent = make_agent(advantage_estimator=estimator, gamma=0.9, gae_lambda=0.8)
    torch.manual_seed(0)
    rollout = RolloutBuffer(9, 2, OBS, ACT, torch.device("cpu"))
    rollout.begin(torch.randn(2, OBS))
    act = on_tensors(Actor(agent.policy, 0))
    for t in range(9):
        terminated, truncated, restarting = torch.zeros(2), torch.zeros(2), torch.zeros(2)
        terminated[0], truncated[1] = float(t in (3, 8)), float(t == 5)
        restarting[0], restarting[1] = float(t == 4), float(t == 6)
        rewards = torch.randn(2) * (1 - restarting)
        actions, _ = act(rollout.obs[t], rollout.recurrent_state, rollout.episode_starts[t])
        rollout.add(actions, torch.randn(2, OBS), rewards, terminated, truncated, restarting)
    batch = as_dict(make_batch(agent.policy, rollout, agent.config), agent)
    networks = {name: value.detach().double().numpy() for name, value in agent.policy.named_parameters()}
    obs = rollout.obs.double().numpy()
    mean, log_std, value = oracle_vmpo.forward(networks, obs.reshape(20, OBS), oracle_vmpo.Settings())
    values = value.reshape(10, 2)
    rewards_, terminated_, truncated_ = (
        x.double().numpy() for x in (rollout.rewards, rollout.terminated, rollout.truncated)
    )
    if estimator == "returns":
        advantages, returns = oracle_ppo.bootstrapped_returns(rewards_, values, terminated_, truncated_, 0.9)
    else:  # one step is a trace that is cut at once
        decay = 0.8 if estimator == "gae" else 0.0
        advantages, returns = oracle_ppo.gae(rewards_, values, terminated_, truncated_, 0.9, decay)
    expected = {
        "obs": obs[:-1].reshape(18, OBS),
        "actions": rollout.actions.numpy().reshape(18, ACT),
        "old_means": mean[:18],
        "old_log_stds": log_std[:18],
        "returns": returns.reshape(18, 1),
        "advantages": advantages.reshape(18, 1),
        "restarting_weights": 1 - rollout.restarting.numpy().reshape(18, 1),
        "importance_weights": np.ones((18, 1)),
    }
    assert batch.keys() == expected.keys() and batch["restarting_weights"].sum() == 16
    for name, array in expected.items():
        assert not batch[name].requires_grad
        np.testing.assert_allclose(batch[name].numpy(), array, rtol=1e-4, atol=1e-5, err_msg=name)
