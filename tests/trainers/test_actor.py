from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.distributions import Independent, Normal

import minerva
from minerva.networks.actor_critic import ActorCritic, Architecture
from minerva.networks.diagonal_gaussian import DiagonalGaussianPolicy
from minerva.networks.heads import (
    ActionHead,
    BernoulliHead,
    GaussianHead,
    MultiCategoricalHead,
    SquashedGaussianHead,
)
from minerva.networks.numpy_mlp import Array
from minerva.trainers.actor import ActingPolicy, Actor
from minerva.trainers.ppo.agent import Agent
from minerva.trainers.ppo.update import Updater
from minerva.utils.running_norm import RunningNorm
from minerva.utils.seeding import torch_generator
from tests.environments.tiny_envs import Noisy, Picking
from tests.networks.samples import move_parameters
from tests.objectives import oracle_ppo as oracle
from tests.trainers.acting import on_tensors
from tests.trainers.ppo.samples import (
    ACT,
    OBS,
    act,
    layers_of,
    make_agent,
    make_config,
    make_rollout,
    no_state,
    run_update,
)
from tests.trainers.ppo.small_run import small_trainer

HEADS: dict[str, ActionHead] = {
    "gaussian": GaussianHead(2),
    "squashed": SquashedGaussianHead([-1.0, 0.5], [3.0, 1.0]),
    "categorical": MultiCategoricalHead([4]),
    "multi-categorical": MultiCategoricalHead([3, 2]),
    "bernoulli": BernoulliHead(3),
}


def noise_of(seed: int) -> torch.Generator:
    """The generator that an actor of this seed draws from."""
    return torch_generator(seed, "action_noise")


# While experience is collected


def test_actions_are_noise_around_the_mean_of_the_oracles_network() -> None:
    agent, obs = make_agent(), torch.randn(4, OBS)
    found, _ = on_tensors(Actor(agent.policy, 1))(obs, *no_state(4))
    means = oracle.mlp(layers_of(agent.actor_mean), obs.double().numpy())
    std = agent.actor_logstd[0].detach().double().exp().numpy()
    noise = torch.randn(4, ACT, generator=noise_of(1)).double().numpy()
    np.testing.assert_allclose(found.numpy(), means + std * noise, rtol=1e-5, atol=1e-6)


def test_it_acts_as_the_policy_does_whatever_was_written_to_it() -> None:
    agent, obs, config = make_agent(), torch.randn(4, OBS), make_config(policy_lr=0.1)
    updater = Updater(agent.policy, config)  # it decides where the parameters are
    actor, reference = on_tensors(Actor(agent.policy, 1)), noise_of(1)
    before = torch.random.get_rng_state()
    torch.testing.assert_close(actor(obs, *no_state(4))[0], act(agent, obs, reference))
    assert torch.equal(torch.random.get_rng_state(), before)
    run_update(agent, make_rollout(agent), config, updater)
    torch.testing.assert_close(actor(obs, *no_state(4))[0], act(agent, obs, reference))
    agent.load_state_dict(make_agent(seed=5).state_dict())
    torch.testing.assert_close(actor(obs, *no_state(4))[0], act(agent, obs, reference))


def test_a_trainers_actor_follows_its_updates(tmp_path: Path) -> None:
    trainer = small_trainer(eval_episodes=0)
    obs = torch.randn(5, 3)
    first = act(trainer.agent, obs, noise_of(9))
    trainer.train(64, tmp_path / "run")
    trainer.close()
    trainer.actor.generator.set_state(noise_of(9).get_state())
    found, _ = on_tensors(trainer.actor)(obs, *no_state(5))
    torch.testing.assert_close(found, act(trainer.agent, obs, noise_of(9)))
    assert not torch.allclose(found, first)


@pytest.mark.parametrize("recurrent", [False, True])
@pytest.mark.parametrize(
    ("name", "masked"), [(name, masked) for name in HEADS for masked in (False, True)[: 1 + bool(HEADS[name].mask_dim)]]
)
def test_arrays_and_tensors_are_acted_on_alike(name: str, masked: bool, recurrent: bool) -> None:
    head = HEADS[name]
    torch.manual_seed(0)
    mask_dim = head.mask_dim if masked else 0
    architecture = Architecture((6,), (5,), lstm_units=4 if recurrent else None)
    policy = ActorCritic(head, architecture, OBS + mask_dim, mask_dim)
    move_parameters(policy, 0.3)
    assert policy.runs_on_numpy != masked  # so both of its ways are taken
    actor, reference = Actor(policy, 3), noise_of(3)
    state = torch.randn(6, policy.state_dim)
    for starts in (torch.zeros(6), torch.tensor([0.0, 1.0, 0.0, 0.0, 1.0, 1.0])):
        obs = torch.cat([torch.randn(6, OBS), torch.ones(6, mask_dim)], dim=1)
        found, after, log_probs = actor(obs.numpy(), state.numpy(), starts.numpy())
        assert log_probs is None and found.dtype == after.dtype == np.float32
        with torch.no_grad():
            params, state = policy.policy_step(obs, state * (1 - starts).unsqueeze(-1))
            expected = head.sample(params, head.draw_noise((6,), reference, obs))
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)
        np.testing.assert_allclose(after, state, rtol=1e-5, atol=1e-5)


