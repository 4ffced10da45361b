"""Kind of action × masks × memory: every combination acts, is replayed by the update, learns, and resumes exactly."""

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
from torch.func import grad_and_value

import minerva
from minerva.environments import EnvFactory
from minerva.trainers.vmpo.agent import make_batch
from minerva.trainers.vmpo.trainer import VMPOTrainer
from minerva.trainers.vmpo.update import grad_and_value_on_tape
from tests.environments.tiny_envs import Picking
from tests.trainers.ppo.small_run import same
from tests.trainers.vmpo.small_agent import learned
from tests.trainers.vmpo.small_run import ROLLOUT, interrupt_at, same_run, small_trainer

VECTOR = spaces.Box(-1000, 1000, (6,), np.float32)
CHOICE, CHOICES, SWITCHES = spaces.Discrete(4, start=3), spaces.MultiDiscrete([3, 2]), spaces.MultiBinary(3)
SHORT: dict[str, Any] = {"env_kwargs": {"max_episode_steps": 7}}
CASES: dict[str, tuple[str | EnvFactory, dict[str, Any]]] = {
    "box, memory": ("Pendulum-v1", {**SHORT, "lstm_units": 5}),
    "box, one memory": ("Pendulum-v1", {**SHORT, "lstm_units": 5, "shared_encoder": True, "ppo_like_backbone": True}),
    "discrete": (partial(Picking, CHOICE, VECTOR), {"control_variate": True}),
    "discrete, memory with layer norm": (partial(Picking, CHOICE, VECTOR), {"lstm_units": 5, "lstm_layer_norm": True}),
    "multi-discrete": (partial(Picking, CHOICES, VECTOR), {"shared_encoder": True}),
    "multi-binary, memory": (partial(Picking, SWITCHES, VECTOR), {"lstm_units": 5, "normalize_reward": True}),
    "discrete, masks": (partial(Picking, CHOICE, VECTOR, "info"), {"control_variate": True}),
    "multi-discrete, masks, memory": (partial(Picking, CHOICES, VECTOR, "method"), {"lstm_units": 5}),
}

every_case = pytest.mark.parametrize("name", CASES)


def trainer_for(name: str, **fields: Any) -> VMPOTrainer:
    env, own = CASES[name]
    return small_trainer(env, **{"num_envs": 2, "eval_max_steps": 3, **own, **fields})


@every_case
def test_the_update_sees_what_acting_saw(name: str) -> None:
    trainer = trainer_for(name, rollout_steps=13)
    rollout, agent = trainer.collector.rollout, trainer.agent
    trainer.begin()
    states = set()
    for number in range(2):
        assert rollout.starts[0].any() == (number == 0)  # the second one begins in the middle of episodes
        log_probs, values = [], []
        while not rollout.full:
            t, old = rollout.position, rollout.state
            trainer.collector.step()
            with torch.no_grad():  # one step at a time
                seen = agent.policy.look(rollout.obs[t : t + 1], old, rollout.starts[t : t + 1])
            samples, _ = agent._kind.unsquash(rollout.actions[t])
            log_probs.append(agent._kind.log_prob(tuple(part[0] for part in seen.parameters), samples))
            values.append(seen.value[0, :, 0])
            torch.testing.assert_close(rollout.state, seen.state, rtol=1e-6, atol=1e-6)
            states.add(float(rollout.state.sum()))
        batch = make_batch(agent, rollout)
        rows = agent._to_rows(batch)
        # The forward pass of the update itself, with the weights as they are.
        parameters, value = agent._update._policy(agent._learned.fitted.policy, rows.obs, rows.state, rows.starts)
        real = batch["restarting_weights"][:, 0] > 0
        assert (~real).sum() >= 2  # over the ends of episodes
        samples, _ = agent._kind.unsquash(rows.actions)
        found = agent._kind.log_prob(parameters, samples)
        torch.testing.assert_close(found[real], torch.cat(log_probs)[real], rtol=1e-6, atol=1e-6)
        torch.testing.assert_close(value[real], torch.cat(values)[real], rtol=1e-6, atol=1e-6)
        for part, expected in zip(rows.old, parameters, strict=True):
            torch.testing.assert_close(part[real], expected[real], rtol=1e-6, atol=1e-6)
        rollout.carry_over()
    assert len(states) > 20 if agent.state_dim else states == {0.0}
    trainer.close()


