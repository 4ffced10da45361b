"""The Gymnasium backend: any `gymnasium.Env`, in this process or in worker processes, saved and resumed exactly."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
import torch
from gymnasium import Space
from numpy.typing import NDArray

from minerva.environments.base import (
    EnvironmentFailureError,
    EpisodeStatistics,
    Rows,
    Step,
    box_bounds,
    check_finite,
    is_of_another_backend,
)
from minerva.environments.groups import CONTINUE, STEP, Group, RunningEpisode
from minerva.environments.hangs import HangWatch
from minerva.environments.history import ActionHistory
from minerva.environments.ids import EnvFactory
from minerva.environments.spaces import flat_size, row_dtype
from minerva.environments.workers import LocalGroup, SubprocessGroup
from minerva.utils.seeding import check_numpy_generator_state, spawn_generators
from minerva.utils.structure import check, expect

Vectorization = Literal["sync", "subprocess"]

SEED_LIMIT = 2**31
"""Seeds of episodes are below this."""


class GymnasiumBatch:
    """N Gymnasium environments with NEXT_STEP autoreset.

    Each episode is reset with its own seed from its environment's generator. A saved state holds that seed and the
    actions since; resuming replays them, so environments need no support for saving. Where that does not bring an
    environment back, it starts a new episode. If a game continues after an
    episode (``info["life_lost"]`` at its end), it is replayed from the start of the game: its episodes are lives, each
    started by a reset without a seed, and the whole game is reported as one episode.

    Args:
        factories: One function per environment.
        seed: Each environment draws the seeds of its episodes from a generator of its own, spawned from this.
        vectorization: ``"sync"`` (this process) or ``"subprocess"`` (worker processes).
        num_workers: Worker processes (default: one per core).
        allow_non_finite: Pass on values that are not finite instead of raising an error.
        first: Number of the first of these environments, where other processes hold the others of a run: the seeds of
            an environment follow from its number, wherever it is.
    """

    def __init__(
        self,
        factories: Sequence[EnvFactory],
        seed: int,
        vectorization: Vectorization = "sync",
        num_workers: int | None = None,
        allow_non_finite: bool = False,
        first: int = 0,
    ) -> None:
        self._allow_non_finite = allow_non_finite
        self.num_envs = n = len(factories)
        self._group: Group = (
            LocalGroup(factories) if vectorization == "sync" else SubprocessGroup(factories, num_workers)
        )
        self._watch = HangWatch(self._group.where)
        self.raw_observation_space: Space[Any] = self._group.spaces[0]
        self.action_space: Space[Any] = self._group.spaces[1]
        self.mask_dim = self._group.mask_dim
        self.observation_dim = flat_size(self.raw_observation_space) + self.mask_dim
        self.observation_dtype = row_dtype(self.raw_observation_space)
        self.description = f"Gymnasium, {n} environment{'s' * (n > 1)}, {self._group.description}"
        self.statistics = EpisodeStatistics(n)
        self._generators = spawn_generators(seed, "environments", first + n)[first:]
        self._episode_seeds = np.zeros(n, dtype=np.int64)
        # Drawn ahead: a restart that fails has drawn nothing, so the run resumes exactly.
        self._next_seeds = np.array([self._draw_seed(i) for i in range(n)], dtype=np.int64)
        self._ended = np.zeros(n, dtype=np.bool_)  # the next step restarts these
        self._life_lost = np.zeros(n, dtype=np.bool_)  # the subset whose game continues
        self._observations = np.zeros((n, self.observation_dim), dtype=self.observation_dtype)
        self._action_dim = int(np.prod(self.action_space.shape or ()))
        self._history = ActionHistory(n, self._action_dim)
        self._step_orders = np.full(n, STEP, dtype=np.int64)
        self._failed = False
        # For every entry of every action: to compare arrays of one shape takes half the time of broadcasting.
        shape = (n, self._action_dim)
        self._low, self._high = (np.broadcast_to(bound, shape).copy() for bound in box_bounds(self.action_space))

    def reset(self) -> Rows:
        """Start an episode in every environment and return the first observations, ``[N, O]``."""
        self._ended[:] = True
        self._life_lost[:] = False
        self.statistics = EpisodeStatistics(self.num_envs)
        return self.step(np.zeros((self.num_envs, self._action_dim), dtype=np.float32)).observations

    def _draw_seed(self, i: int) -> int:
        return int(self._generators[i].integers(SEED_LIMIT))

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
            orders[restarts] = np.where(self._life_lost, CONTINUE, self._next_seeds)[restarts]
        if self._failed:
            raise EnvironmentFailureError("an environment failed before: make a new trainer, and load the run's folder")
        self._failed = True  # until the step is complete: an incomplete one leaves environments ahead of the history
        self._watch.calls += 1
        try:
            outcome = self._group.apply(actions, orders)
        finally:
            self._watch.calls += 1
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
        if not restarts:
            self._history.add(actions)
            return
        started = [i for i in restarts if not self._life_lost[i]]
        self._history.add(actions, started, [i for i in restarts if self._life_lost[i]])
        for i in started:
            self._episode_seeds[i], self._next_seeds[i] = self._next_seeds[i], self._draw_seed(i)

    def state_dict(self) -> dict[str, Any]:
        """Return episode seeds, actions since, generators and statistics."""
        return {
            "generators": [generator.bit_generator.state for generator in self._generators],
            "episode_seeds": self._episode_seeds.tolist(),
            "next_seeds": self._next_seeds.tolist(),
            **self._history.state_dict(),
            "ended": self._ended.tolist(),
            "goes_on": self._life_lost.tolist(),
            "observations": torch.from_numpy(self._observations.copy()),
            "returns": self.statistics.returns.tolist(),
            "lengths": self.statistics.lengths.tolist(),
        }

    def check_state(self, state: Any, name: str) -> None:
        """Check that a loaded state has the form of this batch's, or of another backend's.

        Raises:
            StructureError: It has not.
        """
        if is_of_another_backend(state, "episode_seeds"):
            return
        generators = {"generators": [check_numpy_generator_state] * self.num_envs}
        check(state, {**self.state_dict(), **generators, **self._history.state_form()}, name)
        self._history.check_lengths(state, name)
        for part in ("episode_seeds", "next_seeds"):
            expect(max(state[part]) < SEED_LIMIT, f"{name}.{part}", "must be seeds below 2^31", state[part])

    def load_state_dict(self, state: dict[str, Any]) -> str | None:
        """Replay each running episode from its seed; return a sentence about those that did not come back.

        Replaying is an attempt. Where it reaches another observation, an end or an error, or the episode was too long
        to keep its actions, the environment starts a new episode with the next step.
        """
        if "episode_seeds" not in state:
            self._ended[:], self._life_lost[:] = True, False
            self.statistics = EpisodeStatistics(self.num_envs)
            return "the run was saved with another backend, so new episodes start here"
        for generator, saved in zip(self._generators, state["generators"], strict=True):
            generator.bit_generator.state = saved
        self._episode_seeds[:] = state["episode_seeds"]
        self._next_seeds[:] = state["next_seeds"]
        self._ended[:] = state["ended"]
        self._life_lost[:] = state["goes_on"]
        self._observations = state["observations"].numpy().copy()
        self.statistics.returns[:] = state["returns"]
        self.statistics.lengths[:] = state["lengths"]
        self._history.load_state_dict(state)
        lost = self._replay_episodes()
        if not lost:
            return None
        where = list(lost)
        self._ended[where], self._life_lost[where] = True, False
        self.statistics.returns[where], self.statistics.lengths[where] = 0.0, 0
        first = where[0]
        others = f" (and {len(lost) - 1} more)" if len(lost) > 1 else ""
        return (
            f"environment {first}{others} did not return to its saved state, because {lost[first]}: it starts a new "
            "episode here, so this run is not bit for bit the uninterrupted one"
        )

    def _replay_episodes(self) -> dict[int, str]:
        """Replay the running episodes; return which of them are lost, and why."""
        # An ended episode is followed by a reset with a new seed: there is nothing to replay.
        running = ~self._ended | self._life_lost
        episodes = [self._running_episode(i) if runs else None for i, runs in enumerate(running)]
        rows, problems = self._group.replay(episodes)
        lost: dict[int, str] = {}
        for i in np.flatnonzero(running).tolist():
            if episodes[i] is None:
                lost[i] = f"its episode had more than {self._history.limit:,} actions, which are not kept"
            elif problems[i] is not None:
                lost[i] = str(problems[i])
            elif not np.array_equal(rows[i], self._observations[i], equal_nan=rows.dtype != np.uint8):
                lost[i] = "it is not deterministic given its seed and actions"
        return lost

    def _running_episode(self, i: int) -> RunningEpisode | None:
        actions = self._history.episode(i)
        if actions is None:
            return None
        continued = self._history.continued(i) + [len(actions)] * bool(self._life_lost[i])
        return RunningEpisode(int(self._episode_seeds[i]), actions, continued)

    def close(self) -> None:
        """Close processes and simulators."""
        self._watch.close()
        self._group.close()
