from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from minerva.compat import gym
from minerva.compat.gym import spaces
from minerva.compat.stable_baselines.common import atari_wrappers
from minerva.compat.stable_baselines.common.atari_wrappers import make_atari, wrap_deepmind


class Game(gym.Env):
    """Frame t has the brightness t; three lives, one of which is lost every five frames."""

    observation_space = spaces.Box(0, 255, (210, 160, 3), np.uint8)
    action_space = spaces.Discrete(3)

    def __init__(self) -> None:
        self.np_random = np.random.RandomState(0)
        self.actions: list[int] = []
        self.frame = 0
        self.ale = SimpleNamespace(lives=lambda: 3 - self.frame // 5)

    def get_action_meanings(self) -> list[str]:
        return ["NOOP", "FIRE", "RIGHT"]

    def picture(self) -> Any:
        return np.full((210, 160, 3), self.frame, np.uint8)

    def reset(self) -> Any:
        self.frame = 0
        self.actions = []
        return self.picture()

    def step(self, action: Any) -> Any:
        self.frame += 1
        self.actions.append(action)
        # every second frame is dark, as where sprites flicker
        return self.picture() * (self.frame % 2), self.frame * 0.5, self.frame >= 15, {}


def test_no_ops_and_fire_at_the_start() -> None:
    noop = atari_wrappers.NoopResetEnv(Game(), noop_max=4)
    counts = set()
    for _ in range(50):
        noop.reset()
        counts.add(len(noop.actions))
        assert set(noop.actions) == {0}
    assert counts == {1, 2, 3, 4}
    fire = atari_wrappers.FireResetEnv(Game())
    fire.reset()
    assert fire.actions == [1, 2]


def test_frames_are_skipped_and_the_last_two_combined() -> None:
    env = atari_wrappers.MaxAndSkipEnv(Game(), skip=4)
    env.reset()
    frame, reward, done, _ = env.step(2)
    assert frame.max() == frame.min() == 3  # of frames 3 and 4, of which 4 is dark
    assert (reward, done) == (0.5 * (1 + 2 + 3 + 4), False)
    env.step(2)
    env.step(2)
    assert env.step(2)[1:3] == (0.5 * (13 + 14 + 15), True)


def test_a_life_is_an_episode_and_a_game_goes_on() -> None:
    env = atari_wrappers.EpisodicLifeEnv(Game())
    env.reset()
    dones = [env.step(0)[2] for _ in range(5)]
    assert dones == [False] * 4 + [True]
    env.reset()
    assert env.unwrapped.frame == 6
    while not env.was_real_done:
        env.step(0)
    env.reset()
    assert env.unwrapped.frame == 0


def test_frames_are_made_small_gray_stacked_and_scaled() -> None:
    env = wrap_deepmind(Game(), frame_stack=True, scale=True)
    assert env.observation_space.shape == (84, 84, 4)
    first = np.asarray(env.reset())
    assert first.shape == (84, 84, 4)
    assert first.dtype == np.float32
    stacked = env.step(2)
    assert np.allclose(np.asarray(stacked[0])[0, 0] * 255, [0, 0, 0, 3])
    assert stacked[1] == 1.0
    assert len(stacked[0]) == 84
    plain = wrap_deepmind(Game(), episode_life=False, clip_rewards=False)
    assert plain.reset().shape == (84, 84, 1)
    assert plain.step(2)[1] == 1.5


def test_a_real_game() -> None:
    pytest.importorskip("ale_py")
    env = wrap_deepmind(make_atari("PongNoFrameskip-v4"))
    env.seed(1)
    first = env.reset()
    assert first.shape == (84, 84, 1)
    assert env.action_space.n == 6
    env = wrap_deepmind(make_atari("PongNoFrameskip-v4"))
    env.seed(1)
    assert np.array_equal(env.reset(), first)
    with pytest.raises(AssertionError, match="without frame skip"):
        make_atari("Pong-v4")


def test_a_game_without_the_action_is_refused() -> None:
    class NoFire(Game):
        def get_action_meanings(self) -> list[str]:
            return ["NOOP", "LEFT", "RIGHT"]

    with pytest.raises(AssertionError, match="its action 1 must be FIRE"):
        atari_wrappers.FireResetEnv(NoFire())
    assert not isinstance(wrap_deepmind(NoFire(), False, False).env, atari_wrappers.FireResetEnv)
