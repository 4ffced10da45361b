"""The Gymnasium backend: any `gymnasium.Env`, in this process or in worker processes, saved and resumed exactly."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
import torch
from gymnasium import Space
from numpy.typing import NDArray

from minerva.environments.base import EnvironmentFailureError, EpisodeStatistics, Rows, Step, box_bounds, check_finite
from minerva.environments.ids import EnvFactory
from minerva.environments.spaces import flat_size, row_dtype
from minerva.environments.workers import CONTINUE, STEP, Group, LocalGroup, SubprocessGroup
from minerva.utils.seeding import numpy_generator_state, set_numpy_generator_state

Vectorization = Literal["sync", "subprocess"]


class GymnasiumBatch:
    """N Gymnasium environments with NEXT_STEP autoreset.

    Each episode is reset with a seed of its own, drawn from its environment's generator. A saved state holds that seed
    and the actions since; resuming replays them, so no environment has to know how to save itself. A game that goes on
    after an episode (``info["life_lost"]`` at its end) is replayed from the game's start: its episodes are lives, each
    begun by a reset without a seed, and what is reported as an episode is the whole game.

    Args:
        factories: One function an environment.
        seed: Environment i draws its episodes' seeds from a generator seeded with ``seed + i``.
        vectorization: ``"sync"`` (this process) or ``"subprocess"`` (worker processes).
        num_workers: Worker processes; None for one a core.
        allow_non_finite: Hand on what is not a finite number, in place of failing over it.
        group: The environments, where they were made of these factories already.
    """

    def __init__(
        self,
        factories: Sequence[EnvFactory],
        seed: int,
        vectorization: Vectorization = "sync",
        num_workers: int | None = None,
        allow_non_finite: bool = False,
        group: Group | None = None,
    ) -> None:
        self._allow_non_finite = allow_non_finite
        self.num_envs = n = len(factories)
        self._group: Group = group or (
            LocalGroup(factories) if vectorization == "sync" else SubprocessGroup(factories, num_workers)
        )
        self.raw_observation_space: Space[Any] = self._group.spaces[0]
        self.action_space: Space[Any] = self._group.spaces[1]
        self.mask_dim = self._group.mask_dim
        self.observation_dim = flat_size(self.raw_observation_space) + self.mask_dim
        self.observation_dtype = row_dtype(self.raw_observation_space)
        self.description = f"Gymnasium, {n} environment{'s' * (n > 1)}, {self._group.description}"
        self.statistics = EpisodeStatistics(n)
        self._generators = [np.random.default_rng(seed + i) for i in range(n)]
        self._episode_seeds = np.zeros(n, dtype=np.int64)
        self._ended = np.zeros(n, dtype=np.bool_)  # the next step restarts these
        self._goes_on = np.zeros(n, dtype=np.bool_)  # … and of these, the games of these go on
        self._observations = np.zeros((n, self.observation_dim), dtype=self.observation_dtype)
        action_dim = int(np.prod(self.action_space.shape or ()))
        self._history = np.zeros((1024, n, action_dim), dtype=np.float32)  # the newest actions, …
        self._taken = 0  # … how many are there, …
        self._begins = [0] * n  # … and from which on they are of the running episode
        self._continued: list[list[int]] = [[] for _ in range(n)]  # places in an episode's actions where a life began
        self._step_everywhere = np.full(n, STEP, dtype=np.int64)
        self._failed = False
        self._low, self._high = box_bounds(self.action_space)

    def reset(self) -> Rows:
        """Start an episode everywhere and return the first observations, ``[N, O]``."""
        self._ended[:] = True
        self._goes_on[:] = False
        self.statistics = EpisodeStatistics(self.num_envs)
        return self.step(np.zeros_like(self._history[0])).observations

    @property
    def restarts_next(self) -> NDArray[np.bool_]:
        """Which environments the next step takes into a new episode, ``[N]``."""
        return self._ended.copy()

    def step(self, actions: NDArray[np.float32]) -> Step:
        """Step everywhere; an environment whose episode has ended restarts instead."""
        actions = np.minimum(np.maximum(actions, self._low), self._high)
        restarting, orders = self._ended, self._step_everywhere
        restarts = restarting.nonzero()[0].tolist()
        if restarts:
            orders = orders.copy()
            for i in restarts:
                if self._goes_on[i]:
                    orders[i] = CONTINUE
                else:
                    orders[i] = self._episode_seeds[i] = self._generators[i].integers(2**31)
        if self._failed:
            raise EnvironmentFailureError("an environment failed before: make a new trainer, and load the run's folder")
        self._failed = True  # until this step is complete: one that broke off leaves environments ahead of the history
        outcome = self._group.apply(actions, orders)
        observations, rewards = outcome.observations.copy(), outcome.rewards.copy()
        terminated, truncated = outcome.terminated.copy(), outcome.truncated.copy()
        if not self._allow_non_finite:
            check_finite(observations, rewards)
        self._failed = False
        self._remember(actions, restarts)
        self._ended = terminated | truncated
        self._goes_on = outcome.goes_on.copy()
        self._observations = observations
        episodes = self.statistics.add(outcome.scores, self._ended ^ self._goes_on, restarting)
        return Step(observations, rewards, terminated, truncated, restarting, episodes)

    def _remember(self, actions: NDArray[np.float32], restarts: list[int]) -> None:
        if self._taken == len(self._history):
            self._make_room()
        self._history[self._taken] = actions
        for i in restarts:
            if self._goes_on[i]:
                self._continued[i].append(self._taken - self._begins[i])
            else:
                self._continued[i], self._begins[i] = [], self._taken + 1
        self._taken += 1

    def _make_room(self) -> None:
        """Let go of actions of episodes that have all ended, or where there are few of these, make more room."""
        oldest = min(self._begins)
        kept = self._history[oldest : self._taken]
        capacity = len(self._history) * (1 if 2 * len(kept) <= len(self._history) else 2)
        self._history = np.zeros((capacity, *kept.shape[1:]), dtype=np.float32)
        self._history[: len(kept)] = kept
        self._taken = len(kept)
        self._begins = [begin - oldest for begin in self._begins]

    def state_dict(self) -> dict[str, Any]:
        """Give seeds, actions since, generators and statistics."""
        return {
            "generators": [numpy_generator_state(generator) for generator in self._generators],
            "episode_seeds": self._episode_seeds.tolist(),
            "actions": [
                torch.from_numpy(self._history[begin : self._taken, i].copy()) for i, begin in enumerate(self._begins)
            ],
            "continued": [list(places) for places in self._continued],
            "ended": self._ended.tolist(),
            "goes_on": self._goes_on.tolist(),
            "observations": torch.from_numpy(self._observations.copy()),
            "returns": self.statistics.returns.tolist(),
            "lengths": self.statistics.lengths.tolist(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> str | None:
        """Replay each running episode from its seed; returns a sentence where it came out otherwise than it was."""
        if "episode_seeds" not in state:
            self._ended[:], self._goes_on[:] = True, False
            self.statistics = EpisodeStatistics(self.num_envs)
            return "the run was saved with another backend, so fresh episodes start here"
        for generator, plain in zip(self._generators, state["generators"], strict=True):
            set_numpy_generator_state(generator, plain)
        self._episode_seeds[:] = state["episode_seeds"]
        self._ended[:] = state["ended"]
        nothing = [False] * self.num_envs  # a run that was saved before games could go on
        self._goes_on[:] = state.get("goes_on", nothing)
        self._continued = [list(places) for places in state.get("continued", [[] for _ in nothing])]
        self.statistics.returns[:] = state["returns"]
        self.statistics.lengths[:] = state["lengths"]
        actions = [tensor.numpy() for tensor in state["actions"]]
        self._taken = max(len(taken) for taken in actions)
        self._begins = [self._taken - len(taken) for taken in actions]
        capacity = len(self._history)
        while capacity <= self._taken:
            capacity *= 2
        self._history = np.zeros((capacity, *self._history.shape[1:]), dtype=np.float32)
        for i, (begin, taken) in enumerate(zip(self._begins, actions, strict=True)):
            self._history[begin : self._taken, i] = taken
        # An episode that has ended is left by a reset with a fresh seed: there is nothing to replay.
        running = ~self._ended | self._goes_on
        seeds = [seed if runs else None for seed, runs in zip(self._episode_seeds.tolist(), running, strict=True)]
        reached = self._group.replay(seeds, actions, self._continued)
        self._observations = state["observations"].numpy().copy()
        if not np.array_equal(reached[running], self._observations[running], equal_nan=True):
            return (
                "an environment did not come back to the state it was saved in: it is not deterministic given its seed "
                "and actions, so this run goes on but is not bit for bit what it would have been"
            )
        return None

    def close(self) -> None:
        """Release processes and simulators."""
        self._group.close()