@pytest.mark.formula(
    "minerva.trainers.actor",
    r"\log b(a) = \sum_j \left( -\tfrac12 \xi_j^2 - \log \sigma_j \right) - \tfrac{A}{2} \log 2\pi",
)
def test_log_probabilities_are_those_of_raw_actions() -> None:
    torch.manual_seed(0)
    policy = DiagonalGaussianPolicy(OBS, ACT, (6, 4), -0.5, 0.5)
    move_parameters(policy, 0.3)
    obs, nothing = torch.randn(50, OBS), np.zeros((50, 0), np.float32)
    actions, _, log_probs = Actor(policy, 3, log_probs=True)(obs.numpy(), nothing, nothing)
    with torch.no_grad():
        mean, log_std = policy(obs)
    expected = mean + log_std.exp() * torch.randn(50, ACT, generator=noise_of(3))
    np.testing.assert_allclose(actions, expected, rtol=1e-5, atol=1e-5)
    assert (np.abs(actions) > 0.5).any()  # not clipped
    density = Independent(Normal(mean, log_std.exp()), 1).log_prob(torch.from_numpy(actions))  # type: ignore[no-untyped-call]
    np.testing.assert_allclose(log_probs, density, rtol=1e-4, atol=1e-4)


# Outside of training


def recurrent_agent() -> Agent:
    torch.manual_seed(0)
    policy = ActorCritic(GaussianHead(ACT), Architecture((6,), (5,), lstm_units=4), OBS)
    agent = Agent(OBS, ACT, policy=policy)
    move_parameters(agent, 0.3)
    assert isinstance(agent.obs_normalizer, RunningNorm)
    agent.obs_normalizer.update(torch.randn(100, OBS) * 5 + 20)
    return agent


def test_it_remembers_the_recurrent_state_until_it_is_reset() -> None:
    agent = recurrent_agent()
    norm = {name: value.clone() for name, value in agent.obs_normalizer.state_dict().items()}
    acting = ActingPolicy(agent)
    rows = [5 * np.random.default_rng(t).normal(size=(3, OBS)).astype(np.float32) + 20 for t in range(4)]
    state, expected = agent.initial_state(3), []
    for row in rows:
        chosen, state = agent.act_recurrent(torch.from_numpy(row), state, deterministic=True)
        expected.append(chosen.numpy())
    for _ in range(2):
        for row, actions in zip(rows, expected, strict=True):
            found = acting(row)
            assert found.dtype == np.float32 and np.array_equal(found, actions)
        acting.reset()
    acting(rows[0])
    assert not np.array_equal(acting(rows[0]), expected[0])  # the state matters,
    np.testing.assert_allclose(acting(rows[0][:2]), expected[0][:2], rtol=1e-5, atol=1e-6)  # as many as rows
    assert all(torch.equal(value, norm[name]) for name, value in agent.obs_normalizer.state_dict().items())


