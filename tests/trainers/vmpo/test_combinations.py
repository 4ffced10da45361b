"""Kind of action × masks × encoder × recurrent core: each acts, is replayed by the update, learns, resumes exactly."""

from __future__ import annotations

import math
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import Tensor

import minerva
from minerva.environments import EnvFactory
from minerva.trainers.vmpo.batch import Batch, make_batch, mask_restarts
from minerva.trainers.vmpo.trainer import VMPOTrainer
from minerva.trainers.vmpo.update import e_step, evaluate, m_step
from tests.environments.tiny_envs import Picking
from tests.networks.samples import float64
from tests.trainers.combinations import assert_loaded_policy_acts_alike
from tests.trainers.ppo.small_run import assert_resumes_exactly, same
from tests.trainers.vmpo.small_agent import as_dict, learned, make_agent, make_data
from tests.trainers.vmpo.small_run import ROLLOUT, small_trainer

VECTOR = spaces.Box(-1000, 1000, (6,), np.float32)
IMAGE = spaces.Box(0, 255, (40, 36, 3), np.uint8)
HANDLE = spaces.Box(0, 200, (2,), np.float32)
CHOICE, CHOICES, SWITCHES = spaces.Discrete(4, start=3), spaces.MultiDiscrete([3, 2]), spaces.MultiBinary(3)
SHORT: dict[str, Any] = {"env_kwargs": {"max_episode_steps": 7}}
CASES: dict[str, tuple[str | EnvFactory, dict[str, Any]]] = {
    "box, recurrent": ("Pendulum-v1", {**SHORT, "lstm_units": 5}),
    "box, one core": ("Pendulum-v1", {**SHORT, "lstm_units": 5, "shared_encoder": True, "ppo_like_backbone": True}),
    "discrete": (partial(Picking, CHOICE, VECTOR), {"control_variate": True}),
    "discrete, recurrent, layer norm": (partial(Picking, CHOICE, VECTOR), {"lstm_units": 5, "lstm_layer_norm": True}),
    "multi-discrete": (partial(Picking, CHOICES, VECTOR), {"shared_encoder": True}),
    "multi-binary, recurrent": (partial(Picking, SWITCHES, VECTOR), {"lstm_units": 5, "normalize_reward": True}),
    "discrete, masks": (partial(Picking, CHOICE, VECTOR, "info"), {"control_variate": True}),
    "multi-discrete, masks, recurrent": (partial(Picking, CHOICES, VECTOR, "method"), {"lstm_units": 5}),
    "box, image": (partial(Picking, HANDLE, IMAGE), {"shared_encoder": True}),
    "box, image, PPO's heads": (partial(Picking, HANDLE, IMAGE), {"ppo_like_backbone": True}),
    "discrete, image": (partial(Picking, CHOICE, IMAGE), {"control_variate": True, "shared_encoder": True}),
    "discrete, image, masks, recurrent": (
        partial(Picking, CHOICE, IMAGE, "info"), {"lstm_units": 5, "shared_encoder": True},
    ),
    "discrete, image as numbers": (partial(Picking, CHOICE, IMAGE), {"encoder": "mlp"}),
}  # fmt: skip

every_case = pytest.mark.parametrize("name", CASES)


def trainer_for(name: str, **fields: Any) -> VMPOTrainer:
    env, own = CASES[name]
    return small_trainer(env, **{"num_envs": 2, "eval_max_steps": 3, **own, **fields})


def collected(trainer: VMPOTrainer) -> Batch:
    """A first rollout, as the update takes it."""
    trainer.begin()
    while not trainer.collector.rollout.full:
        trainer.collector.step()
    return make_batch(trainer.agent.policy, trainer.collector.rollout, trainer.config)


