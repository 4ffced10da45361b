"""A task as a Gymnasium environment: for evaluation, and wherever else one is wanted."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from minerva.environments.simulator import Simulations, Simulator
from minerva.environments.tasks import make_task


class TaskEnvironment(gymnasium.Env[Any, NDArray[np.float32]]):
    """One simulation of a task.

    Args:
        task: The task's class, or a function that returns a task.
        render_mode: None; a task is not drawn.
        arguments: Those of the task.
    """

    metadata = {"render_modes": []}  # noqa: RUF012

    def __init__(self, task: Any, render_mode: None = None, **arguments: Any) -> None:
        self.task = make_task(task, arguments)
        self._simulator = Simulator(self.task, threads=1)
        low, high = self.task.model.actuator_ctrlrange.T.astype(np.float32)
        unlimited = ~self.task.model.actuator_ctrllimited.astype(np.bool_)
        self.action_space = spaces.Box(np.where(unlimited, -np.inf, low), np.where(unlimited, np.inf, high))
        self.observation_space = _space_of(self.task.observation(self._simulator.state(self._simulator.empty(1))))
        self._now: Simulations | None = None

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Begin an episode."""
        super().reset(seed=seed)
        self._now = self._simulator.begin([self.np_random], np.zeros(1, dtype=np.int64))
        return self._observe(), {}

    def step(self, action: NDArray[np.float32]) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Take one step."""
        assert self._now is not None, "reset() first"
        actions = np.asarray(action, dtype=np.float32)[None]
        before, self._now = self._now, self._simulator.advance(self._now, actions)
        state = self._simulator.state(self._now)
        reward = self.task.reward(self._simulator.state(before), actions, state)
        ends = [
            False if end is None else bool(end[0]) for end in (self.task.terminated(state), self.task.truncated(state))
        ]
        return self._observe(), float(reward[0]), ends[0], ends[1], {}

    def _observe(self) -> Any:
        assert self._now is not None
        observation = self.task.observation(self._simulator.state(self._now))
        if isinstance(observation, dict):
            return {name: part[0] for name, part in observation.items()}
        return observation[0]

    def close(self) -> None:
        """End the simulation."""
        self._simulator.close()


def _space_of(observation: Any) -> gymnasium.Space[Any]:
    if isinstance(observation, dict):
        return spaces.Dict({name: _space_of(part) for name, part in observation.items()})
    return spaces.Box(-np.inf, np.inf, observation.shape[1:], np.float64)