def test_samples_are_drawn_from_the_generator_given() -> None:
    agent, rows = make_agent(), np.random.default_rng(0).normal(size=(4, OBS)).astype(np.float32)
    first, again, other = (ActingPolicy(agent, torch.Generator().manual_seed(seed))(rows, False) for seed in (1, 1, 2))
    assert np.array_equal(first, again) and not np.array_equal(first, other)
    with torch.no_grad():
        mean = agent.get_deterministic_action(torch.from_numpy(rows))
        noise = torch.randn(4, ACT, generator=torch.Generator().manual_seed(1))
        np.testing.assert_allclose(first, mean + agent.actor_logstd.exp() * noise, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("dtype", [np.float64, np.uint8, np.int64])
def test_raw_observations_of_any_dtype_are_taken(dtype: Any) -> None:
    agent, rows = make_agent(), np.random.default_rng(0).integers(0, 9, (4, OBS))
    assert np.array_equal(ActingPolicy(agent)(rows.astype(dtype)), ActingPolicy(agent)(rows.astype(np.float32)))


# Training, evaluation and what is loaded


class Watching(nn.Module):
    """An encoder that keeps what it sees, and drops half of it in training."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.layer, self.dropout = nn.Linear(size, 7), nn.Dropout()
        self.seen: list[tuple[torch.dtype, bool]] = []

    def forward(self, rows: Tensor) -> Tensor:
        self.seen.append((rows.dtype, self.training))
        features: Tensor = self.dropout(self.layer(rows.float() / 255))
        return features


IMAGE = spaces.Box(0, 255, (8, 9, 3), np.uint8)
LARGE_IMAGE = spaces.Box(0, 255, (40, 36, 3), np.uint8)
VECTOR = spaces.Box(-1000, 1000, (6,), np.float32)
LSTM = {"lstm_units": 5, "minibatch_size": 16, "num_envs": 2}
RUNS: dict[str, tuple[Any, dict[str, Any]]] = {
    "box": (Noisy, {}),
    "box, recurrent": (Noisy, LSTM),
    "discrete, shared and recurrent": (
        partial(Picking, spaces.Discrete(4), VECTOR),
        {**LSTM, "shared_encoder": True},
    ),
    "masks": (partial(Picking, spaces.Discrete(4), VECTOR, "info"), {}),
    "image": (partial(Picking, spaces.Discrete(4), LARGE_IMAGE), {}),
    "image as numbers": (partial(Picking, spaces.Discrete(4), IMAGE), {"encoder": "mlp"}),
    "own encoder of an image": (
        partial(Picking, spaces.Discrete(4), IMAGE),
        {"make_encoder": partial(Watching, 216)},
    ),
    "own encoder of numbers": (partial(Picking, spaces.Discrete(4), VECTOR), {"make_encoder": partial(Watching, 6)}),
}


@pytest.mark.parametrize("name", RUNS)
def test_the_trainers_evaluation_and_what_is_loaded_act_alike_to_the_bit(
    name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    env, fields = RUNS[name]
    trainer = small_trainer(env, **{"eval_episodes": 2, "eval_max_steps": 8, **fields})
    trainer.train(64, tmp_path / "run")
    own = [module for module in trainer.agent.modules() if isinstance(module, Watching)]
    as_bytes = torch.uint8 if "image" in name and name != "image as numbers" else torch.float32
    assert trainer.collector.rollout.obs.dtype == as_bytes
    for encoder in own:
        assert {dtype for dtype, _ in encoder.seen[1:]} == {as_bytes}  # all but the call that asks for its shape
        assert any(training for _, training in encoder.seen[1:])
        encoder.seen.clear()
    taken: list[tuple[NDArray[Any], Array]] = []
    call = ActingPolicy.__call__

    def watch(policy: ActingPolicy, observations: NDArray[Any], deterministic: bool = True) -> Array:
        actions = call(policy, observations, deterministic)
        taken.append((observations.copy(), actions.copy()))
        return actions

    with monkeypatch.context() as patch:
        patch.setattr(ActingPolicy, "__call__", watch)
        trainer.evaluate()
    trainer.close()
    assert len(taken) > 3
    assert not any(encoder.training for encoder in own)  # as before
    seen = {entry for encoder in own for entry in encoder.seen}
    assert seen == ({(as_bytes, False)} if own else set())
    loaded = minerva.load(tmp_path / "run", make_encoder=fields.get("make_encoder"))
    for observations, actions in taken:
        assert np.array_equal(loaded.act_flat(observations), actions)
    encoders = [part for part in loaded._act._agent.modules() if isinstance(part, Watching)]
    assert {entry for part in encoders[:1] for entry in part.seen[1:]} == seen


class Doubling(nn.Sequential):
    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = super().forward(x)  # type: ignore[no-untyped-call]
        return 2 * y


@pytest.mark.parametrize(
    "make_encoder",
    [
        lambda: nn.Sequential(nn.Linear(3, 8, bias=False), nn.Tanh()),
        lambda: nn.Sequential(nn.Linear(3, 8), nn.LayerNorm(8, elementwise_affine=False)),
        lambda: Doubling(nn.Linear(3, 8), nn.Tanh()),
        lambda: nn.utils.parametrizations.weight_norm(nn.Linear(3, 8)),
    ],
    ids=["no bias", "no affine", "its own forward", "weight norm"],
)
def test_an_encoder_of_ones_own_acts_as_the_module_does(make_encoder: Any) -> None:
    trainer = small_trainer(make_encoder=make_encoder, eval_episodes=0)
    trainer.begin()
    policy, obs = trainer.agent.policy, torch.randn(5, 3)
    with torch.no_grad():
        for parameter in policy.parameters():  # as an update does
            parameter.add_(0.1 * torch.randn(parameter.shape))
        assert isinstance(policy.policy_logstd, nn.Parameter)
        policy.policy_logstd.fill_(-20)  # no noise to speak of
        expected = policy(obs)[0]
    actions, _, _ = trainer.actor(obs.numpy(), np.zeros((5, 0), np.float32), np.zeros(5, np.float32))
    np.testing.assert_allclose(actions, expected.numpy(), atol=1e-6)
    trainer.close()
