from __future__ import annotations

import copy
import io
import os
import signal
import tempfile
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces

import minerva
from minerva.checkpointing import CheckpointError
from minerva.compat.stable_baselines import (
    PPO2,
    BaseCallback,
    DummyVecEnv,
    MlpPolicy,
    VecEnv,
    VecEnvWrapper,
    VecFrameStack,
    VecNormalize,
    make_vec_env,
)
from minerva.compat.stable_baselines.common.policies import FeedForwardPolicy
from minerva.compat.stable_baselines.common.schedules import (
    LinearSchedule,
    PiecewiseSchedule,
    constfn,
    linear_schedule,
)
from minerva.compat.stable_baselines.common.vec_env import VecCheckNan
from minerva.compat.stable_baselines.ppo2.ppo2 import swap_and_flatten
from minerva.compat.stable_baselines.ppo2.settings import config_of
from minerva.environments import EnvironmentFailureError
from tests.compat.stable_baselines.samples import BATCH, N_ENVS, N_STEPS, cart_pole, noisy, numpy_int, small_model
from tests.environments.tiny_envs import Failing, Noisy, Picking

CRITIC = "policy.value_encoder.0.weight"


def weights(model: PPO2) -> dict[str, Any]:
    return {name: weight.numpy().copy() for name, weight in model.agent.state_dict().items()}


def assert_same(one: PPO2, other: PPO2) -> None:
    assert weights(one).keys() == weights(other).keys()
    for name, weight in weights(one).items():
        np.testing.assert_array_equal(weight, weights(other)[name], err_msg=name)


# Settings


def test_the_face_is_the_public_one() -> None:
    assert minerva.PPO2 is PPO2
    model = PPO2("MlpPolicy", "CartPole-v1", 0.9, 16, 0.0, 1e-3)
    assert (model.gamma, model.n_steps, model.ent_coef, model.learning_rate) == (0.9, 16, 0.0, 1e-3)


def test_defaults_are_ppo2s() -> None:
    model = PPO2(MlpPolicy, make_vec_env("CartPole-v1", 8))
    config = config_of(model, model._policy, model.n_envs)
    wanted = {
        "gamma": 0.99, "rollout_steps": 128, "ent_coef": 0.01, "policy_lr": 2.5e-4, "anneal_lr": False, "vf_coef": 0.5,
        "max_grad_norm": 0.5, "gae_lambda": 0.95, "minibatch_size": 256, "update_epochs": 4, "clip_ratio": 0.2,
        "clip_vloss": True, "clip_ratio_vf": None, "target_kl": None, "normalize_obs": False, "normalize_reward": False,
        "norm_adv": True, "unbiased_std": False,
    }  # fmt: skip
    assert {name: getattr(config, name) for name in wanted} == wanted
    assert config.policy_lr_at(0.1) == 2.5e-4


