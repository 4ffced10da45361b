from __future__ import annotations

import warnings
from typing import Any

import gymnasium
import numpy as np
import pytest

from minerva.compat import gym
from minerva.compat.gym import spaces
from minerva.compat.stable_baselines.common.env_checker import check_env
from minerva.compat.stable_baselines.common.identity_env import (
    IdentityEnv,
    IdentityEnvBox,
    IdentityEnvMultiBinary,
    IdentityEnvMultiDiscrete,
)


class Old(gym.Env):
    observation_space: Any = spaces.Box(-1, 1, (2,), np.float32)
    action_space: Any = spaces.Discrete(2)
    first: Any = np.zeros(2)  # in double precision, as older environments have it
    result: Any = (np.zeros(2), 1.0, False, {})

    def __init__(self, **values: Any) -> None:
        vars(self).update(values)

    def reset(self) -> Any:
        return self.first

    def step(self, action: Any) -> Any:
        return self.result


@pytest.mark.parametrize(
    "make",
    [
        Old,
        lambda: gym.make("CartPole-v1"),
        lambda: gymnasium.make("CartPole-v1"),
        lambda: gymnasium.make("FrozenLake-v1"),
        lambda: IdentityEnv(3),
        IdentityEnvBox,
        lambda: IdentityEnvMultiBinary(3),
        lambda: IdentityEnvMultiDiscrete(3),
    ],
)
def test_right_environments_pass_without_a_warning(make: Any) -> None:
    check_env(make())


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"observation_space": None}, "observation_space: must be a space"),
        ({"action_space": 3}, "action_space: must be a space"),
        ({"first": (np.zeros(2), {})}, "reset: the observation must be a single value"),
        ({"first": [0.0, 0.0]}, "reset: the observation must be a NumPy array, got list"),
        ({"first": np.zeros(3)}, "reset: the observation must be in the observation space"),
        ({"observation_space": spaces.Discrete(2), "first": 0.5}, "reset: the observation must be an int, got float"),
        ({"result": (np.zeros(2), 1.0, False, False, {})}, r"step: must return four values, .* got 5"),
        ({"result": (np.full(2, 9.0), 1.0, False, {})}, "step: the observation must be in the observation space"),
        ({"result": (np.zeros(2), "1", False, {})}, "step: the reward must be a float, got str"),
        ({"result": (np.zeros(2), np.ones(1), False, {})}, "step: the reward must be a float, got ndarray"),
        ({"result": (np.zeros(2), 1, 0, {})}, "step: done must be a bool, got int"),
        ({"result": (np.zeros(2), 1, True, None)}, "step: info must be a dict, got NoneType"),
    ],
)
def test_each_broken_rule_is_named(values: dict[str, Any], sentence: str) -> None:
    with pytest.raises(AssertionError, match=sentence):
        check_env(Old(**values))


def test_other_objects_are_refused() -> None:
    with pytest.raises(AssertionError, match=r"env: must inherit from gym.Env or gymnasium.Env, got builtins.object"):
        check_env(object())


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"action_space": spaces.Box(-2, 2, (1,))}, "action_space: learning is easier"),
        ({"action_space": spaces.Box(0, 1, (1,))}, "action_space: learning is easier"),
        ({"result": (np.zeros(2), float("nan"), False, {})}, "step: the reward must be finite"),
        (
            {
                "observation_space": spaces.Box(0, 255, (20, 40, 3), np.uint8),
                "first": np.zeros((20, 40, 3), np.uint8),
                "result": (np.zeros((20, 40, 3), np.uint8), 1.0, False, {}),
            },
            "at least 36 x 36",
        ),
        (
            {
                "observation_space": spaces.Box(0, 1, (40, 40, 3), np.float32),
                "first": np.zeros((40, 40, 3)),
                "result": (np.zeros((40, 40, 3)), 1.0, False, {}),
            },
            "its dtype is float32, not uint8",
        ),
        (
            {
                "observation_space": spaces.Box(0, 1, (2, 2)),
                "first": np.zeros((2, 2)),
                "result": (np.zeros((2, 2)), 1.0, False, {}),
            },
            "neither an image nor a vector",
        ),
        (
            {
                "observation_space": spaces.Tuple([spaces.Discrete(2)]),
                "first": (0,),
                "result": ((0,), 1.0, False, {}),
            },
            "a Tuple is not supported",
        ),
    ],
)
def test_what_learns_badly_gets_a_warning(values: dict[str, Any], sentence: str) -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        check_env(Old(**values))
    assert any(sentence in str(warning.message) for warning in caught)
    if "finite" not in sentence:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            check_env(Old(**values), warn=False)


def test_rendering_is_checked_on_demand() -> None:
    modes = []

    class Shown(Old):
        metadata = {"render.modes": ["human", "ansi"]}  # noqa: RUF012

        def render(self, mode: str = "human") -> None:
            modes.append(mode)

    check_env(Shown())
    assert not modes
    check_env(Shown(), skip_render_check=False)
    assert modes == ["human", "ansi"]
    with pytest.warns(UserWarning, match=r"no 'render.modes'"):
        check_env(Old(metadata={}), skip_render_check=False)


def test_the_identity_rewards_the_last_observation() -> None:
    env = IdentityEnv(dim=4, ep_length=3)
    env.seed(0)
    observation = env.reset()
    steps = []
    for right in (True, False, True):
        step = env.step(observation if right else (observation + 1) % 4)
        observation = step[0]
        steps.append(step[1:3])
    assert steps == [(1.0, False), (0.0, False), (1.0, True)]
    assert env.num_resets == 1
    box = IdentityEnvBox(eps=0.1)
    assert box.step(box.reset() + 0.09)[1] == 1.0
    assert box.step(box.reset() + 0.11)[1] == 0.0
    with pytest.raises(AssertionError, match="dim: must be None"):
        IdentityEnv(dim=2, space=spaces.Discrete(2))
