"""A replay buffer of whole episodes in Python lists, and streams to fill it; imports nothing from Minerva."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


class StepData(NamedTuple):
    """One step of N environments, in the order of the arguments of `ReplayBuffer.add`."""

    actions: Array  # [N, A]
    next_obs: Array  # [N, O]
    rewards: Array  # [N]
    terminated: Array  # [N]
    truncated: Array  # [N]
    restarting: Array  # [N]
    log_probs: Array  # [N]


class Stream:
    """Random short episodes of N environments with NEXT_STEP autoreset.

    The first number of each observation is unique.
    """

    def __init__(
        self, num_envs: int, obs_dim: int, action_dim: int, seed: int, end: float = 0.25, broken: float = 0.0
    ) -> None:
        self.shape = (num_envs, obs_dim, action_dim)
        self.random = np.random.default_rng(seed)
        self.end = end  # probability of a termination, and of a truncation
        self.broken = broken  # probability of a value that is not finite, for each of four kinds
        self.ended = np.zeros(num_envs, np.bool_)
        self.made = 0

    def observations(self) -> Array:
        num_envs, obs_dim, _ = self.shape
        obs = self.random.normal(size=(num_envs, obs_dim)).astype(np.float32)
        obs[:, 0] = self.made + np.arange(num_envs)
        self.made += num_envs
        obs[self.random_breaks(), -1] = self.random.choice([np.nan, np.inf, -np.inf])
        return obs

    def step(self) -> StepData:
        num_envs, _, action_dim = self.shape
        restarting = self.ended
        terminated = (self.random.random(num_envs) < self.end) & ~restarting
        truncated = (self.random.random(num_envs) < self.end) & ~restarting
        self.ended = terminated | truncated
        actions = self.random.normal(size=(num_envs, action_dim)).astype(np.float32)
        rewards = self.random.normal(size=num_envs) * ~restarting
        log_probs = self.random.normal(size=num_envs).astype(np.float32)
        actions[self.random_breaks(), 0] = np.nan
        rewards[self.random_breaks()] = np.inf
        log_probs[self.random_breaks()] = np.nan
        return StepData(actions, self.observations(), rewards, terminated, truncated, restarting, log_probs)

    def random_breaks(self) -> Array:
        return self.random.random(self.shape[0]) < self.broken


@dataclass
class Transition:
    time: int
    obs: Array
    action: Array
    reward: float
    terminated: bool
    truncated: bool
    next_obs: Array
    log_prob: float

    @property
    def ended(self) -> bool:
        return self.terminated or self.truncated

    @property
    def finite(self) -> bool:
        values = [*self.obs, *self.action, self.reward, *self.next_obs, self.log_prob]
        return all(math.isfinite(value) for value in values)


@dataclass
class Oracle:
    """All episodes so far; the newest `capacity` transitions that are finite can be sampled."""

    capacity: int
    obs: Array
    episodes: list[list[list[Transition]]] = field(default_factory=list)  # [environment][episode][step]
    now: int = 0

    def __post_init__(self) -> None:
        self.episodes = [[[]] for _ in self.obs]

    def add(self, given: StepData) -> int:
        added = 0
        for n, of_env in enumerate(self.episodes):
            if given.restarting[n]:
                of_env.append([])
                continue
            new = Transition(
                self.now, self.obs[n], given.actions[n], float(given.rewards[n]), bool(given.terminated[n]),
                bool(given.truncated[n]), given.next_obs[n], float(given.log_probs[n]),
            )  # fmt: skip
            of_env[-1].append(new)
            added += new.finite
        self.obs = given.next_obs
        self.now += 1
        return added

    @property
    def dropped(self) -> int:
        return sum(not step.finite for of_env in self.episodes for episode in of_env for step in episode)

    def windows(self, length: int) -> dict[float, list[Transition]]:
        """Return every window by the number of its first observation."""
        found = {}
        order = [
            (step.time, n) for n, of_env in enumerate(self.episodes) for one in of_env for step in one if step.finite
        ]
        oldest = min(sorted(order)[-self.capacity :], default=(0, 0))
        for n, of_env in enumerate(self.episodes):
            for episode in of_env:
                for i, step in enumerate(episode):
                    if step.finite and (step.time, n) >= oldest:
                        window = [step]
                        for following in episode[i + 1 : i + length]:
                            if not following.finite:
                                break
                            window.append(following)
                        found[float(step.obs[0])] = window
        return found