@every_case
def test_the_update_sees_what_acting_saw(name: str) -> None:
    trainer = trainer_for(name, rollout_steps=13)
    rollout, policy = trainer.collector.rollout, trainer.agent.policy
    trainer.begin()
    states = set()
    for number in range(2):
        assert rollout.episode_starts[0].any() == (number == 0)  # the second one begins in the middle of episodes
        log_probs, values = [], []
        while not rollout.full:
            t, old = rollout.position, rollout.recurrent_state
            trainer.collector.step()
            with torch.no_grad():  # one step at a time
                seen = policy.forward_sequence(rollout.obs[t : t + 1], old, rollout.episode_starts[t : t + 1])
            params = tuple(part[0] for part in seen.params)
            log_probs.append(policy.head.log_prob(params, rollout.actions[t]))
            values.append(seen.value[0])
            torch.testing.assert_close(rollout.recurrent_state, seen.recurrent_state, rtol=1e-6, atol=1e-6)
            states.add(float(rollout.recurrent_state.sum()))
        batch = make_batch(policy, rollout, trainer.config)
        # The forward pass of the update itself, with the weights as they are.
        with torch.no_grad():
            params, value = evaluate(policy, batch.obs, batch.recurrent_state, batch.episode_starts)
        real = batch.restarting_weights > 0
        assert (~real).sum() >= 2  # over the ends of episodes
        samples, log_volume = policy.head.unsquash(batch.actions)
        found = policy.head.sample_log_prob(params, samples) - log_volume
        torch.testing.assert_close(found[real], torch.cat(log_probs)[real], rtol=1e-6, atol=1e-6)
        torch.testing.assert_close(value[real], torch.cat(values)[real], rtol=1e-6, atol=1e-6)
        for part, expected in zip(batch.old, params, strict=True):
            torch.testing.assert_close(part[real], expected[real], rtol=1e-6, atol=1e-6)
        rollout.carry_over()
    assert len(states) > 20 if policy.state_dim else states == {0.0}
    trainer.close()


@every_case
def test_it_learns_and_its_policy_is_loaded(name: str, tmp_path: Path) -> None:
    trainer = trainer_for(name, policy_lr=0.01, value_lr=0.01)
    before = {key: value.clone() for key, value in trainer.agent.named_parameters()}
    result = trainer.train(ROLLOUT * 2 * 2, tmp_path / "run")
    assert result.updates == 2 and result.last_evaluation is not None
    assert all(not torch.equal(value, before[key]) for key, value in trainer.agent.named_parameters())
    policy = minerva.load(tmp_path / "run")
    for deterministic in (True, False):
        observation = trainer.env.raw_observation_space.sample()
        assert trainer.env.action_space.contains(policy.act(observation, deterministic))
    assert_loaded_policy_acts_alike(trainer, policy)
    trainer.close()


