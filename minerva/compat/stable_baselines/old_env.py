"""One environment as a vector environment of stable-baselines sees it (no torch here: worker processes import this)."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, SupportsFloat

import gymnasium
import numpy as np

Info = dict[str, Any]
EnvFactory = Callable[[], "gymnasium.Env[Any, Any]"]

CONVERT = (
    "stable-baselines' scripts were written for gym, which is no longer maintained: let the class inherit from "
    "gymnasium.Env, return (observation, info) from reset(seed=None, options=None), and (observation, reward, "
    "terminated, truncated, info) from step"
)


class OldFace(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Restarts by itself and keeps a record of episodes; `reset` and `step` are the environment's own.

    Args:
        env: What is wrapped.
    """

    def __init__(self, env: gymnasium.Env[Any, Any]) -> None:
        super().__init__(env)
        # Of the next restart: at first drawn, since a group may have reset it with a seed of its own to look at it.
        self._seed: int | None = int(np.random.SeedSequence().generate_state(1)[0] >> 1)
        self._over = True
        self._return = 0.0
        self._length = 0
        self._begin = time.time()

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[Any, Info]:
        """Start an episode."""
        answer = self.env.reset(seed=seed, options=options)
        if not (isinstance(answer, tuple) and len(answer) == 2 and isinstance(answer[1], dict)):
            raise ValueError(f"env: reset must return (observation, info), got {type(answer).__name__}; {CONVERT}.")
        if answer[1].get("new_game", True):  # in an Atari game the next life belongs to the same record
            self._return, self._length = 0.0, 0
        self._over = False
        return answer

    def step(self, action: Any) -> tuple[Any, SupportsFloat, bool, bool, Info]:
        """Take a step."""
        answer = self.env.step(action)
        if len(answer) != 5:
            raise ValueError(f"env: step must return five values, got {len(answer)}; {CONVERT}.")
        _, reward, terminated, truncated, info = answer
        self._return += float(info.get("score", reward))
        self._length += 1
        self._over = terminated or truncated
        return answer

    def seed_next(self, seed: int) -> None:
        """Seed the next restart."""
        self._seed = seed

    def restart(self) -> Any:
        """Start an episode, with the seed that was given for it; returns its first observation."""
        seed, self._seed = self._seed, None
        return self.reset(seed=seed)[0]

    def advance(self, action: Any) -> tuple[Any, float, bool, Info]:
        """Take a step, and where it ends an episode begin the next at once.

        Returns:
            The observation (of the next episode, where one ended), reward, whether an episode ended, and the info:
            with ``terminal_observation``, ``TimeLimit.truncated`` and, of a whole episode, ``episode`` where one did.
        """
        if self._over:  # training left it at an episode's end
            return self.restart(), 0.0, False, {}
        observation, reward, terminated, truncated, info = self.step(action)
        if not (terminated or truncated):
            return observation, float(reward), False, info
        info = {**info, "terminal_observation": observation, "TimeLimit.truncated": truncated and not terminated}
        if not info.get("life_lost", False):
            elapsed = round(time.time() - self._begin, 6)
            info["episode"] = {"r": round(self._return, 6), "l": self._length, "t": elapsed}
        return self.restart(), float(reward), True, info


class NewestFrame(gymnasium.ObservationWrapper[Any, Any, Any]):
    """Shows the newest of stacked frames, ``[H, W, 1]``.

    Args:
        env: Its observations are frames ``[K, H, W]``, the newest last.
    """

    def __init__(self, env: gymnasium.Env[Any, Any]) -> None:
        super().__init__(env)
        _, *size = env.observation_space.shape or ()
        self.observation_space = gymnasium.spaces.Box(0, 255, (*size, 1), np.uint8)

    def observation(self, observation: Any) -> Any:
        """Give the newest frame."""
        return observation[-1][..., None]


def atari_game(env_id: str) -> gymnasium.Env[Any, Any]:
    """Make a game to learn from: a life is an episode, a reward its sign, and one grey frame is shown."""
    import ale_py

    from minerva.environments.atari import make_atari

    gymnasium.register_envs(ale_py)
    return NewestFrame(make_atari(env_id, {}, training=True))


def with_old_face(factory: EnvFactory) -> EnvFactory:
    """Wrap what a function makes.

    Raises:
        ValueError: It is none of Gymnasium's environments; raised by the function that is returned.
    """

    def make() -> gymnasium.Env[Any, Any]:
        env: Any = factory()
        if not isinstance(env, gymnasium.Env):  # an old gym environment, most likely
            raise ValueError(
                f"env: must be a gymnasium.Env, got {type(env).__module__}.{type(env).__name__}. {CONVERT}."
            )
        return OldFace(env)

    return make
