from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from numpy.typing import NDArray

from minerva.environments import Episode, make
from minerva.environments.base import EnvironmentFailureError, EpisodeStatistics, check_finite, clip_to_box


def test_clipping_by_hand() -> None:
    low = np.array([[-1.0, -2.0, -3.0], [-np.inf, 0.0, 5.0]], dtype=np.float32)
    high = np.array([[1.0, 2.0, 3.0], [0.5, np.inf, 6.0]], dtype=np.float32)
    actions = np.array([[-9, -9, -9, -9, -9, -9], [9, 9, 9, 9, 9, 9], [0.5, -1, 2, -7, 3, 5.5]], dtype=np.float32)
    clipped = clip_to_box(actions, spaces.Box(low, high, dtype=np.float32))
    assert clipped.dtype == np.float32
    assert clipped.tolist() == [[-1, -2, -3, -9, 0, 5], [1, 2, 3, 0.5, 9, 6], [0.5, -1, 2, -7, 3, 5.5]]
    assert actions[0, 0] == -9  # the input is not changed: actions are stored unclipped


@pytest.mark.parametrize("bound", [0.1, 0.3, 0.4, 1 / 3, 0.7, 1.0])
def test_clipping_stays_inside_a_float64_box(bound: float) -> None:
    # float32(0.1) is more than 0.1
    space = spaces.Box(-bound, bound, (1,), np.float64)
    clipped = clip_to_box(np.array([[-9.0], [9.0]], dtype=np.float32), space)
    assert clipped.dtype == np.float32
    for action in clipped.astype(np.float64):
        assert space.contains(action)
    np.testing.assert_allclose(clipped[:, 0], [-bound, bound], rtol=1e-6)


def test_actions_of_other_spaces_are_not_clipped() -> None:
    actions = np.array([[3.0]], dtype=np.float32)
    assert np.array_equal(clip_to_box(actions, spaces.Discrete(2)), actions)


class Recording(gymnasium.Env[NDArray[np.float32], NDArray[np.float64]]):
    """Observe the received action."""

    observation_space = spaces.Box(-np.inf, np.inf, (6,))
    action_space = spaces.Box(
        np.array([[-1, -2, -3], [-4, -5, -6]]), np.array([[1, 2, 3], [4, 5, 6]]), dtype=np.float64
    )

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        return np.zeros(6, dtype=np.float32), {}

    def step(self, action: NDArray[np.float64]) -> Any:
        assert action.shape == (2, 3)
        assert action.dtype == np.float64
        assert self.action_space.contains(action)
        return action.reshape(-1).astype(np.float32), 0.0, False, False, {}


def test_an_environment_gets_actions_of_its_shape_inside_its_box() -> None:
    batch = make(Recording, num_envs=2)
    batch.reset()
    actions = np.array([[9, -9, 1, 2, 3, -9], [0.5, 1.5, 2.5, -9, 9, 5.5]], dtype=np.float32)
    assert batch.step(actions).observations.tolist() == [[1, -2, 1, 2, 3, -6], [0.5, 1.5, 2.5, -4, 5, 5.5]]
    batch.close()


def test_episode_statistics() -> None:
    statistics = EpisodeStatistics(2)

    def add(rewards: list[float], ended: list[bool], restarting: list[bool]) -> list[Episode]:
        return statistics.add(np.array(rewards), np.array(ended), np.array(restarting))

    neither = [False, False]
    assert add([1.5, 2.0], neither, neither) == []
    assert add([1.0, -4.0], [False, True], neither) == [Episode(1, -2.0, 2)]
    assert add([1.0, 0.0], neither, [False, True]) == []
    assert add([1.0, 7.0], [True, True], neither) == [Episode(0, 4.5, 4), Episode(1, 7.0, 1)]
    assert Episode(1, 7.0, 3).env_index == 1


@pytest.mark.parametrize("reward", [1e39, -1e100, 1e200, np.inf, np.nan])
def test_a_reward_that_float32_cannot_hold_is_refused(reward: float) -> None:
    rows = np.zeros((2, 3), dtype=np.float32)
    with pytest.raises(EnvironmentFailureError, match="environment 1 returned the reward"):
        check_finite(rows, np.array([0.0, reward]))
    check_finite(rows + 3e38, np.array([3e38, -3e38]))  # large, but finite