@pytest.mark.parametrize(
    "name", ["box, one core", "discrete, masks", "multi-discrete, masks, recurrent", "box, image", "discrete, image"]
)
def test_a_run_that_was_left_in_mid_rollout_goes_on_exactly(name: str, tmp_path: Path) -> None:
    total = ROLLOUT * 2 * 4
    assert_resumes_exactly(lambda: trainer_for(name), [total // 2 + 6], total, tmp_path)


@pytest.mark.parametrize("part", ["obs", "advantages", "recurrent_state", "episode_starts"])
def test_a_bad_number_leaves_a_recurrent_policy_as_it_was(part: str) -> None:
    trainer = trainer_for("multi-discrete, masks, recurrent", m_steps=2)
    updater, batch = trainer.updater, collected(trainer)
    assert updater.learn(batch) is not None
    before = learned(trainer.agent)
    poisoned = getattr(batch, part).clone()
    poisoned[1, ...] = math.nan
    with pytest.warns(RuntimeWarning, match="skipped"):
        assert updater.learn(batch._replace(**{part: poisoned})) is None
    assert same(learned(trainer.agent), before)
    trainer.close()


def test_sequences_of_the_wrong_shape_are_errors() -> None:
    trainer = trainer_for("discrete, recurrent, layer norm")
    agent, batch = trainer.agent, as_dict(collected(trainer), trainer.agent)
    trainer.close()
    with pytest.raises(ValueError, match="batch: must hold state, starts as well"):
        agent.update({name: part for name, part in batch.items() if name not in ("state", "starts")})
    message = r"starts must have the shape \(T, N\) with T \* N = 32 rows, and state \(N, 20\); got "
    with pytest.raises(ValueError, match=message + r"\(15, 2\) and \(2, 20\)"):
        agent.update({**batch, "starts": batch["starts"][1:]})
    with pytest.raises(ValueError, match=message + r"\(16, 2\) and \(2, 19\)"):
        agent.update({**batch, "state": batch["state"][:, 1:]})


@pytest.mark.parametrize("fields", [{}, {"shared_encoder": True}, {"lstm_layer_norm": True}])
def test_gradients_of_a_recurrent_policy_are_those_of_differences(fields: dict[str, Any]) -> None:
    with float64():
        # Plain gradient descent at a rate of 1: what an M-step takes off is the gradient.
        agent = make_agent(
            lstm_units=3, optimizer_type="sgd", policy_lr=1.0, value_lr=1.0, max_grad_norm=1e9, alpha_lr=1e-30,
            control_variate=True, **fields,
        )  # fmt: skip
        starts = torch.zeros(6, 2)
        starts[0, 1] = starts[2, 0] = starts[4, 1] = 1
        memory = {"state": torch.randn(2, agent.state_dim), "starts": starts}
        batch = mask_restarts(agent._to_batch({**make_data(agent, rows=12), **memory}), 0)
        optimizers, config, state = agent.updater.optimizers, agent.config, agent.updater.state
        _, weighted, _ = e_step(optimizers, config, state, batch)
        new, _ = m_step(optimizers, config, state, weighted, torch.ones(1))
        gradient = state.policy.parameters - new.policy.parameters

        def total(vector: Tensor) -> float:
            there = state._replace(policy=state.policy._replace(parameters=vector))
            return m_step(optimizers, config, there, weighted, torch.ones(1))[1].total.item()

        for direction in torch.randn(3, len(gradient)):
            around = [total(state.policy.parameters + h * direction) for h in (1e-6, -1e-6)]
            assert (around[0] - around[1]) / 2e-6 == pytest.approx(float(gradient @ direction), rel=1e-6)


# Masks


def test_what_a_mask_forbids_is_never_done(tmp_path: Path) -> None:
    taken = 0

    class Strict(Picking):
        def step(self, action: Any) -> Any:
            nonlocal taken
            taken += 1
            assert self.masks[0][int(action) - 3]
            return super().step(action)

    trainer = small_trainer(lambda: Strict(CHOICE, VECTOR, "info"), num_envs=2, policy_lr=0.05, eval_max_steps=20)
    trainer.train(ROLLOUT * 2 * 4, tmp_path / "run")
    trainer.close()
    assert taken > 100


# Recurrent policies


class Recall(gymnasium.Env[Any, Any]):
    """Shows a sign once, and asks for it two steps later."""

    observation_space = spaces.Box(-1, 1, (2,))
    action_space = spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.time, self.sign = 0, int(self.np_random.integers(2))
        return np.array([2.0 * self.sign - 1, 0.0], dtype=np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.time += 1
        reward = float(self.time == 3 and action == self.sign)
        return np.array([0.0, self.time / 3], dtype=np.float32), reward, self.time == 3, False, {}


def test_what_was_seen_before_is_remembered(tmp_path: Path) -> None:
    # Without a recurrent core no policy gets more than a half.
    trainer = small_trainer(
        Recall, num_envs=8, rollout_steps=32, m_steps=10, lstm_units=8, policy_lr=0.01, value_lr=0.01,
        temperature_lr=0.05, alpha_lr=0.01, epsilon_mu=0.1, advantage_estimator="gae", eval_episodes=20, seed=0,
    )  # fmt: skip
    result = trainer.train(8 * 32 * 16, tmp_path / "run")
    trainer.close()
    assert result.last_evaluation is not None and result.last_evaluation.returns.mean() == 1.0
