"""Atari games with the preprocessing of the DQN papers, as EnvPool's games have it too.

Four frames a step, the brighter of the last two shown in grey on 84 x 84 pixels, four of these stacked; no sticky
actions. A game, and each life of it, starts with a number of idle frames that is drawn anew, and with the fire button
where the game has one. For learning, a life is an episode and a reward is its sign; evaluation plays whole games for
their points.
"""

from __future__ import annotations

from typing import Any, SupportsFloat

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.wrappers import AtariPreprocessing
from numpy.typing import NDArray

FRAMES_A_STEP = 4
FRAMES_SHOWN = 4
MAX_IDLE_FRAMES = 30

Frame = NDArray[np.uint8]
Info = dict[str, Any]


def make_atari(name: str, kwargs: dict[str, Any], training: bool) -> gymnasium.Env[Any, Any]:
    """Make one game.

    Args:
        name: ``ALE/<Game>-v5``.
        kwargs: For the emulator: ``mode``, ``difficulty``, ``full_action_space``, ``repeat_action_probability``, …
        training: A life as an episode and the sign of a reward, or whole games and their points.

    Raises:
        ValueError: An argument is fixed by the preprocessing.
    """
    for fixed in ("frameskip", "obs_type", "continuous", "sound_obs"):
        if fixed in kwargs:
            raise ValueError(
                f"env_kwargs: {fixed} belongs to the preprocessing of Atari games and cannot be set, got "
                f"{kwargs[fixed]!r}. Give a function that makes the environment in place of {name} to choose your own."
            )
    import ale_py

    ale_py.ALEInterface.setLoggerMode(ale_py.LoggerMode.Error)  # it would greet in the middle of the progress bar
    options = {"repeat_action_probability": 0.0, **kwargs}
    game = gymnasium.make(name, disable_env_checker=True, frameskip=1, obs_type="grayscale", **options)
    sticky = options["repeat_action_probability"] > 0
    seen = AtariPreprocessing(StartsByItself(game, sticky), noop_max=0, frame_skip=FRAMES_A_STEP)
    return Lives(StackFrames(seen), training)


class StartsByItself(gymnasium.Wrapper[Frame, Any, Frame, Any]):
    """Idles for some frames, drawn at random, and presses fire where there is such a button: the start of every life.

    A reset with a seed, or after a game's end, starts a game; without a seed it goes on with the one that runs.

    Args:
        env: The emulator, one frame a step.
        sticky: Whether the emulator itself draws random numbers, so that a seed has to reach it.
    """

    def __init__(self, env: gymnasium.Env[Frame, Any], sticky: bool) -> None:
        super().__init__(env)
        self._ale = env.get_wrapper_attr("ale")
        meanings: list[str] = env.get_wrapper_attr("get_action_meanings")()
        self._fire = meanings.index("FIRE") if "FIRE" in meanings else None
        self._sticky = sticky
        self._generator = np.random.default_rng()
        self._running = False
        self._power_on: Any = None  # the emulator's state before the first frame of a game

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[Frame, Info]:
        """Start a game or a life."""
        if seed is not None:
            self._generator = np.random.default_rng(seed)
        new = seed is not None or not self._running
        if new:
            self._start_game(seed)
        # The frame of the fire button is one of the thirty.
        idle = int(self._generator.integers(MAX_IDLE_FRAMES)) + (self._fire is None)
        for action in [0] * idle + ([] if self._fire is None else [self._fire]):
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
            # A reset with a seed reads the game's file anew, which takes as long as hundreds of frames. Of these two,
            # the one leaves the emulator's random numbers where they are and the other the screen: it takes both.
            self._ale.reset_game()
            self._ale.restoreSystemState(self._power_on)

    def step(self, action: Any) -> tuple[Frame, SupportsFloat, bool, bool, Info]:
        """Step one frame."""
        frame, reward, terminated, truncated, info = self.env.step(action)
        self._running = not (terminated or truncated)
        return frame, reward, terminated, truncated, info


class StackFrames(gymnasium.Wrapper[Frame, Any, Frame, Any]):
    """Shows the newest frames, oldest first. A game's first frame fills all places, a later life's only the last."""

    def __init__(self, env: gymnasium.Env[Frame, Any]) -> None:
        super().__init__(env)
        assert isinstance(env.observation_space, spaces.Box)
        self.observation_space = spaces.Box(0, 255, (FRAMES_SHOWN, *env.observation_space.shape), np.uint8)
        self._frames = np.zeros(self.observation_space.shape, dtype=np.uint8)

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[Frame, Info]:
        """Start a game or a life."""
        frame, info = self.env.reset(seed=seed, options=options)
        if info["new_game"]:
            self._frames[:] = frame
        return self._with(frame), info

    def step(self, action: Any) -> tuple[Frame, SupportsFloat, bool, bool, Info]:
        """Step, and show the frame beside those before it."""
        frame, reward, terminated, truncated, info = self.env.step(action)
        return self._with(frame), reward, terminated, truncated, info

    def _with(self, frame: Frame) -> Frame:
        self._frames[:-1] = self._frames[1:]
        self._frames[-1] = frame
        return self._frames.copy()


class Lives(gymnasium.Wrapper[Frame, Any, Frame, Any]):
    """Deals with lost lives: the end of an episode while learning, just another start in an evaluation.

    While learning, a lost life is ``terminated`` with ``info["life_lost"]``, the next reset without a seed goes on with
    the game, and ``info["score"]`` has the points whose sign is the reward.

    Args:
        env: The game, of which a reset without a seed starts the next life.
        training: Whether it is learned from.
    """

    def __init__(self, env: gymnasium.Env[Frame, Any], training: bool) -> None:
        super().__init__(env)
        self._training = training
        if training:
            self.tells_score = True  # episodes are counted in points, not in what is learned from
        self._ale = env.get_wrapper_attr("ale")
        self._lives = 0

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[Frame, Info]:
        """Start a game or a life."""
        frames, info = self.env.reset(seed=seed, options=options)
        self._lives = self._ale.lives()
        return frames, info

    def step(self, action: Any) -> tuple[Frame, SupportsFloat, bool, bool, Info]:
        """Step, and look whether a life was lost."""
        frames, reward, terminated, truncated, info = self.env.step(action)
        lives = self._ale.lives()
        # No lives left is not yet the end of every game: some go on for a few frames.
        lost = 0 < lives < self._lives and not (terminated or truncated)
        self._lives = lives
        if self._training:
            info = {**info, "score": reward, "life_lost": lost}
            return frames, float(np.sign(float(reward))), terminated or lost, truncated, info
        if lost:
            frames, info = self.reset()  # the button was pressed for it while it learned
        return frames, reward, terminated, truncated, info
