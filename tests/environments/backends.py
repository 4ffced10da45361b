"""The backends of the conformance suite; add a new backend as one more line."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from minerva.environments import BatchedEnvironment, EnvFactory, EnvPoolBatch, GymnasiumBatch, MujocoBatch
from tests.environments.tiny_envs import Tiny
from tests.environments.tiny_task import TinyTask

Backend = Callable[[Sequence[EnvFactory], int], BatchedEnvironment]
"""A function from one factory per environment and the seed to a batch."""


class StandInPool:
    """Run any environments with EnvPool's interface, dtypes and autoreset.

    Environment i draws the seeds of its episodes from the pool's seed + i.
    """

    def __init__(self, factories: Sequence[EnvFactory], seed: int) -> None:
        self.envs = [factory() for factory in factories]
        self._generators = [np.random.default_rng(seed + i) for i in range(len(factories))]
        self._ended = [True] * len(factories)

    def reset(self) -> tuple[NDArray[np.float64], dict[str, Any]]:
        self._ended = [True] * len(self.envs)
        observations, *_, info = self.step(np.zeros((len(self.envs), 1)))
        return observations, info

    def step(self, actions: NDArray[Any]) -> Any:
        observations, rewards, terminated, truncated = [], [], [], []
        for i, env in enumerate(self.envs):
            if self._ended[i]:  # the action is ignored
                observation, _ = env.reset(seed=int(self._generators[i].integers(2**31)))
                reward, over, cut = 0.0, False, False
            else:
                observation, given, over, cut, _ = env.step(actions[i].astype(np.float32))
                reward = float(given)
            self._ended[i] = over or cut
            observations.append(np.asarray(observation, dtype=np.float64))
            rewards.append(reward)
            terminated.append(over)
            truncated.append(cut)
        flags = np.array(terminated), np.array(truncated)
        return np.stack(observations), np.array(rewards, dtype=np.float32), *flags, {"elapsed_step": None}


def stand_in_pool(factories: Sequence[EnvFactory], seed: int) -> EnvPoolBatch:
    space = factories[0]().observation_space
    action_space = factories[0]().action_space
    assert isinstance(space, spaces.Box)
    return EnvPoolBatch(partial(StandInPool, factories), len(factories), space, action_space, seed, "a stand-in")


def tiny_tasks(
    factories: Sequence[EnvFactory], seed: int, in_python: bool = False, threads: int = 2
) -> BatchedEnvironment:
    """Run the tiny environments as a task of MuJoCo."""
    env = factories[0]().unwrapped
    assert isinstance(env, Tiny)
    task, spaces_of_it = TinyTask(env.kind, in_python), (Tiny.observation_space, Tiny.action_space)
    return MujocoBatch(task, len(factories), *spaces_of_it, seed, min(threads, len(factories)))


BACKENDS: dict[str, Backend] = {
    "gymnasium, sync": partial(GymnasiumBatch, vectorization="sync"),
    "gymnasium, 1 worker": partial(GymnasiumBatch, vectorization="subprocess", num_workers=1),
    "gymnasium, 2 workers": partial(GymnasiumBatch, vectorization="subprocess", num_workers=2),
    "envpool": stand_in_pool,
    "mujoco, rollout": tiny_tasks,
    "mujoco, fields": partial(tiny_tasks, in_python=True),
}