@pytest.mark.parametrize(
    ("cliprange_vf", "clipped", "at_half"),
    [(None, True, 0.1), (-1, False, 0.1), (0.5, True, 0.5), (lambda s: s, True, 0.5)],
)
def test_the_range_of_values(cliprange_vf: Any, clipped: bool, at_half: float) -> None:
    model = small_model(cliprange=lambda share: 0.2 * share, cliprange_vf=cliprange_vf)
    config = config_of(model, model._policy, model.n_envs)
    assert config.clip_vloss == clipped
    assert config.clip_ratio_vf_at(0.5) == at_half


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"n_steps": 5, "nminibatches": 4}, r"n_envs \* n_steps = 2 \* 5 = 10 must be divisible by nminibatches = 4"),
        ({"learning_rate": -1}, "learning_rate: must be greater than 0, got -1"),
        ({"learning_rate": "fast"}, r"learning_rate: must be a number, .*got 'fast'"),
        ({"cliprange": 0}, "cliprange: must be greater than 0"),
        ({"lam": 2}, r"lam: must lie in \[0, 1\], got 2"),
        ({"n_steps": 2.5}, "n_steps: must be a positive integer, got 2.5"),
        ({"noptepochs": 0}, "noptepochs: must be at least 1, got 0"),
    ],
)
def test_mistakes_are_refused_under_ppo2s_names(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        small_model(**settings)


def test_a_recurrent_policy_learns_from_whole_environments() -> None:
    with pytest.raises(ValueError, match=r"n_envs = 3 must be divisible by nminibatches = 2"):
        small_model("MlpLstmPolicy", make_vec_env("CartPole-v1", 3), n_steps=8)
    small_model("MlpLstmPolicy", make_vec_env("CartPole-v1", 4))


@pytest.mark.parametrize(
    ("env", "message"),
    [
        (None, "env: must be given"),
        (3, "env: must be an id, an environment of Gymnasium or gym, .*got builtins.int"),
    ],
)
def test_what_is_no_environment_is_refused(env: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        PPO2("MlpPolicy", env)


def test_vector_environments_of_others_are_refused() -> None:
    vector = gymnasium.make_vec("CartPole-v1", 2, vectorization_mode="sync")
    with pytest.raises(
        ValueError, match=r"must be a vector environment of minerva\.compat\.stable_baselines, got .*SyncVec"
    ):
        PPO2("MlpPolicy", vector)


@pytest.mark.parametrize("env", ["CartPole-v1", cart_pole, cart_pole()])
def test_forms_of_an_environment(env: Any) -> None:
    model = PPO2("MlpPolicy", env, n_steps=8, nminibatches=2).learn(16)
    assert (model.n_envs, model.n_batch, model.num_timesteps) == (1, 8, 16)


# Learning


class Copy(BaseCallback):
    """Keeps a rollout's observations, which the next one overwrites."""

    obs: torch.Tensor

    def _on_rollout_end(self) -> None:
        self.obs = self.model.trainer.rollout.obs[:-1].flatten(0, 1).clone()


def test_an_update_is_ppo2s() -> None:
    """One gradient step beside PPO2's, written down here: losses, population deviation, clipping, Adam."""
    model = small_model(env=noisy(length=5), nminibatches=1, noptepochs=1, learning_rate=lambda share: 1e-2 * share)
    agent = copy.deepcopy(model.agent).double()
    learned_from = Copy()
    model.learn(BATCH, callback=learned_from)
    assert model.trainer is not None
    assert model.trainer.last_update is not None
    batch = model.trainer.last_update.batch
    assert batch.weights.all()
    obs, actions, old_logp, old_values, advantages, returns = (
        part.double() for part in (learned_from.obs, *batch[1:4], batch.advantages, batch.returns)
    )
    mean, log_std = agent.actor_mean(obs), agent.actor_logstd
    assert log_std is not None
    policy: Any = torch.distributions.Normal(mean, log_std.exp().expand_as(mean))
    logp, entropy = policy.log_prob(actions).sum(-1), policy.entropy().sum(-1)
    values = agent.critic(obs).squeeze(-1)
    normalized = (advantages - advantages.mean()) / (advantages.std(correction=0) + 1e-8)
    ratio = (logp - old_logp).exp()
    policy_loss = torch.max(-normalized * ratio, -normalized * ratio.clamp(0.8, 1.2)).mean()
    clipped = old_values + (values - old_values).clamp(-0.2, 0.2)
    value_loss = 0.5 * torch.max((values - returns) ** 2, (clipped - returns) ** 2).mean()
    loss = policy_loss - 0.01 * entropy.mean() + 0.5 * value_loss
    optimizer = torch.optim.Adam(agent.parameters(), lr=1e-2, eps=1e-5)
    loss.backward()
    torch.nn.utils.clip_grad_norm_(agent.parameters(), 0.5)
    optimizer.step()
    means = model.trainer.last_update.means
    assert means["total"] == pytest.approx(loss.item(), rel=1e-5)
    assert means["square_kl"] == pytest.approx(0, abs=1e-9)
    for name, weight in agent.state_dict().items():
        np.testing.assert_allclose(weights(model)[name], weight.numpy(), rtol=1e-4, atol=2e-5, err_msg=name)


def test_gradients_may_be_left_as_they_are() -> None:
    # SGD would show it plainly; Adam shows a gradient's scale through its eps.
    free, cut = (small_model(max_grad_norm=norm).learn(BATCH) for norm in (None, 1e-6))
    moved = [np.abs(weights(m)[CRITIC] - weights(small_model())[CRITIC]).max() for m in (free, cut)]
    assert moved[0] > 2 * moved[1] > 0


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
            return agent.policy.forward_sequence(rows, torch.as_tensor(states), zeros).value[0].numpy()

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


def test_a_seed_decides_all() -> None:
    assert_same(small_model().learn(2 * BATCH), small_model().learn(2 * BATCH))
    first, other = weights(small_model().learn(BATCH)), weights(small_model(seed=1).learn(BATCH))
    assert not np.array_equal(first[CRITIC], other[CRITIC])


def test_steps_are_counted_anew_or_go_on() -> None:
    rates: list[float] = []

    def rate(share: float) -> float:
        rates.append(share)
        return 1e-3 * share

    model = small_model(learning_rate=rate)
    model.learn(2 * BATCH)
    rates.clear()
    model.learn(2 * BATCH, reset_num_timesteps=False)
    assert model.num_timesteps == 4 * BATCH
    assert {1.0, 0.5} <= set(rates) <= {1.0, 0.5, 0.0}  # the schedule runs over each call
    model.learn(BATCH)
    assert model.num_timesteps == BATCH


def test_settings_may_change_between_calls() -> None:
    model = small_model().learn(BATCH)
    model.n_steps = 16
    model.learn(2 * BATCH)
    assert model.trainer is not None
    assert model.trainer.config.rollout_steps == 16
    assert model.trainer.updater.state.policy.steps.item() == 8  # Adam's moments were kept


def test_discounts_may_change_between_calls() -> None:
    model = small_model(env=noisy(length=5)).learn(BATCH)
    model.gamma, model.lam = 0.5, 0.9
    assert_bootstrapped(model, 0.5)
    assert (model.runner.gamma, model.runner.lam) == (0.5, 0.9)


def test_an_episode_continues_with_the_next_call() -> None:
    model, rollout = small_model(env=noisy(length=100)), Copy()
    for k in range(3):
        model.learn(BATCH, callback=rollout)
        assert rollout.obs[0, 1] == k * N_STEPS  # the step within the episode


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


def test_numpys_integers_are_integers() -> None:
    settings: dict[str, Any] = {name: numpy_int(2) for name in ("nminibatches", "noptepochs")}
    model = small_model(n_steps=np.int32(N_STEPS), **settings)
    model.learn(numpy_int(BATCH), log_interval=numpy_int(1))
    assert model.num_timesteps == BATCH


def test_too_few_steps_teach_nothing() -> None:
    model = small_model()
    before = weights(model)
    with pytest.warns(RuntimeWarning, match="total_timesteps = 15 is less than n_envs"):
        model.learn(BATCH - 1)
    np.testing.assert_array_equal(weights(model)[CRITIC], before[CRITIC])


def test_nothing_is_printed_or_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: Any) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    small_model().learn(2 * BATCH, callback=lambda *_: list(tmp_path.iterdir()) == [])
    assert list(tmp_path.iterdir()) == []
    captured = capfd.readouterr()
    assert captured.out + captured.err == ""


def test_a_model_outlives_an_environment_that_fails() -> None:
    model = small_model(env=DummyVecEnv([lambda: Failing("broke", 6)] * 2))
    with pytest.raises(OSError, match="broke"):
        model.learn(BATCH)
    model.set_env(DummyVecEnv([Noisy] * 2))
    model.learn(BATCH)


def test_a_signal_leaves_a_model_that_can_be_saved(tmp_path: Path) -> None:
    model = small_model()

    def interrupt(_locals: dict[str, Any], _globals: dict[str, Any]) -> None:
        if _locals["self"].num_timesteps == BATCH + 4:
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        model.learn(4 * BATCH, callback=interrupt)
    assert model.num_timesteps == BATCH + 4
    model.save(tmp_path / "model")
    model.learn(BATCH)


def test_normalization_is_the_environments() -> None:
    env = VecNormalize(make_vec_env("CartPole-v1", N_ENVS))
    model = small_model(env=env)
    model.learn(BATCH)
    assert model.get_vec_normalize_env() is env
    assert env.obs_rms.count == pytest.approx(BATCH, abs=1)
    assert model.trainer is not None
    assert isinstance(model.agent.obs_normalizer, torch.nn.Identity)
    rollout = model.trainer.rollout
    assert rollout.rewards.abs().max() < 1.5 or rollout.rewards.std() > 0
    assert not torch.equal(rollout.rewards, torch.ones_like(rollout.rewards))
    assert small_model().get_vec_normalize_env() is None


# Every kind of space and network


@pytest.mark.parametrize("policy", ["MlpPolicy", "MlpLstmPolicy", "MlpLnLstmPolicy"])
@pytest.mark.parametrize(
    "space",
    [
        spaces.Box(-0.5, 0.5, (2, 2), np.float32),
        spaces.Discrete(3, start=2),
        spaces.MultiDiscrete([2, 3]),
        spaces.MultiBinary(3),
    ],
    ids=str,
)
def test_spaces_of_actions(policy: str, space: gymnasium.Space[Any]) -> None:
    venv = DummyVecEnv([lambda: Picking(space, spaces.Box(-9, 300, (4,)))] * 2)
    model = small_model(policy, venv, policy_kwargs={})
    model.learn(BATCH)
    obs = venv.reset()
    actions, state = model.predict(obs)
    assert (state is None) == (policy == "MlpPolicy")
    assert all(space.contains(action) for action in actions)
    venv.step(actions)
    one, _ = model.predict(obs[0], deterministic=True)
    assert space.contains(np.asarray(one, dtype=space.dtype)[()])
    score = model.action_probability(obs, actions=actions)
    log_score = model.action_probability(obs, actions=actions, logp=True)
    assert score.shape == log_score.shape == (2, 1)
    assert model.action_probability(obs[0], actions=actions[0]).shape == (1,)
    np.testing.assert_allclose(np.exp(log_score), score, rtol=1e-5)
    whole = model.action_probability(obs)
    if isinstance(space, spaces.Discrete):
        np.testing.assert_allclose(whole.sum(1), 1, rtol=1e-5)
        np.testing.assert_allclose(score[:, 0], whole[[0, 1], actions - 2], rtol=1e-5)
    elif isinstance(space, spaces.MultiDiscrete):
        np.testing.assert_allclose(
            score[:, 0], np.prod([group[[0, 1], actions[:, i]] for i, group in enumerate(whole)], axis=0), rtol=1e-5
        )
    elif isinstance(space, spaces.MultiBinary):
        np.testing.assert_allclose(score[:, 0], np.prod(np.where(actions == 1, whole, 1 - whole), axis=1), rtol=1e-5)
    else:
        mean, std = whole
        assert (mean.shape, std.shape) == ((2, 4), (2, 4))
        normal: Any = torch.distributions.Normal(torch.tensor(mean), torch.tensor(std))
        wanted = normal.log_prob(torch.tensor(actions.reshape(2, 4)))
        np.testing.assert_allclose(log_score[:, 0], wanted.sum(-1).numpy(), rtol=1e-4)


@pytest.mark.parametrize(
    "space",
    [
        spaces.Discrete(5),
        spaces.Dict({"a": spaces.Box(-1, 1, (2,)), "b": spaces.Discrete(3)}),
        spaces.Box(-1, 1, (2, 3)),
    ],
    ids=str,
)
def test_spaces_of_observations(space: gymnasium.Space[Any]) -> None:
    class Showing(Noisy):
        observation_space = space  # type: ignore[assignment]

        def _see(self) -> Any:
            space.seed(self.steps)
            return space.sample()

    venv = DummyVecEnv([Showing] * 2)
    model = small_model(env=venv).learn(BATCH)
    actions, _ = model.predict(venv.reset())
    assert actions.shape == (2, 1)
    assert model.predict(space.sample())[0].shape == (1,)
    with pytest.raises(ValueError, match="observation"):
        model.predict(np.zeros((2, 7, 7)))


@pytest.mark.parametrize("policy", ["CnnPolicy", "CnnLstmPolicy", "MlpPolicy"])
@pytest.mark.parametrize("shape", [(36, 36, 1), (2, 36, 36)])
def test_images(policy: str, shape: tuple[int, ...]) -> None:
    venv = DummyVecEnv([lambda: Picking(spaces.Discrete(2), spaces.Box(0, 255, shape, np.uint8))] * 2)
    model = small_model(policy, venv, n_steps=4, noptepochs=1, policy_kwargs={})
    model.learn(8)
    assert model.trainer is not None
    wanted = torch.float32 if policy == "MlpPolicy" else torch.uint8
    assert model.trainer.rollout.obs.dtype == wanted
    assert model.predict(venv.reset())[0].shape == (2,)


def test_masked_actions_are_never_taken() -> None:
    def make() -> gymnasium.Env[Any, Any]:
        return Picking(spaces.Discrete(3), spaces.Box(0, 255, (4,)), "method")

    model = small_model("MlpLstmPolicy", DummyVecEnv([make] * 2), policy_kwargs={"n_lstm": 4})
    model.learn(2 * BATCH)
    assert model.trainer is not None
    rollout = model.trainer.rollout
    allowed = rollout.obs[:-1, :, -3:].gather(-1, rollout.actions.long()).squeeze(-1)
    assert allowed.all()
    obs = np.zeros((5, 4), dtype=np.float32)
    masks = np.eye(3)[[0, 1, 2, 1, 0]]
    assert model.predict(obs, action_masks=masks)[0].tolist() == [0, 1, 2, 1, 0]
    assert model.action_probability(obs, action_masks=masks)[0].tolist() == [1, 0, 0]
    with pytest.raises(ValueError, match="action_masks: the environment of this policy has no action masks"):
        small_model().predict(np.zeros(4), action_masks=[1, 0])


def test_a_step_is_not_clipped_to_the_bounds() -> None:
    space = spaces.Box(-0.1, 0.1, (2,), np.float32)
    model = small_model(env=DummyVecEnv([lambda: Picking(space, spaces.Box(-9, 300, (4,)))] * 2))
    obs = np.zeros((50, 4), np.float32)
    actions, _, state, neglogp = model.step(obs)
    mean, std = model.action_probability(obs)
    assert state is None and np.abs(actions).max() > 0.1
    normal = (((actions - mean) / std) ** 2 / 2 + np.log(std) + np.log(2 * np.pi) / 2).sum(1)
    np.testing.assert_allclose(neglogp, normal, rtol=1e-4)


def test_an_observation_with_its_info_is_refused() -> None:
    model = small_model()
    with pytest.raises(ValueError, match=r"observation: must be an observation, got a tuple \(observation, info\)"):
        model.predict((np.zeros(4), {}))
    assert model.predict([0.0, 0.0, 0.0, 0.0])[0] in (0, 1)


# Recurrent state


def test_the_recurrent_state_is_carried_and_reset() -> None:
    model = small_model("MlpLstmPolicy", policy_kwargs={"n_lstm": 4})
    with torch.no_grad():
        for parameter in model.agent.parameters():
            parameter.mul_(3)
    rng = np.random.default_rng(0)
    obs = rng.normal(size=(3, 4)).astype(np.float32)
    _, first = model.predict(obs, deterministic=True)
    assert first is not None
    assert first.shape == (3, 8)
    _, second = model.predict(obs, state=first, deterministic=True)
    _, emptied = model.predict(obs, state=first, mask=[True, False, True], deterministic=True)
    assert second is not None
    assert emptied is not None
    np.testing.assert_allclose(emptied[[0, 2]], first[[0, 2]], rtol=1e-6)
    np.testing.assert_allclose(emptied[1], second[1], rtol=1e-6)
    assert not np.allclose(first, second)
    fresh, remembered = model.action_probability(obs), model.action_probability(obs, state=first)
    assert not np.allclose(fresh, remembered)
    np.testing.assert_allclose(model.action_probability(obs, state=first, mask=[1, 1, 1]), fresh, rtol=1e-6)
    with pytest.raises(ValueError, match=r"state: must have the shape \(3, 8\), got \(2, 8\)"):
        model.predict(obs, state=first[:2])
    with pytest.raises(ValueError, match="mask: must have 3 entries"):
        model.predict(obs, state=first, mask=[True])


def test_the_state_at_the_start_of_episodes() -> None:
    model = small_model("MlpLstmPolicy", policy_kwargs={"n_lstm": 4})
    assert model.initial_state is not None
    np.testing.assert_array_equal(model.initial_state, np.zeros((N_ENVS, 8)))
    assert small_model().initial_state is None


# Files


def test_a_file_holds_the_whole_model(tmp_path: Path) -> None:
    model = small_model(learning_rate="lin_1e-3", policy_kwargs={"net_arch": [8, {"pi": [4]}], "act_fun": torch.relu})
    model.learn(2 * BATCH)
    model.save(tmp_path / "folder" / "model")
    assert [path.name for path in (tmp_path / "folder").iterdir()] == ["model.zip"]
    loaded = PPO2.load(tmp_path / "folder" / "model")
    assert_same(loaded, model)
    assert (loaded.num_timesteps, loaded.learning_rate, loaded.policy) == (2 * BATCH, "lin_1e-3", MlpPolicy)
    obs = np.random.default_rng(0).normal(size=(6, 4)).astype(np.float32)
    np.testing.assert_array_equal(model.predict(obs, deterministic=True)[0], loaded.predict(obs, deterministic=True)[0])
    with pytest.raises(ValueError, match=r"env: there is none to learn in; .*set_env"):
        loaded.learn(BATCH)
    # The optimizer's moments came along: both take the same next step in the same environments.
    model.set_random_seed(5)
    loaded.set_random_seed(5)
    loaded.set_env(make_vec_env("CartPole-v1", N_ENVS))
    assert_same(model.learn(BATCH), loaded.learn(BATCH))


def test_names_of_files(tmp_path: Path) -> None:
    model = small_model()
    model.save(tmp_path / "model.pkl")
    assert (tmp_path / "model.pkl").exists()
    PPO2.load(tmp_path / "model.pkl")
    model.save(tmp_path / "v1.0_model")  # what looks like an ending is one
    PPO2.load(str(tmp_path / "v1.0_model"))
    with pytest.raises(CheckpointError, match="there is no file"):
        PPO2.load(tmp_path / "other")


def test_functions_are_given_again(tmp_path: Path) -> None:
    env = make_vec_env("CartPole-v1", N_ENVS)
    model = small_model(env=env, learning_rate=lambda share: 1e-3 * share, policy_kwargs={"act_fun": lambda x: x})
    with pytest.warns(UserWarning, match=r"learning_rate: is a function, .*PPO2\.load\(path, env, learning_rate="):
        model.save(tmp_path / "model")
    with pytest.raises(ValueError, match=r"custom function, pass it again: PPO2\.load"):
        PPO2.load(tmp_path / "model")
    kwargs = {"act_fun": lambda x: x}
    acting = PPO2.load(tmp_path / "model", env=env, policy_kwargs=kwargs)
    acting.predict(env.reset())
    with pytest.raises(ValueError, match=r"learning_rate: was a function, .*give the function again"):
        acting.learn(BATCH)
    PPO2.load(tmp_path / "model", env, {"learning_rate": 1e-3}, policy_kwargs=kwargs, verbose=0).learn(BATCH)
    with pytest.raises(ValueError, match="learning_rat: is not a setting of PPO2"):
        PPO2.load(tmp_path / "model", learning_rat=1e-3)
    with pytest.raises(ValueError, match="policy_kwargs: must be the saved ones"):
        PPO2.load(tmp_path / "model", policy_kwargs={"layers": [3]})


def test_files_of_others_are_refused(tmp_path: Path) -> None:
    VecNormalize(noisy()).save(tmp_path / "statistics.zip")
    with pytest.raises(CheckpointError, match="was saved by VecNormalize, not PPO2"):
        PPO2.load(tmp_path / "statistics")
    torch.save({"code": print}, tmp_path / "code.zip")
    with pytest.raises(CheckpointError, match="holds something other than tensors and plain values"):
        PPO2.load(tmp_path / "code.zip")


def test_environments_must_fit(tmp_path: Path) -> None:
    model = small_model()
    with pytest.raises(ValueError, match="observation space must be the model's"):
        model.set_env("Pendulum-v1")
    with pytest.raises(ValueError, match="must be divisible by nminibatches"):
        small_model(n_steps=1).set_env("CartPole-v1")
    model.set_env(make_vec_env("CartPole-v1", 4))
    model.learn(4 * N_STEPS)
    assert model.n_envs == 4


def test_known_schedules_are_kept(tmp_path: Path) -> None:
    env = make_vec_env("CartPole-v1", N_ENVS)
    piecewise = PiecewiseSchedule([(0, 1e-4), (0.5, 2e-4)], outside_value=3e-4)
    settings = {"learning_rate": piecewise.value, "cliprange": LinearSchedule(2, 0.1, 0.3).value}
    small_model(env=env, **settings, cliprange_vf=constfn(0.5)).save(tmp_path / "model")
    loaded = PPO2.load(tmp_path / "model", env)
    functions: list[Any] = [loaded.learning_rate, loaded.cliprange, loaded.cliprange_vf]
    assert [[function(share) for share in (0, 0.25, 1)] for function in functions] == [
        pytest.approx([1e-4, 1.5e-4, 3e-4]), pytest.approx([0.3, 0.275, 0.2]), [0.5, 0.5, 0.5],
    ]  # fmt: skip
    loaded.learn(BATCH)
    small_model(env=env, learning_rate=linear_schedule).save(tmp_path / "model")
    assert PPO2.load(tmp_path / "model").learning_rate is linear_schedule


def test_file_objects_and_arguments_of_load(tmp_path: Path) -> None:
    model = small_model(gamma=np.float64(0.9), n_steps=np.int64(8), policy_kwargs={"layers": [np.int64(8)]})
    file = io.BytesIO()
    model.save(file)
    file.seek(0)
    loaded = PPO2.load(file, n_cpu_tf_sess=1, verbose=0, tensorboard_log=str(tmp_path), custom_objects={"lam": 0.5})
    assert_same(model, loaded)
    found = (loaded.gamma, loaded.n_steps, loaded.lam, loaded.n_cpu_tf_sess, loaded.tensorboard_log)
    assert found == (0.9, 8, 0.5, 1, str(tmp_path))
    loaded.save(tmp_path / "again")
    assert PPO2.load(tmp_path / "again").tensorboard_log is None
    file.seek(0)
    other = small_model(seed=5)
    other.load_parameters(file)
    assert_same(model, other)
    with pytest.raises(CheckpointError, match="file object is damaged or not a checkpoint"):
        PPO2.load(io.BytesIO(b"nothing"))


def test_custom_policies_are_saved(tmp_path: Path) -> None:
    class Wide(FeedForwardPolicy):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **{**kwargs, "net_arch": [9, {"pi": [8]}], "feature_extraction": "mlp"})

    model = small_model(Wide, policy_kwargs={"act_fun": torch.relu})
    model.save(tmp_path / "model")
    obs = np.random.default_rng(0).normal(size=(5, 4))
    described, given = PPO2.load(tmp_path / "model"), PPO2.load(tmp_path / "model", policy=Wide)
    assert (described.policy, given.policy) == (FeedForwardPolicy, Wide)
    for loaded in (described, given):
        np.testing.assert_array_equal(loaded.action_probability(obs), model.action_probability(obs))
    described.save(tmp_path / "again")
    assert_same(PPO2.load(tmp_path / "again"), model)


