"""The preprocessing of Atari games, as wrappers with gym's interface."""

from __future__ import annotations

from collections import deque
from typing import Any

import numpy as np
from numpy.typing import NDArray

from minerva.compat import gym
from minerva.compat.gym import spaces

SIZE = 84
"""Height and width of a frame that is learned from."""

Step = tuple[Any, Any, Any, dict[str, Any]]


class NoopResetEnv(gym.Wrapper):
    """Begin an episode with a random number of steps that do nothing.

    Args:
        env: The environment.
        noop_max: The largest number of steps; the smallest is 1.
    """

    def __init__(self, env: Any, noop_max: int = 30) -> None:
        super().__init__(env)
        self.noop_max = noop_max
        self.override_num_noops: int | None = None
        self.noop_action = 0
        _require_meaning(self.env, 0, "NOOP")

    def reset(self, **kwargs: Any) -> Any:
        """Start an episode."""
        observation = self.env.reset(**kwargs)
        count = self.override_num_noops
        if count is None:
            random = self.unwrapped.np_random
            draw = getattr(random, "integers", None) or random.randint
            count = int(draw(1, self.noop_max + 1))
        for _ in range(count):
            observation, _reward, done, _info = self.env.step(self.noop_action)
            if done:
                observation = self.env.reset()
        return observation


class FireResetEnv(gym.Wrapper):
    """Begin an episode with the fire button, for games that wait for it."""

    def __init__(self, env: Any) -> None:
        super().__init__(env)
        _require_meaning(self.env, 1, "FIRE")

    def reset(self, **kwargs: Any) -> Any:
        """Start an episode."""
        observation = self.env.reset(**kwargs)
        for action in (1, 2):
            observation, _reward, done, _info = self.env.step(action)
            if done:
                observation = self.env.reset(**kwargs)
        return observation


class EpisodicLifeEnv(gym.Wrapper):
    """Make each life an episode; a game is reset only when it is over."""

    def __init__(self, env: Any) -> None:
        super().__init__(env)
        self.lives = 0
        self.was_real_done = True

    def step(self, action: Any) -> Step:
        """Take a step."""
        observation, reward, done, info = self.env.step(action)
        self.was_real_done = done
        lives = self.unwrapped.ale.lives()
        lost = 0 < lives < self.lives  # some games show 0 lives for a few frames before they end
        self.lives = lives
        return observation, reward, done or lost, info

    def reset(self, **kwargs: Any) -> Any:
        """Start a game, or the next life of the current one."""
        observation = self.env.reset(**kwargs) if self.was_real_done else self.env.step(0)[0]
        self.lives = self.unwrapped.ale.lives()
        return observation


class MaxAndSkipEnv(gym.Wrapper):
    """Repeat each action, and return the maximum of the last two frames, because sprites flicker.

    Args:
        env: The environment.
        skip: Frames per step.
    """

    def __init__(self, env: Any, skip: int = 4) -> None:
        super().__init__(env)
        self._skip = skip

    def step(self, action: Any) -> Step:
        """Take a step."""
        total = 0.0
        frames: deque[Any] = deque(maxlen=2)
        for _ in range(self._skip):
            observation, reward, done, info = self.env.step(action)
            frames.append(observation)
            total += reward
            if done:
                break
        return np.max(np.stack(frames), axis=0), total, done, info


class ClipRewardEnv(gym.RewardWrapper):
    """Replace rewards by their sign."""

    def reward(self, reward: Any) -> float:
        """Return the sign."""
        return float(np.sign(reward))


class WarpFrame(gym.ObservationWrapper):
    """Shrink frames to 84 x 84 pixels in gray, ``[84, 84, 1]``."""

    def __init__(self, env: Any) -> None:
        super().__init__(env)
        self.width = self.height = SIZE
        self.observation_space = spaces.Box(0, 255, (SIZE, SIZE, 1), np.uint8)

    def observation(self, observation: Any) -> NDArray[np.uint8]:
        """Return the smaller frame."""
        import cv2

        gray = cv2.cvtColor(observation, cv2.COLOR_RGB2GRAY)
        frame = cv2.resize(gray, (self.width, self.height), interpolation=cv2.INTER_AREA)
        return np.asarray(frame, dtype=np.uint8)[..., None]


