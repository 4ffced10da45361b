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

    Each episode is reset with its own seed from its environment's generator. A saved state holds that seed and the
    actions since; resuming replays them, so environments need no support for saving. If a game continues after an
    episode (``info["life_lost"]`` at its end), it is replayed from the start of the game: its episodes are lives, each
    started by a reset without a seed, and the whole game is reported as one episode.

    Args:
        factories: One function per environment.
        seed: Environment i draws the seeds of its episodes from a generator seeded with ``seed + i``.
        vectorization: ``"sync"`` (this process) or ``"subprocess"`` (worker processes).
        num_workers: Worker processes (default: one per core).
        allow_non_finite: Pass on values that are not finite instead of raising an error.
        group: The environments, if they were already built from these factories.
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
        self._life_lost = np.zeros(n, dtype=np.bool_)  # the subset whose game continues
        self._observations = np.zeros((n, self.observation_dim), dtype=self.observation_dtype)
        action_dim = int(np.prod(self.action_space.shape or ()))
        self._history = np.zeros((1024, n, action_dim), dtype=np.float32)  # the newest actions
        self._history_length = 0
        self._episode_starts = [0] * n  # index of the current episode's first action in the history
        self._life_starts: list[list[int]] = [[] for _ in range(n)]  # indices in an episode where a life starts
        self._step_orders = np.full(n, STEP, dtype=np.int64)
        self._failed = False
        self._low, self._high = box_bounds(self.action_space)

    def reset(self) -> Rows:
        """Start an episode in every environment and return the first observations, ``[N, O]``."""
        self._ended[:] = True
        self._life_lost[:] = False
        self.statistics = EpisodeStatistics(self.num_envs)
        return self.step(np.zeros_like(self._history[0])).observations

    @property
    def restarts_next(self) -> NDArray[np.bool_]:
        """Return which environments the next step restarts, ``[N]``."""
        return self._ended.copy()

    def step(self, actions: NDArray[np.float32]) -> Step:
        """Step every environment; one whose episode has ended restarts instead."""
        actions = np.minimum(np.maximum(actions, self._low), self._high)
        restarting, orders = self._ended, self._step_orders
        restarts = restarting.nonzero()[0].tolist()
        if restarts:
            orders = orders.copy()
            for i in restarts:
                if self._life_lost[i]:
                    orders[i] = CONTINUE
                else:
                    orders[i] = self._episode_seeds[i] = self._generators[i].integers(2**31)
        if self._failed:
            raise EnvironmentFailureError("an environment failed before: make a new trainer, and load the run's folder")
        self._failed = True  # until the step is complete: an incomplete one leaves environments ahead of the history
        outcome = self._group.apply(actions, orders)
        observations, rewards = outcome.observations.copy(), outcome.rewards.copy()
        terminated, truncated = outcome.terminated.copy(), outcome.truncated.copy()
        if not self._allow_non_finite:
            check_finite(observations, rewards)
        self._failed = False
        self._record(actions, restarts)
        self._ended = terminated | truncated
        self._life_lost = outcome.goes_on.copy()
        self._observations = observations
        episodes = self.statistics.add(outcome.scores, self._ended ^ self._life_lost, restarting)
        return Step(observations, rewards, terminated, truncated, restarting, episodes)

    def _record(self, actions: NDArray[np.float32], restarts: list[int]) -> None:
        if self._history_length == len(self._history):
            self._compact_history()
        self._history[self._history_length] = actions
        for i in restarts:
            if self._life_lost[i]:
                self._life_starts[i].append(self._history_length - self._episode_starts[i])
            else:
                self._life_starts[i], self._episode_starts[i] = [], self._history_length + 1
        self._history_length += 1

    def _compact_history(self) -> None:
        """Drop the actions before all current episodes; double the capacity if that frees less than half."""
        oldest = min(self._episode_starts)
        kept = self._history[oldest : self._history_length]
        capacity = len(self._history) * (1 if 2 * len(kept) <= len(self._history) else 2)
        self._history = np.zeros((capacity, *kept.shape[1:]), dtype=np.float32)
        self._history[: len(kept)] = kept
        self._history_length = len(kept)
        self._episode_starts = [begin - oldest for begin in self._episode_starts]

    def state_dict(self) -> dict[str, Any]:
        """Return episode seeds, actions since, generators and statistics."""
        return {
            "generators": [numpy_generator_state(generator) for generator in self._generators],
            "episode_seeds": self._episode_seeds.tolist(),
            "actions": [
                torch.from_numpy(self._history[begin : self._history_length, i].copy())
                for i, begin in enumerate(self._episode_starts)
            ],
            "continued": [list(places) for places in self._life_starts],
            "ended": self._ended.tolist(),
            "goes_on": self._life_lost.tolist(),
            "observations": torch.from_numpy(self._observations.copy()),
            "returns": self.statistics.returns.tolist(),
            "lengths": self.statistics.lengths.tolist(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> str | None:
        """Replay each running episode from its seed; return a sentence if the result differs, else None."""
        if "episode_seeds" not in state:
            self._ended[:], self._life_lost[:] = True, False
            self.statistics = EpisodeStatistics(self.num_envs)
            return "the run was saved with another backend, so new episodes start here"
        for generator, plain in zip(self._generators, state["generators"], strict=True):
            set_numpy_generator_state(generator, plain)
        self._episode_seeds[:] = state["episode_seeds"]
        self._ended[:] = state["ended"]
        none = [False] * self.num_envs  # for a run that was saved before lives were supported
        self._life_lost[:] = state.get("goes_on", none)
        self._life_starts = [list(places) for places in state.get("continued", [[] for _ in none])]
        self.statistics.returns[:] = state["returns"]
        self.statistics.lengths[:] = state["lengths"]
        actions = [tensor.numpy() for tensor in state["actions"]]
        self._history_length = max(len(taken) for taken in actions)
        self._episode_starts = [self._history_length - len(taken) for taken in actions]
        capacity = len(self._history)
        while capacity <= self._history_length:
            capacity *= 2
        self._history = np.zeros((capacity, *self._history.shape[1:]), dtype=np.float32)
        for i, (begin, taken) in enumerate(zip(self._episode_starts, actions, strict=True)):
            self._history[begin : self._history_length, i] = taken
        # An ended episode is followed by a reset with a new seed: there is nothing to replay.
        running = ~self._ended | self._life_lost
        seeds = [seed if runs else None for seed, runs in zip(self._episode_seeds.tolist(), running, strict=True)]
        reached = self._group.replay(seeds, actions, self._life_starts)
        self._observations = state["observations"].numpy().copy()
        if not np.array_equal(reached[running], self._observations[running], equal_nan=True):
            return (
                "an environment did not return to its saved state: it is not deterministic given its seed and actions, "
                "so this run continues but is not bit for bit the uninterrupted one"
            )
        return None

    def close(self) -> None:
        """Close processes and simulators."""
        self._group.close()
