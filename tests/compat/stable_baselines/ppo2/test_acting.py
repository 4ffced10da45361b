from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces

from minerva.compat.stable_baselines import DummyVecEnv
from minerva.compat.stable_baselines.ppo2 import acting
from minerva.utils.precision import exact_cudnn
from tests.compat.stable_baselines.samples import BATCH, N_ENVS, small_model
from tests.environments.tiny_envs import Noisy, Picking


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


@pytest.mark.parametrize("policy", ["CnnPolicy", "CnnLstmPolicy"])
def test_networks_run_with_the_precision_of_training(policy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    inside = 0

    @contextmanager
    def counted(device: torch.device) -> Iterator[None]:
        nonlocal inside
        inside += 1
        with exact_cudnn(device):
            yield
        inside -= 1

    space = spaces.Box(0, 255, (36, 36, 1), np.uint8)
    model = small_model(policy, DummyVecEnv([lambda: Picking(spaces.Discrete(2), space)] * 2), policy_kwargs={})
    calls = []
    for module in model.agent.modules():
        module.register_forward_pre_hook(lambda *_: calls.append(inside))
    monkeypatch.setattr(acting, "exact_cudnn", counted)
    obs = np.zeros((2, 36, 36, 1), np.uint8)
    for method in (model.predict, model.action_probability, model.step, model.proba_step, model.value):
        calls.clear()
        method(obs)
        assert calls and set(calls) == {1}, method