class FrameStack(gym.Wrapper):
    """Stack the newest frames along the last axis; a reset fills the stack with the first.

    Args:
        env: The environment.
        n_frames: Number of frames.
    """

    def __init__(self, env: Any, n_frames: int) -> None:
        super().__init__(env)
        self.n_frames = n_frames
        self.frames: deque[Any] = deque(maxlen=n_frames)
        space = self.env.observation_space
        *size, channels = space.shape
        self.observation_space = spaces.Box(0, 255, (*size, channels * n_frames), space.dtype)

    def reset(self, **kwargs: Any) -> LazyFrames:
        """Start an episode."""
        self.frames.extend([self.env.reset(**kwargs)] * self.n_frames)
        return LazyFrames(list(self.frames))

    def step(self, action: Any) -> Step:
        """Take a step."""
        observation, reward, done, info = self.env.step(action)
        self.frames.append(observation)
        return LazyFrames(list(self.frames)), reward, done, info


class ScaledFloatFrame(gym.ObservationWrapper):
    """Scale frames to floats in [0, 1]."""

    def __init__(self, env: Any) -> None:
        super().__init__(env)
        self.observation_space = spaces.Box(0.0, 1.0, self.env.observation_space.shape, np.float32)

    def observation(self, observation: Any) -> NDArray[np.float32]:
        """Return the scaled frame."""
        return np.asarray(observation, dtype=np.float32) / np.float32(255)


class LazyFrames:
    """Stacked frames that are put together when they are used as an array, so that copies share memory.

    Args:
        frames: The frames, ``[H, W, C]`` each.
    """

    def __init__(self, frames: list[Any]) -> None:
        self._frames = frames

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        stacked = np.concatenate(self._frames, axis=2)
        return stacked if dtype is None else stacked.astype(dtype, copy=False)

    def __len__(self) -> int:
        return len(self._frames[0])

    def __getitem__(self, key: Any) -> Any:
        return np.asarray(self)[key]


def make_atari(env_id: str) -> Any:
    """Make a game with random no-op steps at the start and four frames per step.

    Args:
        env_id: An id such as ``PongNoFrameskip-v4``.
    """
    if "NoFrameskip" not in env_id:
        raise AssertionError(
            f"env_id: must name a game without frame skip, such as PongNoFrameskip-v4, got {env_id!r}."
        )
    return MaxAndSkipEnv(NoopResetEnv(gym.make(env_id), noop_max=30), skip=4)


def wrap_deepmind(
    env: Any, episode_life: bool = True, clip_rewards: bool = True, frame_stack: bool = False, scale: bool = False
) -> Any:
    """Wrap a game for learning.

    Args:
        env: The game, see `make_atari`.
        episode_life: Whether each life is an episode.
        clip_rewards: Whether rewards are replaced by their sign.
        frame_stack: Whether four frames are stacked; otherwise `VecFrameStack` can.
        scale: Whether frames are scaled to [0, 1].
    """
    if episode_life:
        env = EpisodicLifeEnv(env)
    if "FIRE" in env.unwrapped.get_action_meanings():
        env = FireResetEnv(env)
    env = WarpFrame(env)
    if scale:
        env = ScaledFloatFrame(env)
    if clip_rewards:
        env = ClipRewardEnv(env)
    return FrameStack(env, 4) if frame_stack else env


def _require_meaning(env: Any, action: int, meaning: str) -> None:
    meanings = env.unwrapped.get_action_meanings()
    if len(meanings) <= action or meanings[action] != meaning:
        raise AssertionError(f"env: its action {action} must be {meaning}, got the actions {meanings}.")
