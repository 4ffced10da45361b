"""dm_control/pendulum: swing a pole up with little force."""

from __future__ import annotations

import numpy as np

from minerva.environments.tasks.arrays import Array, functions_for, tolerance
from minerva.environments.tasks.base import State
from minerva.environments.tasks.suite.domain import SuiteTask

COSINE = float(np.cos(np.deg2rad(8)))
"""From here on, it stands."""


class Swingup(SuiteTask):
    """dm_control's pendulum/swingup."""

    model_file = "pendulum.xml"

    def observation(self, now: State) -> dict[str, Array]:
        """Return the pole's direction and its velocity."""
        functions, pole = functions_for(now.qpos), now.qpos[:, 0]
        orientation = functions.stack([functions.cos(pole), functions.sin(pole)], axis=1)
        return {"orientation": orientation, "velocity": now.qvel}

    def reward(self, before: State, actions: Array, now: State) -> Array:
        """Return 1 where the pole stands."""
        return tolerance(functions_for(now.qpos).cos(now.qpos[:, 0]), COSINE, 1.0)
