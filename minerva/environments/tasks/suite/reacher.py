"""dm_control/reacher: bring the tip of an arm to a target."""

from __future__ import annotations

from typing import Any

import numpy as np

from minerva.environments.tasks.arrays import Array, norm, tolerance
from minerva.environments.tasks.base import Draws, Start, State
from minerva.environments.tasks.suite.domain import PLACE, SuiteTask, add_frame


class Easy(SuiteTask):
    """dm_control's reacher/easy; an episode remembers where its target is.

    Attributes:
        target_size: Radius of the target.
    """

    model_file = "reacher.xml"
    memory_size = 2
    target_size = 0.05

    def add_sensors(self, spec: Any) -> None:
        """Add where the tip is."""
        add_frame(spec, "finger", PLACE)

    def reset(self, random: Draws) -> Start:
        """Start with the joints anywhere, and the target in any direction."""
        qpos, qvel, _ = super().reset(random)
        angle, radius = random.uniform(0, 2 * np.pi, 1), random.uniform(0.05, 0.20, 1)
        return Start(qpos, qvel, np.concatenate([radius * np.sin(angle), radius * np.cos(angle)], axis=1))

    def to_target(self, now: State) -> Array:
        """Return the vector from the tip to the target."""
        return now.memory - now[f"finger {PLACE}"][:, :2]

    def observation(self, now: State) -> dict[str, Array]:
        """Return the joints' angles, the way to the target, and the velocities."""
        return {"position": now.qpos, "to_target": self.to_target(now), "velocity": now.qvel}

    def reward(self, before: State, actions: Array, now: State) -> Array:
        """Return 1 where the tip touches the target."""
        radii = self.target_size + self.model.geom("finger").size[0]
        return tolerance(norm(self.to_target(now)), 0.0, radii)


class Hard(Easy):
    """dm_control's reacher/hard."""

    target_size = 0.015
