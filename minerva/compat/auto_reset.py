"""Wrappers for the environments of a `VecEnv` (this file must not import torch: worker processes import it)."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, SupportsFloat

import gymnasium
import numpy as np

Info = dict[str, Any]
EnvFactory = Callable[[], "gymnasium.Env[Any, Any]"]

MIGRATION_HINT = (
    "stable-baselines scripts were written for gym, which is no longer maintained: let the class inherit from "
    "gymnasium.Env, return (observation, info) from reset(seed=None, options=None), and (observation, reward, "
    "terminated, truncated, info) from step"
)


class AutoResetEnv(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Add to an environment a step with automatic reset, and record its episodes; `reset` and `step` stay as they are.

    Args:
        env: The environment.
    """

    def __init__(self, env: gymnasium.Env[Any, Any]) -> None:
        super().__init__(env)
        # Seed of the next restart. The first is random: a group may have reset the environment with a fixed one.
        self._seed: int | None = int(np.random.SeedSequence().generate_state(1)[0] >> 1)
        self._episode_over = True
        self._return = 0.0
        self._length = 0
        self._start_time = time.time()

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[Any, Info]:
        """Start an episode."""
        result = self.env.reset(seed=seed, options=options)
        if not (isinstance(result, tuple) and len(result) == 2 and isinstance(result[1], dict)):
            raise ValueError(
                f"env: reset must return (observation, info), got {type(result).__name__}; {MIGRATION_HINT}."
            )
        if result[1].get("new_game", True):  # the lives of one Atari game are recorded as one episode
            self._return, self._length = 0.0, 0
        self._episode_over = False
        return result

    def step(self, action: Any) -> tuple[Any, SupportsFloat, bool, bool, Info]:
        """Take a step."""
        result = self.env.step(action)
        if len(result) != 5:
            raise ValueError(f"env: step must return five values, got {len(result)}; {MIGRATION_HINT}.")
        _, reward, terminated, truncated, info = result
        self._return += float(info.get("score", reward))
        self._length += 1
        self._episode_over = terminated or truncated
        return result

    def seed_next(self, seed: int) -> None:
        """Set the seed of the next restart."""
        self._seed = seed

    def restart(self) -> Any:
        """Start an episode with the seed set for it, if any, and return the first observation."""
        seed, self._seed = self._seed, None
        return self.reset(seed=seed)[0]

    def advance(self, action: Any) -> tuple[Any, float, bool, Info]:
        """Take a step; if it ends the episode, start the next one.

        Returns:
            The observation (the first of the next episode if one ended), the reward, whether an episode ended, and the
            info. After an episode the info has ``terminal_observation`` and ``TimeLimit.truncated``, and ``episode``
            unless the end was a lost life.
        """
        if self._episode_over:  # training stopped at the end of an episode
            return self.restart(), 0.0, False, {}
        observation, reward, terminated, truncated, info = self.step(action)
        if not (terminated or truncated):
            return observation, float(reward), False, info
        info = {**info, "terminal_observation": observation, "TimeLimit.truncated": truncated and not terminated}
        if not info.get("life_lost", False):
            elapsed = round(time.time() - self._start_time, 6)
            info["episode"] = {"r": round(self._return, 6), "l": self._length, "t": elapsed}
        return self.restart(), float(reward), True, info


class LastFrame(gymnasium.ObservationWrapper[Any, Any, Any]):
    """Return the newest of the stacked frames, ``[H, W, 1]``.

    Args:
        env: An environment whose observations are frames ``[K, H, W]``, the newest last.
    """

    def __init__(self, env: gymnasium.Env[Any, Any]) -> None:
        super().__init__(env)
        _, *size = env.observation_space.shape or ()
        self.observation_space = gymnasium.spaces.Box(0, 255, (*size, 1), np.uint8)

    def observation(self, observation: Any) -> Any:
        """Return the newest frame."""
        return observation[-1][..., None]


def atari_game(env_id: str) -> gymnasium.Env[Any, Any]:
    """Make an Atari environment for training: one episode per life, clipped rewards, one grayscale frame."""
    import ale_py

    from minerva.environments.atari import make_atari

    gymnasium.register_envs(ale_py)
    return LastFrame(make_atari(env_id, {}, training=True))


def with_auto_reset(factory: EnvFactory) -> EnvFactory:
    """Return a function that wraps the environments of another in `AutoResetEnv`.

    It raises a ValueError if the environment is not a `gymnasium.Env`.
    """

    def make() -> gymnasium.Env[Any, Any]:
        env: Any = factory()
        if not isinstance(env, gymnasium.Env):  # an old gym environment, most likely
            raise ValueError(
                f"env: must be a gymnasium.Env, got {type(env).__module__}.{type(env).__name__}. {MIGRATION_HINT}."
            )
        return AutoResetEnv(env)

    return make
