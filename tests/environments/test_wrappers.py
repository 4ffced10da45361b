from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest

from minerva.environments import known_ids, make, resolve
from minerva.environments.wrappers import HideVelocities


@pytest.mark.parametrize(
    ("name", "plain", "shown"),
    [
        ("minerva/CartPoleNoVelocity-v1", "CartPole-v1", [0, 2]),
        ("minerva/PendulumNoVelocity-v1", "Pendulum-v1", [0, 1]),
    ],
)
def test_only_the_observation_of_the_task_differs(name: str, plain: str, shown: list[int]) -> None:
    hidden, whole = resolve(name)(), gymnasium.make(plain)
    assert isinstance(whole.observation_space, gymnasium.spaces.Box)
    space = whole.observation_space
    assert hidden.observation_space == gymnasium.spaces.Box(space.low[shown], space.high[shown])
    assert hidden.action_space == whole.action_space
    assert hidden.spec is not None
    assert whole.spec is not None
    assert hidden.spec.max_episode_steps == whole.spec.max_episode_steps
    seen, all_of_it = hidden.reset(seed=4)[0], whole.reset(seed=4)[0]
    whole.action_space.seed(0)
    over = False
    while not over:
        np.testing.assert_array_equal(seen, all_of_it[shown])
        assert hidden.observation_space.contains(seen)
        action = whole.action_space.sample()
        seen, *told = hidden.step(action)[:4]
        all_of_it, *expected = whole.step(action)[:4]
        assert told == expected
        over = bool(expected[1] or expected[2])
    hidden.close()
    whole.close()


def test_the_ids_are_listed_and_reach_workers() -> None:
    assert known_ids("NoVelocity") == ["minerva/CartPoleNoVelocity-v1", "minerva/PendulumNoVelocity-v1"]
    batch = make("minerva/PendulumNoVelocity-v1", 2, vectorization="subprocess", num_workers=1, env_kwargs={"g": 5.0})
    assert batch.reset().shape == (2, 2)
    batch.close()


@pytest.mark.parametrize("hidden", [[], [3], [-1], [0, 1, 2], [1, 7]])
def test_what_can_be_hidden(hidden: list[int]) -> None:
    with pytest.raises(ValueError, match=r"hidden: must name some, but not all, of the positions 0 to 2, got \["):
        HideVelocities(gymnasium.make("Pendulum-v1"), hidden)


def test_only_vectors_have_entries_to_hide() -> None:
    env: Any = gymnasium.make("FrozenLake-v1")
    with pytest.raises(
        ValueError, match=r"env: its observations must be vectors \(a Box with one axis\), got Discrete"
    ):
        HideVelocities(env, [0])
