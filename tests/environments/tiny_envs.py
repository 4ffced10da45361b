"""Tiny environments with observations, rewards and ends in closed form."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, NamedTuple

import cloudpickle
import gymnasium
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from minerva.environments.spaces import category_counts

# Worker processes cannot import the tests: these classes are pickled by value.
cloudpickle.register_pickle_by_value(sys.modules[__name__])

Observation = NDArray[np.float32]
TinyBase = gymnasium.Env[Observation, NDArray[np.float32]]


class Kind(NamedTuple):
    """The length of the episodes of environment i, and the end of episode k."""

    length: int
    longer: int  # additional steps per index of the environment
    endings: tuple[tuple[bool, bool], ...]  # (terminated, truncated) of episodes 0, 1, …, repeated

    def length_of(self, index: int) -> int:
        return self.length + self.longer * index


KINDS = {
    "terminates": Kind(2, 1, ((True, False),)),
    "truncates": Kind(3, 1, ((False, True),)),
    "alternates": Kind(2, 2, ((True, False), (False, True))),
    "both at once": Kind(4, 1, ((True, True),)),
    "one step": Kind(1, 0, ((True, False), (False, True))),
    "step number": Kind(10_000, 0, ((True, False),)),
}


class Tiny(TinyBase):
    """Observe the index of the environment, the episode, the step and the action that led there.

    Rewards are multiples of 1/4, so that sums with a discount of 1/2 are exact. It must be reset exactly when an
    episode has ended.
    """

    observation_space = spaces.Box(-np.inf, np.inf, (4,), np.float32)
    action_space = spaces.Box(-1.0, 1.0, (1,), np.float32)

    def __init__(self, kind: str = "terminates", index: int = 0) -> None:
        self.kind, self.index = KINDS[kind], index
        self.episode, self.steps, self.running = -1, 0, False

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Observation, Any]:
        assert not self.running, "reset in the middle of an episode"
        super().reset(seed=seed)
        self.episode, self.steps, self.running = self.episode + 1, 0, True
        return np.array([self.index, self.episode, 0, 0], dtype=np.float32), {}

    def step(self, action: NDArray[np.float32]) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        assert self.running, "step outside of an episode"
        assert self.action_space.contains(action), f"the action {action!r} is not in the box"
        self.steps += 1
        terminated, truncated = False, False
        if self.steps == self.kind.length_of(self.index):
            terminated, truncated = self.kind.endings[self.episode % len(self.kind.endings)]
            self.running = False
        observation = np.array([self.index, self.episode, self.steps, action[0]], dtype=np.float32)
        return observation, reward_of(self.index, self.episode, self.steps), terminated, truncated, {}


def reward_of(index: int, episode: int, step: int) -> float:
    """Return the reward of a step; its sign alternates between episodes, so that mean and deviation differ."""
    return (step + index / 4 + 1) * (1 if episode % 2 == 0 else -1)


class Noisy(TinyBase):
    """A random walk that is deterministic given its seed and actions."""

    observation_space = spaces.Box(-np.inf, np.inf, (2,), np.float32)
    action_space = spaces.Box(-1.0, 1.0, (1,), np.float32)

    def __init__(self, length: int = 5) -> None:
        self.length = length

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Observation, Any]:
        super().reset(seed=seed)
        self.steps, self.place = 0, self.np_random.normal()
        return self._see(), {}

    def step(self, action: NDArray[np.float32]) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        self.steps += 1
        self.place += float(action[0]) + self.np_random.normal()
        return self._see(), self.place, False, self.steps >= self.length, {}

    def _see(self) -> Observation:
        return np.array([self.place, self.steps], dtype=np.float32)


class Forgetful(Noisy):
    """Not deterministic: it ignores the seed."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Observation, Any]:
        return super().reset(seed=None)


