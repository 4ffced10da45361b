"""dm_control/cartpole: hold a pole up on a cart, or swing it up first."""

from __future__ import annotations

import numpy as np

from minerva.environments.tasks.arrays import Array, functions_for, tolerance
from minerva.environments.tasks.base import Draws, Start, State
from minerva.environments.tasks.suite.domain import SuiteTask, small_control


class Balance(SuiteTask):
    """dm_control's cartpole/balance."""

    model_file = "cartpole.xml"

    def reset(self, random: Draws) -> Start:
        """Start with the pole nearly upright."""
        cart, pole = random.uniform(-0.1, 0.1, 1), random.uniform(-0.034, 0.034, 1)
        return Start(np.concatenate([cart, pole], axis=1), 0.01 * random.normal(2))

    def observation(self, now: State) -> dict[str, Array]:
        """Return the cart's place, the pole's direction, and the velocities."""
        functions, pole = functions_for(now.qpos), now.qpos[:, 1]
        position = functions.stack([now.qpos[:, 0], functions.cos(pole), functions.sin(pole)], axis=1)
        return {"position": position, "velocity": now.qvel}

    def reward(self, before: State, actions: Array, now: State) -> Array:
        """Return 1 for a pole upright and still in the middle, without controls."""
        upright = (functions_for(now.qpos).cos(now.qpos[:, 1]) + 1) / 2
        centered = (1 + tolerance(now.qpos[:, 0], margin=2)) / 2
        slow = (1 + tolerance(now.qvel[:, 1], margin=5)) / 2
        return upright * small_control(actions) * slow * centered


class Swingup(Balance):
    """dm_control's cartpole/swingup."""

    def reset(self, random: Draws) -> Start:
        """Start with the pole hanging."""
        return Start(np.array([0, np.pi]) + 0.01 * random.normal(2), 0.01 * random.normal(2))