@pytest.mark.parametrize(
    ("part", "value", "message"),
    [
        ("policy_kwargs", {"layers": [2**40]}, "layers: must be Layers"),
        ("policy_kwargs", {"layers": []}, "layers: must be Layers"),
        ("observation_space", {"kind": "Discrete", "n": 2**40, "start": 0}, "observation_space: must have 4 numbers"),
        ("action_space", {"kind": "Discrete", "n": 2**40, "start": 0}, "model/pi/w:0: must have 1099511627776 outputs"),
        ("parameters", {}, "has other parameters than MlpPolicy"),
        ("parameters", {"model/pi_fc0/w:0": torch.zeros(1)}, "has other parameters than MlpPolicy"),
        ("parameters", {"model/pi/w:0": 3}, "checkpoint.parameters.model/pi/w:0: must be a tensor, got 3"),
        ("settings", 3, "checkpoint.settings: must be a dict, got 3"),
        ("num_timesteps", -1, "checkpoint.num_timesteps: must lie between 0"),
    ],
)
def test_files_that_were_altered_are_refused(tmp_path: Path, part: str, value: Any, message: str) -> None:
    model = small_model()
    minerva.checkpointing.write(tmp_path / "model.zip", {**model._checkpoint(), part: value})
    with pytest.raises(CheckpointError, match=message):
        PPO2.load(tmp_path / "model")
