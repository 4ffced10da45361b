from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

from minerva.compat.stable_baselines import (
    PPO2,
    BaseCallback,
    DummyVecEnv,
    VecEnv,
    VecEnvWrapper,
    VecFrameStack,
    VecNormalize,
    make_vec_env,
)
from minerva.compat.stable_baselines.common.vec_env import VecCheckNan
from minerva.compat.stable_baselines.ppo2.ppo2 import swap_and_flatten
from minerva.environments import EnvironmentFailureError
from tests.compat.stable_baselines.ppo2.numpy_policies import run
from tests.compat.stable_baselines.samples import BATCH, N_ENVS, N_STEPS, noisy, small_model
from tests.environments.tiny_envs import Noisy


class Ending(Noisy):
    """Episodes of three steps; the even ones are terminated, the odd ones truncated."""

    episode = 0

    def reset(self, **kwargs: Any) -> Any:
        self.episode += 1
        return super().reset(**kwargs)

    def step(self, action: Any) -> Any:
        observation, reward, _, _, info = super().step(action)
        over = self.steps == 3
        return observation, reward, over and self.episode % 2 == 0, over and self.episode % 2 == 1, info


@pytest.mark.parametrize("policy", ["MlpPolicy", "MlpLstmPolicy"])
def test_returns_are_those_of_stable_baselines_but_for_time_limits(policy: str) -> None:
    """GAE in NumPy from what the environments returned; the value of the last observation follows a time limit."""
    last: list[Any] = []

    class Watching(BaseCallback):
        def _on_step(self) -> None:
            last.append({name: self.locals[name] for name in ("rewards", "dones", "infos", "values", "obs")})
            states = self.locals["self"].states
            last[-1]["states"] = np.zeros((2, 0), np.float32) if states is None else states.copy()

    kwargs = {"n_lstm": 3} if policy == "MlpLstmPolicy" else {}
    model = small_model(
        policy, DummyVecEnv([lambda: Ending(3)] * 2), nminibatches=1, noptepochs=1, policy_kwargs=kwargs
    )
    agent = copy.deepcopy(model.agent)
    model.learn(BATCH, callback=Watching())
    assert model.trainer is not None
    assert model.trainer.last_update is not None

    def value_of(obs: Any, states: Any) -> Any:
        with torch.no_grad():
            rows = torch.as_tensor(np.asarray(obs))[None]
            zeros = torch.zeros(1, len(obs))
            halves = torch.as_tensor(np.roll(states, states.shape[1] // 2, axis=1))  # the output first
            return agent.policy.forward_sequence(rows, halves, zeros).value[0].numpy()

    rewards, values, dones = (
        np.array([one[name] for one in last], np.float64) for name in ("rewards", "values", "dones")
    )
    ends = 0
    for t, one in enumerate(last):
        for i in np.flatnonzero(one["dones"]):
            ends += 1
            if one["infos"][i]["TimeLimit.truncated"]:
                observation = one["infos"][i]["terminal_observation"]
                rewards[t, i] += 0.99 * value_of(observation[None], one["states"][i : i + 1])[0]
    assert ends == 4
    assert not last[-1]["dones"].any()
    following = value_of(last[-1]["obs"], last[-1]["states"])
    returns, advantage = np.zeros_like(values), 0.0
    for t in reversed(range(N_STEPS)):
        delta = rewards[t] + 0.99 * (1 - dones[t]) * following - values[t]
        advantage = delta + 0.99 * 0.95 * (1 - dones[t]) * advantage
        returns[t], following = advantage + values[t], values[t]
    batch = model.trainer.last_update.batch
    np.testing.assert_allclose(batch.returns.reshape(N_STEPS, 2), returns, rtol=1e-4, atol=1e-5)


class Shifted(VecEnvWrapper):
    """A wrapper of a script's own, as stable-baselines asks for: the infos stay those of the environments."""

    def reset(self) -> Any:
        return self.venv.reset() + 3

    def step_wait(self) -> Any:
        observations, rewards, dones, infos = self.venv.step_wait()
        return observations + 3, rewards, dones, infos


class WhollyShifted(Shifted):
    """It shifts the last observation of an episode too, and says so."""

    handles_terminal_observation = True

    def step_wait(self) -> Any:
        observations, rewards, dones, infos = super().step_wait()
        for info in infos:
            if "terminal_observation" in info:
                info["terminal_observation"] = info["terminal_observation"] + 3
        return observations, rewards, dones, infos


class Halved(VecNormalize):
    """A wrapper of the library, and other observations than it returns."""

    def step_wait(self) -> Any:
        observations, rewards, dones, infos = super().step_wait()
        return observations / 2, rewards, dones, infos


def stacked(venv: VecEnv) -> VecEnv:
    return VecCheckNan(VecFrameStack(VecNormalize(venv, norm_reward=False), 2))


@pytest.mark.parametrize(
    ("wrap", "bootstraps"),
    [
        (lambda venv: venv, True),
        (stacked, True),
        (Shifted, False),
        (WhollyShifted, True),
        (lambda venv: stacked(Shifted(venv)), False),
        (lambda venv: stacked(WhollyShifted(venv)), True),
        (lambda venv: Halved(venv, norm_reward=False), False),
    ],
)
def test_a_time_limit_is_bootstrapped_only_from_an_observation_the_policy_knows(wrap: Any, bootstraps: bool) -> None:
    """Elsewhere the end of an episode counts as a termination, as in stable-baselines."""
    assert_bootstrapped(small_model(env=wrap(noisy(length=5))), 0.99 if bootstraps else 0.0)


def assert_bootstrapped(model: PPO2, gamma: float) -> None:
    """Learn, and compare the rewards with those of the environments, the value of the last observation added."""
    seen: list[Any] = []

    class Watching(BaseCallback):
        def _on_step(self) -> None:
            seen.append((self.locals["rewards"], self.locals["dones"], self.locals["infos"]))

    agent = copy.deepcopy(model.agent)
    model.learn(BATCH, callback=Watching())
    expected = np.array([rewards for rewards, _, _ in seen], np.float64)
    ends = np.flatnonzero([dones.all() for _, dones, _ in seen])
    assert ends.size
    for t in ends:
        last = np.stack([info["terminal_observation"] for info in seen[t][2]])
        with torch.no_grad():
            rows = torch.as_tensor(last, dtype=torch.float32)[None]
            values = agent.policy.forward_sequence(rows, torch.zeros(2, 0), torch.zeros(1, 2)).value[0]
        expected[t] += gamma * values.numpy()
    assert model.trainer is not None
    np.testing.assert_allclose(model.trainer.rollout.rewards, expected, rtol=1e-5)


def test_discounts_may_change_between_calls() -> None:
    model = small_model(env=noisy(length=5)).learn(BATCH)
    model.gamma, model.lam = 0.5, 0.9
    assert_bootstrapped(model, 0.5)
    assert (model.runner.gamma, model.runner.lam) == (0.5, 0.9)


class Counted(VecEnv):
    """A vector environment of a script's own, with lists and Python numbers."""

    def __init__(self) -> None:
        super().__init__(2, spaces.Box(-9, 9, (2,), np.float64), spaces.Discrete(3))
        self.t = 0

    def reset(self) -> Any:
        return [[0.0, 0.0], [0.0, 1.0]]

    def step_async(self, actions: Any) -> None:
        assert actions.shape == (2,)

    def step_wait(self) -> Any:
        self.t += 1
        infos = [{"t": self.t}, {"t": self.t}]
        return [[self.t % 3, 0.0], [1.0, 1.0]], [1, 0.5], [self.t % 3 == 0, False], infos

    def close(self) -> None: ...

    def get_attr(self, attr_name: str, indices: Any = None) -> list[Any]:
        return [None, None]

    def set_attr(self, attr_name: str, value: Any, indices: Any = None) -> None: ...

    def env_method(self, method_name: str, *args: Any, indices: Any = None, **kwargs: Any) -> list[Any]:
        return [None]


class Doubled(VecEnvWrapper):
    def reset(self) -> Any:
        return self.venv.reset()

    def step_wait(self) -> Any:
        obs, rewards, dones, infos = self.venv.step_wait()
        return np.array(obs, np.float64), 2 * np.array(rewards), dones, infos


def test_vector_environments_of_scripts_need_only_the_old_contract() -> None:
    seen: list[Any] = []
    model = small_model(env=Doubled(Counted()))
    model.learn(BATCH, callback=lambda variables, _: seen.append(variables["infos"][0]["t"]))
    assert seen == list(range(1, N_STEPS + 1))
    assert model.trainer is not None
    assert model.trainer.rollout.rewards[0].tolist() == [2, 1]
    assert model.trainer.rollout.episode_starts[:, 0].tolist() == [0, 0, 0, 1, 0, 0, 1, 0, 0]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"obs": np.zeros((2, 3))}, r"env: observations must have the shape \(2, 2\), got \(2, 3\)"),
        ({"obs": np.full((2, 2), np.nan)}, "environment 0 returned an observation with nan"),
        ({"rewards": [1.0]}, "env: step must return 2 rewards, one per environment"),
        ({"rewards": [1.0, np.inf]}, "environment 1 returned the reward inf"),
        ({"infos": [{}]}, "env: step must return 2 infos"),
    ],
)
def test_what_a_vector_environment_returns_is_checked(change: dict[str, Any], message: str) -> None:
    class Wrong(Counted):
        def step_wait(self) -> Any:
            obs, rewards, dones, infos = super().step_wait()
            return tuple({"obs": obs, "rewards": rewards, "dones": dones, "infos": infos, **change}.values())

    with pytest.raises((ValueError, EnvironmentFailureError), match=message):
        small_model(env=Wrong()).learn(BATCH)


