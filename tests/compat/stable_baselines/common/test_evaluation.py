from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from stable_baselines3.common import vec_env as sb3
from stable_baselines3.common.evaluation import evaluate_policy as sb3_evaluate_policy
from stable_baselines3.common.monitor import Monitor

from minerva.compat.stable_baselines import DummyVecEnv, evaluate_policy
from tests.compat.stable_baselines.samples import cart_pole, noisy, numpy_int, small_model
from tests.environments.tiny_envs import Noisy


class Counting:
    """Acts according to the number of steps; records where its recurrent state was new."""

    def __init__(self) -> None:
        self.began: list[int] = []
        self.calls = 0

    def predict(
        self, obs: Any, state: Any = None, deterministic: bool = True, episode_start: Any = None
    ) -> tuple[Any, Any]:
        if state is None:
            self.began.append(self.calls)
        self.calls += 1
        return np.array([self.calls % 3 == 0], dtype=np.int64), np.zeros(1)


def test_returns_and_lengths_are_those_of_stable_baselines3() -> None:
    ours, other = DummyVecEnv([cart_pole]), sb3.DummyVecEnv([lambda: Monitor(cart_pole())])
    ours.seed(4)
    other.seed(4)
    rewards, lengths = evaluate_policy(Counting(), ours, n_eval_episodes=4, return_episode_rewards=True)
    theirs, their_lengths = sb3_evaluate_policy(
        Counting(),
        other,
        n_eval_episodes=4,
        return_episode_rewards=True,
        warn=False,
    )
    assert (rewards, lengths) == (theirs, their_lengths)
    assert len(set(lengths)) > 1


class OldGym:
    """gym's interface, and no base class; it counts its resets."""

    observation_space = spaces.Box(-1, 1, (1,))
    action_space = spaces.Discrete(3)
    resets = 0

    def reset(self) -> Any:
        self.resets += 1
        self.t = 0
        return np.zeros(1, np.float32)

    def step(self, action: Any) -> Any:
        self.t += 1
        return np.zeros(1, np.float32), 0.5, self.t >= 4, {}


@pytest.mark.parametrize("env", [OldGym(), Noisy(4)])
def test_a_single_environment_is_reset_before_each_episode_and_not_after_the_last(env: Any) -> None:
    seen: list[Any] = []

    class Model:
        def predict(self, obs: Any, state: Any, deterministic: bool) -> tuple[Any, None]:
            seen.append(np.shape(obs))
            return (0 if isinstance(env, OldGym) else np.zeros(1, np.float32)), None

    returns, lengths = evaluate_policy(Model(), env, n_eval_episodes=numpy_int(3), return_episode_rewards=True)
    assert lengths == [4, 4, 4]
    assert set(seen) == {env.observation_space.shape}
    if isinstance(env, OldGym):
        assert returns == [2, 2, 2]
        assert env.resets == 3


def test_each_episode_starts_with_a_new_recurrent_state() -> None:
    model = Counting()
    _, lengths = evaluate_policy(model, DummyVecEnv([cart_pole]), n_eval_episodes=3, return_episode_rewards=True)
    assert model.began == [0, lengths[0], lengths[0] + lengths[1]]


def test_a_summary_and_a_threshold() -> None:
    model = small_model(env=noisy())
    venv = noisy(count=1)
    venv.seed(0)
    seen: list[float] = []
    mean, std = evaluate_policy(
        model, venv, n_eval_episodes=3, callback=lambda variables, _: seen.append(float(variables["reward"][0]))
    )
    returns = np.array(seen).reshape(3, 5).sum(1)
    assert mean == pytest.approx(returns.mean(), rel=1e-5)
    assert std == pytest.approx(returns.std(), rel=1e-5)
    with pytest.raises(AssertionError, match=r"the mean return must exceed 1000"):
        evaluate_policy(model, venv, n_eval_episodes=1, reward_threshold=1000)
    with pytest.raises(ValueError, match="must hold one environment for an evaluation, got 2"):
        evaluate_policy(model, DummyVecEnv([cart_pole] * 2))
    with pytest.raises(ValueError, match="n_eval_episodes: must be a positive integer, got 0"):
        evaluate_policy(model, venv, n_eval_episodes=0)


def test_a_callback_sees_each_step_before_it_is_counted() -> None:
    seen: list[tuple[int, int]] = []

    def look(variables: dict[str, Any], _: dict[str, Any]) -> None:
        seen.append((variables["i"], variables["episode_length"]))
        assert variables["new_obs"] is variables["obs"]

    evaluate_policy(small_model(env=noisy()), noisy(count=1), n_eval_episodes=2, callback=look)
    assert seen == [(i, step) for i in range(2) for step in range(5)]