class EndsEarlyWhenRepeated(Noisy):
    """Not deterministic: in the second instance, episodes end after two steps, and a further step raises."""

    def __init__(self, mark: Path, length: int = 9) -> None:
        super().__init__(length)
        self.second = mark.exists()
        mark.touch()

    def step(self, action: NDArray[np.float32]) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        if self.second and self.steps == 2:
            raise RuntimeError("stepped after its end")
        observation, reward, terminated, truncated, info = super().step(action)
        return observation, reward, terminated or (self.second and self.steps == 2), truncated, info


class FailsWhenRepeated(EndsEarlyWhenRepeated):
    """Not deterministic: in the second instance, every second step raises."""

    def step(self, action: NDArray[np.float32]) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        if self.second and self.steps == 1:
            raise RuntimeError("failed in the repetition")
        return Noisy.step(self, action)


class Writing(Noisy):
    """Write into the received action, as some environments do."""

    def step(self, action: NDArray[np.float32]) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        action *= 2
        return super().step(action)


class Failing(Noisy):
    """Fail at a given step of every episode (0: in reset)."""

    def __init__(self, what: str, at: int) -> None:
        super().__init__(length=100)
        self.what, self.at = what, at

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Observation, Any]:
        observation, info = super().reset(seed=seed)
        if self.at == 0:
            raise RuntimeError(self.what)
        return observation, info

    def step(self, action: NDArray[np.float32]) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        observation, reward, terminated, truncated, info = super().step(action)
        if self.steps == self.at:
            if self.what == "nan observation":
                observation[1] = np.nan
            elif self.what == "inf observation":
                observation[0] = np.inf
            elif self.what == "nan reward":
                reward = np.nan
            else:
                raise OSError(self.what)
        return observation, reward, terminated, truncated, info


class Talking(Noisy):
    """Wants words, which no policy has."""

    action_space = spaces.Text(5)  # type: ignore[assignment]


class Pulse(gymnasium.Env[Any, Any]):
    """Pays what its action is, ends after four steps."""

    observation_space = spaces.Box(-1, 1, (1,))
    action_space = spaces.Box(-1, 1, (1,))

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.time = 0
        return np.zeros(1, dtype=np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.time += 1
        return np.zeros(1, dtype=np.float32), float(action[0]), self.time == 4, False, {}


class Picking(gymnasium.Env[NDArray[Any], Any]):
    """Observe the received action; allow random actions next.

    Args:
        action_space: A discrete space.
        observation_space: A Box; its first numbers are the entries of the action, the others are random.
        mask: Form of the masks: ``"info"``, ``"parts"`` (in info, one array per entry), ``"method"`` or ``"none"``.
        length: Length of an episode.
    """

    def __init__(
        self,
        action_space: gymnasium.Space[Any],
        observation_space: spaces.Box,
        mask: str = "none",
        length: int = 7,
    ) -> None:
        self.action_space, self.observation_space = action_space, observation_space
        self.mask, self.length = mask, length
        if mask == "method":
            self.action_masks = self._flat_mask

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self.steps = 0
        return self._see(), self._info()

    def step(self, action: Any) -> Any:
        assert self.action_space.contains(action), f"{action!r} is not in {self.action_space}"
        self.steps += 1
        observation = self._see()
        entries = np.ravel(action)
        observation.reshape(-1)[: entries.size] = entries
        return observation, 1.0, self.steps == self.length, False, self._info()

    def _see(self) -> NDArray[Any]:
        self.masks = [
            (self.np_random.random(count) < 0.5) if self.steps < self.length else np.zeros(count, dtype=np.bool_)
            for count in category_counts(self.action_space)
        ]
        for mask in self.masks:
            if self.steps < self.length:
                mask[self.np_random.integers(mask.size)] = True
        drawn = self.np_random.integers(0, 256, self.observation_space.shape)
        return drawn.astype(self.observation_space.dtype)

    def _info(self) -> dict[str, Any]:
        if self.mask == "info":
            return {"action_mask": self._flat_mask()}
        return {"action_mask": tuple(self.masks)} if self.mask == "parts" else {}

    def _flat_mask(self) -> NDArray[np.int8]:
        return np.concatenate(self.masks).astype(np.int8)