@every_case
def test_it_learns_and_its_policy_is_loaded(name: str, tmp_path: Path) -> None:
    trainer = trainer_for(name, policy_lr=0.01, value_lr=0.01)
    before = {key: value.clone() for key, value in trainer.agent.named_parameters()}
    result = trainer.train(ROLLOUT * 2 * 2, tmp_path / "run")
    assert result.updates == 2 and result.last_evaluation is not None
    assert all(not torch.equal(value, before[key]) for key, value in trainer.agent.named_parameters())
    policy = minerva.load(tmp_path / "run")
    group = trainer.evaluator._group
    assert group is not None
    rows = group.apply(np.zeros((1, trainer.action_dim), dtype=np.float32), np.array([7])).observations.copy()
    for deterministic in (True, False):
        observation = trainer.env.raw_observation_space.sample()
        assert trainer.env.action_space.contains(policy.act(observation, deterministic))
    # The trained agent and the loaded policy agree, step after step where there is a memory.
    policy.reset()
    act = trainer.evaluation_policy()
    for _ in range(3):
        with torch.no_grad():
            expected = act(torch.from_numpy(rows)).numpy()
        np.testing.assert_allclose(policy.act_flat(rows), expected, rtol=1e-6, atol=1e-6)
    trainer.close()


@pytest.mark.parametrize("name", ["box, one memory", "discrete, masks", "multi-discrete, masks, memory"])
def test_a_run_that_was_left_in_mid_rollout_goes_on_exactly(name: str, tmp_path: Path) -> None:
    total = ROLLOUT * 2 * 4
    whole = trainer_for(name)
    whole.train(total, tmp_path / "whole")
    whole.close()
    first = trainer_for(name)
    with pytest.raises(SystemExit):
        first.train(total, tmp_path / "parts", interrupt_at(total // 2 + 6))
    first.close()
    second = trainer_for(name)
    second.load(tmp_path / "parts")
    second.train(total)
    second.close()
    assert same_run(tmp_path / "whole", tmp_path / "parts")


@pytest.mark.parametrize("part", ["obs", "advantages", "state", "starts"])
def test_a_bad_number_leaves_a_policy_with_a_memory_as_it_was(part: str) -> None:
    trainer = trainer_for("multi-discrete, masks, memory", m_steps=2)
    trainer.begin()
    while not trainer.collector.rollout.full:
        trainer.collector.step()
    batch = make_batch(trainer.agent, trainer.collector.rollout)
    assert trainer.agent.learn(batch) is not None
    before = learned(trainer.agent)
    batch[part] = batch[part].clone()
    batch[part][1, 0] = math.nan
    with pytest.warns(RuntimeWarning, match="skipped"):
        assert trainer.agent.learn(batch) is None
    assert same(learned(trainer.agent), before)
    trainer.close()


def test_sequences_of_the_wrong_shape_are_errors() -> None:
    trainer = trainer_for("discrete, memory with layer norm")
    trainer.begin()
    while not trainer.collector.rollout.full:
        trainer.collector.step()
    batch = make_batch(trainer.agent, trainer.collector.rollout)
    trainer.close()
    with pytest.raises(ValueError, match="batch: must hold state, starts as well"):
        trainer.agent.learn({name: part for name, part in batch.items() if name not in ("state", "starts")})
    message = (
        r"starts must have the shape \(T, N\) with T \* N = 32 rows, and state \(N, 20\); got \(15, 2\) and \(2, 20\)"
    )
    with pytest.raises(ValueError, match=message):
        trainer.agent.learn({**batch, "starts": batch["starts"][1:]})


def test_gradients_on_the_tape_are_those_of_torchs_transform() -> None:
    trainer = trainer_for("box, memory")
    agent = trainer.agent
    trainer.begin()
    while not trainer.collector.rollout.full:
        trainer.collector.step()
    rows = agent._to_rows(make_batch(agent, trainer.collector.rollout))
    trainer.close()
    with torch.no_grad():
        weighted = agent._update.e_step(agent._learned.tempered, rows).weighted
        fitted = agent._learned.fitted._replace(policy=agent._learned.fitted.policy + 0.05)
        one, other = (
            make(agent._update._loss, has_aux=True)(fitted.policy, fitted, weighted)
            for make in (grad_and_value_on_tape, grad_and_value)
        )
    torch.testing.assert_close(one[0], other[0], rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(one[1][0], other[1][0])
    assert not one[1][0].requires_grad and one[0].abs().max() > 0.01


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


# Memory


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
    # Without a memory no policy gets more than a half.
    trainer = small_trainer(
        Recall, num_envs=8, rollout_steps=32, m_steps=10, lstm_units=8, policy_lr=0.01, value_lr=0.01,
        temperature_lr=0.05, alpha_lr=0.01, epsilon_mu=0.1, advantage_estimator="gae", eval_episodes=20, seed=0,
    )  # fmt: skip
    result = trainer.train(8 * 32 * 16, tmp_path / "run")
    trainer.close()
    assert result.last_evaluation is not None and result.last_evaluation.returns.mean() == 1.0
