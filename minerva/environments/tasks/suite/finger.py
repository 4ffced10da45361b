"""dm_control/finger: spin a body with a finger."""

from __future__ import annotations

from typing import Any

from minerva.environments.tasks.arrays import Array, concatenate, functions_for
from minerva.environments.tasks.base import State
from minerva.environments.tasks.suite.domain import SuiteTask

SPEED = 15.0
"""From here on, radians per second, it spins."""


class Spin(SuiteTask):
    """dm_control's finger/spin."""

    model_file = "finger.xml"
    control_timestep = 0.02
    without_contacts = True

    def build(self) -> Any:
        """Load the model, with the bearing of this task."""
        model = super().build()
        model.dof_damping[model.joint("hinge").dofadr] = 0.03
        return model

    def observation(self, now: State) -> dict[str, Array]:
        """Return the finger's angles, the tip of the body from its hinge, velocities, and touch at two places."""
        tip = (now["tip"] - now["spinner"])[:, [0, 2]]
        return {
            "position": concatenate(now["proximal"], now["distal"], tip),
            "velocity": concatenate(now["proximal_velocity"], now["distal_velocity"], now["hinge_velocity"]),
            "touch": functions_for(now.qpos).log1p(concatenate(now["touchtop"], now["touchbottom"])),
        }

    def reward(self, before: State, actions: Array, now: State) -> Array:
        """Return 1 where the body spins."""
        return (now["hinge_velocity"][:, 0] <= -SPEED) * 1.0
