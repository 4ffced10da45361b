"""An environment that is made for a search: in short runs, everything depends on the learning rate.

Its id is `benchmarks.tuning_task:Reach-v0`.
"""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from numpy.typing import NDArray

ID = "benchmarks.tuning_task:Reach-v0"
TARGET = 2.0
EPISODE = 10


class Reach(gymnasium.Env[NDArray[np.float32], NDArray[np.float32]]):
    """The reward is minus the squared distance of the action from a fixed target; the best return is 0.

    A new policy acts around 0. Each gradient step moves its mean by about the learning rate, so that in a few hundred
    steps PPO's default comes hardly nearer, and one of 0.01 arrives.
    """

    observation_space = gymnasium.spaces.Box(-1.0, 1.0, (1,), np.float32)
    action_space = gymnasium.spaces.Box(-5.0, 5.0, (1,), np.float32)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[np.float32], dict[str, Any]]:
        """Begin an episode."""
        super().reset(seed=seed)
        self._steps = 0
        return self._observe(), {}

    def step(self, action: NDArray[np.float32]) -> tuple[NDArray[np.float32], float, bool, bool, dict[str, Any]]:
        """Reward the action."""
        self._steps += 1
        reward = -((float(action[0]) - TARGET) ** 2)
        return self._observe(), reward, False, self._steps >= EPISODE, {}

    def _observe(self) -> NDArray[np.float32]:
        return self.np_random.uniform(-1.0, 1.0, 1).astype(np.float32)


gymnasium.register("Reach-v0", entry_point=f"{__name__}:Reach")