def test_the_runner_is_made_when_it_is_asked_for() -> None:
    model = small_model()
    runner = model.runner
    assert model.learn(BATCH).runner is runner
    assert (runner.env, runner.model, runner.n_steps, runner.gamma, runner.lam) == (
        model.env,
        model,
        N_STEPS,
        0.99,
        0.95,
    )
    assert runner.obs.shape == (N_ENVS, 4)
    assert runner.batch_ob_shape == (BATCH, 4)
    assert runner.states is None
    assert small_model("MlpLstmPolicy", policy_kwargs={"n_lstm": 3}).runner.states.tolist() == [[0.0] * 6] * N_ENVS
    model.set_env(make_vec_env("CartPole-v1", N_ENVS))
    assert model.runner is not runner


def test_rows_of_a_rollout_are_put_in_the_order_of_environments() -> None:
    assert swap_and_flatten(np.arange(6).reshape(3, 2, 1)).tolist() == [[0], [2], [4], [1], [3], [5]]


@pytest.mark.parametrize("policy", ["MlpLstmPolicy", "MlpLnLstmPolicy"])
def test_the_runner_shows_the_recurrent_state_of_stable_baselines(policy: str) -> None:
    model = small_model(policy, noisy(length=5), policy_kwargs={"n_lstm": 3, "layers": [4]})
    weights = {name: array.astype(np.float64) for name, array in model.get_parameters().items()}
    before = {"obs": model.runner.obs, "dones": model.runner.dones, "state": None}
    steps = 0

    def compare(variables: dict[str, Any], _: Any) -> None:
        nonlocal steps
        _, _, state = run(weights, before["obs"], before["state"], before["dones"])
        assert state is not None
        np.testing.assert_allclose(variables["self"].states, state, rtol=1e-4, atol=1e-6)
        before.update(obs=variables["obs"], dones=variables["dones"], state=state)
        steps += 1

    model.learn(BATCH, callback=compare)
    assert steps == N_STEPS
    runner = model.runner
    _, values, after, _ = model.step(runner.obs, runner.states, runner.dones)
    runner.states = model.initial_state
    assert not runner.states.any()
    assert not np.allclose(values, model.value(runner.obs, runner.states, runner.dones))
    assert after is not None and after.shape == (2, 6)
