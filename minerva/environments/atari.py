"""Atari games with the preprocessing of the DQN papers, the same as in EnvPool.

Four frames per step, the maximum of the last two in gray at 84 x 84 pixels, four of these stacked; no sticky actions.
Each game and each life starts with a random number of no-op frames, and with the fire button if the game has one. In
training, a life is an episode and rewards are clipped to their sign; evaluation plays whole games for their score.
"""

from __future__ import annotations

from typing import Any, SupportsFloat

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.wrappers import AtariPreprocessing
from numpy.typing import NDArray

FRAME_SKIP = 4
STACKED_FRAMES = 4
MAX_NOOP_FRAMES = 30

Frame = NDArray[np.uint8]
Info = dict[str, Any]


def make_atari(name: str, kwargs: dict[str, Any], training: bool) -> gymnasium.Env[Any, Any]:
    """Build one Atari game with its preprocessing.

    Args:
        name: ``ALE/<Game>-v5``.
        kwargs: For the emulator: ``mode``, ``difficulty``, ``full_action_space``, ``repeat_action_probability``, …
        training: Lives as episodes and rewards as signs, or else whole games and their score.

    Raises:
        ValueError: An argument is fixed by the preprocessing.
    """
    for fixed in ("frameskip", "obs_type", "continuous", "sound_obs"):
        if fixed in kwargs:
            raise ValueError(
                f"env_kwargs: {fixed} is fixed by the preprocessing of Atari games, got {kwargs[fixed]!r}; "
                f"to choose your own, pass a function that builds the environment instead of {name}."
            )
    import ale_py

    ale_py.ALEInterface.setLoggerMode(ale_py.LoggerMode.Error)  # its banner would break the progress bar
    options = {"repeat_action_probability": 0.0, **kwargs}
    game = gymnasium.make(name, disable_env_checker=True, frameskip=1, obs_type="grayscale", **options)
    sticky = options["repeat_action_probability"] > 0
    preprocessed = AtariPreprocessing(NoopFireReset(game, sticky), noop_max=0, frame_skip=FRAME_SKIP)
    return EpisodicLife(StackFrames(preprocessed), training)


class NoopFireReset(gymnasium.Wrapper[Frame, Any, Frame, Any]):
    """Start every life with a random number of no-op frames, then press fire if the game has that button.

    A reset with a seed, or after the end of a game, starts a new game; without a seed, it continues the current game.

    Args:
        env: The emulator, one frame per step.
        sticky: Whether the emulator draws random numbers itself and so needs the seed.
    """

    def __init__(self, env: gymnasium.Env[Frame, Any], sticky: bool) -> None:
        super().__init__(env)
        self._ale = env.get_wrapper_attr("ale")
        meanings: list[str] = env.get_wrapper_attr("get_action_meanings")()
        self._fire = meanings.index("FIRE") if "FIRE" in meanings else None
        self._sticky = sticky
        self._generator = np.random.default_rng()
        self._running = False
        self._power_on: Any = None  # emulator state before the first frame of a game

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[Frame, Info]:
        """Start a game or a life."""
        if seed is not None:
            self._generator = np.random.default_rng(seed)
        new = seed is not None or not self._running
        if new:
            self._start_game(seed)
        # The frame of the fire button is one of the thirty.
        noops = int(self._generator.integers(MAX_NOOP_FRAMES)) + (self._fire is None)
        for action in [0] * noops + ([] if self._fire is None else [self._fire]):
            frame, _, terminated, truncated, info = self.env.step(action)
            if terminated or truncated:
                self._start_game(None)
                new = True
        self._running = True
        return frame, {**info, "new_game": new}

    def _start_game(self, seed: int | None) -> None:
        if self._sticky:
            self.env.reset(seed=seed)
        elif self._power_on is None:
            self.env.reset(seed=0)
            self._power_on = self._ale.cloneSystemState()
        else:
            # A reset with a seed reads the ROM file again, which takes as long as hundreds of frames. It needs both
            # calls: the first does not restore the emulator's random numbers, the second not the screen.
            self._ale.reset_game()
            self._ale.restoreSystemState(self._power_on)

    def step(self, action: Any) -> tuple[Frame, SupportsFloat, bool, bool, Info]:
        """Step one frame."""
        frame, reward, terminated, truncated, info = self.env.step(action)
        self._running = not (terminated or truncated)
        return frame, reward, terminated, truncated, info


class StackFrames(gymnasium.Wrapper[Frame, Any, Frame, Any]):
    """Stack the newest frames, oldest first. Only the first frame of a game fills the whole stack."""

    def __init__(self, env: gymnasium.Env[Frame, Any]) -> None:
        super().__init__(env)
        assert isinstance(env.observation_space, spaces.Box)
        self.observation_space = spaces.Box(0, 255, (STACKED_FRAMES, *env.observation_space.shape), np.uint8)
        self._frames = np.zeros(self.observation_space.shape, dtype=np.uint8)

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[Frame, Info]:
        """Start a game or a life."""
        frame, info = self.env.reset(seed=seed, options=options)
        if info["new_game"]:
            self._frames[:] = frame
        return self._push(frame), info

    def step(self, action: Any) -> tuple[Frame, SupportsFloat, bool, bool, Info]:
        """Step and return the newest frames."""
        frame, reward, terminated, truncated, info = self.env.step(action)
        return self._push(frame), reward, terminated, truncated, info

    def _push(self, frame: Frame) -> Frame:
        self._frames[:-1] = self._frames[1:]
        self._frames[-1] = frame
        return self._frames.copy()


class EpisodicLife(gymnasium.Wrapper[Frame, Any, Frame, Any]):
    """End an episode with each lost life in training; start the next life within the episode in evaluation.

    In training, a lost life is ``terminated`` with ``info["life_lost"]``, the next reset without a seed continues the
    game, and ``info["score"]`` is the unclipped reward.

    Args:
        env: The game; a reset without a seed starts the next life.
        training: Whether it is for training.
    """

    def __init__(self, env: gymnasium.Env[Frame, Any], training: bool) -> None:
        super().__init__(env)
        self._training = training
        if training:
            self.tells_score = True  # episode returns are sums of info["score"], not of rewards
        self._ale = env.get_wrapper_attr("ale")
        self._lives = 0

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[Frame, Info]:
        """Start a game or a life."""
        frames, info = self.env.reset(seed=seed, options=options)
        self._lives = self._ale.lives()
        return frames, info

    def step(self, action: Any) -> tuple[Frame, SupportsFloat, bool, bool, Info]:
        """Step and check whether a life was lost."""
        frames, reward, terminated, truncated, info = self.env.step(action)
        lives = self._ale.lives()
        # Some games continue for a few frames without lives.
        lost = 0 < lives < self._lives and not (terminated or truncated)
        self._lives = lives
        if self._training:
            info = {**info, "score": reward, "life_lost": lost}
            return frames, float(np.sign(float(reward))), terminated or lost, truncated, info
        if lost:
            frames, info = self.reset()  # press fire, as in training
        return frames, reward, terminated, truncated, info
