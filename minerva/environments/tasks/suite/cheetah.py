"""dm_control/cheetah: run."""

from __future__ import annotations

from minerva.environments.tasks.arrays import Array, tolerance
from minerva.environments.tasks.base import Draws, Start, State
from minerva.environments.tasks.suite.domain import SuiteTask

SPEED = 10.0
"""From here on, running faster pays no more."""


class Run(SuiteTask):
    """dm_control's cheetah/run."""

    model_file = "cheetah.xml"
    settle_steps = 200

    def reset(self, random: Draws) -> Start:
        """Start with limited joints anywhere in their range; the cheetah then falls and comes to rest."""
        start = super().reset(random)
        free = self.model.jnt_limited == 0  # each joint has one position
        start.qpos[:, free] = self.model.qpos0[free]
        return start

    def observation(self, now: State) -> dict[str, Array]:
        """Return the joints' positions, without the one along the ground, and velocities."""
        return {"position": now.qpos[:, 1:], "velocity": now.qvel}

    def reward(self, before: State, actions: Array, now: State) -> Array:
        """Return the speed's share of the one aimed at."""
        speed = now["torso_subtreelinvel"][:, 0]
        return tolerance(speed, SPEED, float("inf"), margin=SPEED, value_at_margin=0, sigmoid="linear")
