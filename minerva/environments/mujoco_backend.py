"""The MuJoCo backend: N simulations of a task stepped together by threads, saved and resumed exactly as arrays."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from gymnasium import Space, spaces
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
from minerva.environments.ids import not_made, quiet_model_compiler, resolve
from minerva.environments.simulator import DivergedError, Simulations, Simulator
from minerva.environments.spaces import flat_size
from minerva.environments.tasks import find_task, make_task
from minerva.environments.tasks.arrays import concatenate
from minerva.environments.tasks.base import State, Task
from minerva.utils.cores import usable_cores
from minerva.utils.seeding import check_numpy_generator_state, spawn_generators
from minerva.utils.structure import check


def make_mujoco_batch(
    env: str,
    num_envs: int,
    seed: int,
    threads: int | None = None,
    env_kwargs: Mapping[str, Any] | None = None,
    allow_non_finite: bool = False,
    first: int = 0,
) -> MujocoBatch:
    """Build a batch of a task with the same spaces as the Gymnasium backend.

    Args:
        env: An id for which `minerva.environments.tasks.unsupported_reason` is None.
        num_envs: N.
        seed: Each environment has a generator of its own, spawned from this.
        threads: How many threads simulate (default: one per core, at most one per environment).
        env_kwargs: Those of the Gymnasium environment that change what it does.
        allow_non_finite: Pass on values that are not finite instead of raising an error.
        first: Number of the first of these environments, where other processes hold the others of a run.

    Raises:
        ValueError: The task cannot be made with these arguments.
    """
    # The original: a policy is saved with its spaces and evaluated in it. This also checks the arguments.
    template = resolve(env, env_kwargs)()
    spaces_of_it = template.observation_space, template.action_space
    limit = _time_limit(template)
    template.close()
    threads = min(threads or usable_cores(), num_envs)
    try:
        with quiet_model_compiler():
            task = make_task(find_task(env), env_kwargs or {})
    except Exception as error:  # a constructor may raise anything
        raise not_made(env, env_kwargs or {}, error) from error
    return MujocoBatch(task, num_envs, *spaces_of_it, seed, threads, limit, allow_non_finite, first)


def _time_limit(env: Any) -> float:
    """Return after how many steps an environment cuts an episode off."""
    if env.spec is not None and env.spec.max_episode_steps is not None:
        return float(env.spec.max_episode_steps)
    inner = getattr(env.unwrapped, "_env", None)  # of Shimmy, around dm_control's
    return float(getattr(inner, "_step_limit", np.inf))


class MujocoBatch:
    """N simulations of a task with NEXT_STEP autoreset.

    The states of all are arrays, and so is what is saved: its size does not depend on how long an episode has run, and
    a resumed run replays nothing. Environment i is the same whatever N is, and however many threads there are.

    Args:
        task: The task.
        num_envs: N.
        observation_space: Of one environment; a row holds the parts of a Dict in its order.
        action_space: Of one environment.
        seed: Each environment draws its starts from a generator of its own, spawned from this.
        threads: How many threads simulate.
        time_limit: Steps after which an episode is truncated.
        allow_non_finite: Pass on values that are not finite instead of raising an error.
        first: Number of the first of these environments, where other processes hold the others of a run.
    """

    def __init__(
        self,
        task: Task,
        num_envs: int,
        observation_space: Space[Any],
        action_space: Space[Any],
        seed: int,
        threads: int = 1,
        time_limit: float = np.inf,
        allow_non_finite: bool = False,
        first: int = 0,
    ) -> None:
        self.num_envs = n = num_envs
        self.raw_observation_space = observation_space
        self.action_space = action_space
        self.observation_dim = flat_size(observation_space)
        self.observation_dtype = np.dtype(np.float32)
        self.mask_dim = 0
        self.description = f"MuJoCo, {n} environment{'s' * (n > 1)}, {threads} thread{'s' * (threads > 1)}"
        self.statistics = EpisodeStatistics(n)
        self.task = task
        self._simulator = Simulator(task, threads)
        self._simulations = self._simulator.empty(n)
        self._generators = spawn_generators(seed, "environments", first + n)[first:]
        self._numbers = np.arange(first, first + n)
        self._time_limit = time_limit
        self._allow_non_finite = allow_non_finite
        self._ended = np.ones(n, dtype=np.bool_)  # the next step restarts these
        self._failed = False
        # For every entry of every action: to compare arrays of one shape takes half the time of broadcasting.
        self._low, self._high = (np.tile(bound, (n, 1)) for bound in box_bounds(action_space))

    def reset(self) -> Rows:
        """Start an episode in every environment and return the first observations, ``[N, O]``."""
        self._ended[:] = True
        self.statistics = EpisodeStatistics(self.num_envs)
        return self.step(np.zeros_like(self._low)).observations

    @property
    def restarts_next(self) -> NDArray[np.bool_]:
        """Return which environments the next step restarts, ``[N]``."""
        return self._ended.copy()

    def step(self, actions: NDArray[np.float32]) -> Step:
        """Step every environment; one whose episode has ended restarts instead."""
        if self._failed:
            raise EnvironmentFailureError("an environment failed before: make a new trainer, and load the run's folder")
        actions = np.minimum(np.maximum(actions, self._low), self._high).astype(self.action_space.dtype)
        restarts = self._ended.nonzero()[0]
        drawn = [self._generators[i].bit_generator.state for i in restarts.tolist()]
        self._failed = True  # until the step is complete
        try:
            result = self._step(actions, restarts)
        except BaseException:
            # What is saved now is the state before this step.
            for i, state in zip(restarts.tolist(), drawn, strict=True):
                self._generators[i].bit_generator.state = state
            raise
        self._failed = False
        return result

    def _step(self, actions: NDArray[Any], restarts: NDArray[np.int64]) -> Step:
        n, restarting = self.num_envs, self._ended
        rewards, (terminated, truncated) = np.zeros(n), np.zeros((2, n), dtype=np.bool_)
        simulator, after = self._simulator, None
        if restarts.size == 0:
            after = self._advance(slice(None), self._simulations, actions, rewards, terminated, truncated)
        elif restarts.size < n:
            running = np.flatnonzero(~restarting)
            before = self._simulations.rows(running)
            after = self._advance(running, before, actions[running], rewards, terminated, truncated)
        if restarts.size:
            begun = simulator.begin([self._generators[i] for i in restarts.tolist()], self._numbers[restarts])
            after = begun if after is None else after.merged(running, restarts, begun)
        assert after is not None
        rows = self._rows(simulator.state(after))
        if not self._allow_non_finite:
            check_finite(rows, rewards)
        self._simulations, self._ended = after, terminated | truncated
        episodes = self.statistics.add(rewards, self._ended, restarting)
        return Step(rows, rewards, terminated, truncated, restarting, episodes)

    def _advance(
        self,
        where: Any,
        before: Simulations,
        actions: NDArray[Any],
        rewards: NDArray[np.float64],
        terminated: NDArray[np.bool_],
        truncated: NDArray[np.bool_],
    ) -> Simulations:
        """Advance the simulations that stand at `where`, and write there how their steps were judged."""
        try:
            after = self._simulator.advance(before, actions)
        except DivergedError as error:
            number = np.arange(self.num_envs)[where][error.row]
            raise EnvironmentFailureError(
                f"environment {number}: the simulation diverged (MuJoCo met a number that is not finite or too large)"
            ) from error
        now = self._simulator.state(after)
        rewards[where] = self.task.reward(self._simulator.state(before), actions, now)
        truncated[where] = self.statistics.lengths[where] + 1 >= self._time_limit
        for flags, ends in (terminated, self.task.terminated(now)), (truncated, self.task.truncated(now)):
            if ends is not None:
                flags[where] |= ends
        return after

    def _rows(self, state: State) -> Rows:
        observation = self.task.observation(state)
        if isinstance(observation, dict):
            assert isinstance(self.raw_observation_space, spaces.Dict)
            observation = concatenate(*(observation[name] for name in self.raw_observation_space.spaces))
        if observation.shape != (self.num_envs, self.observation_dim):
            raise EnvironmentFailureError(
                f"the task's observations must be {(self.num_envs, self.observation_dim)} numbers, those of "
                f"{self.raw_observation_space}, got {observation.shape}"
            )
        rows = np.empty(observation.shape, dtype=np.float32)
        with np.errstate(over="ignore"):  # becomes infinite, which is reported with its place
            rows[:] = observation
        return rows

    def state_dict(self) -> dict[str, Any]:
        """Return the states of the simulations, generators and statistics."""
        return {
            "simulations": {name: torch.from_numpy(part.copy()) for name, part in self._simulations._asdict().items()},
            "generators": [generator.bit_generator.state for generator in self._generators],
            "ended": self._ended.tolist(),
            "returns": self.statistics.returns.tolist(),
            "lengths": self.statistics.lengths.tolist(),
        }

    def check_state(self, state: Any, name: str) -> None:
        """Check that a loaded state has the form of this batch's; another backend's holds nothing that is used."""
        if is_of_another_backend(state, "simulations"):
            return
        check(state, {**self.state_dict(), "generators": [check_numpy_generator_state] * self.num_envs}, name)

    def load_state_dict(self, state: dict[str, Any]) -> str | None:
        """Continue where a saved state is, or start new episodes if another backend has saved it."""
        if "simulations" not in state:
            self._ended[:] = True
            self.statistics = EpisodeStatistics(self.num_envs)
            return "the run was saved with another backend, so new episodes start here"
        self._simulations = Simulations(**{name: part.numpy().copy() for name, part in state["simulations"].items()})
        for generator, saved in zip(self._generators, state["generators"], strict=True):
            generator.bit_generator.state = saved
        self._ended[:] = state["ended"]
        self.statistics.returns[:] = state["returns"]
        self.statistics.lengths[:] = state["lengths"]
        return None

    def close(self) -> None:
        """End the threads."""
        self._simulator.close()
