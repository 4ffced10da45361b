"""dm_control/walker: stand, walk or run in a plane."""

from __future__ import annotations

from typing import Any

from minerva.environments.tasks.arrays import Array, functions_for, tolerance
from minerva.environments.tasks.base import State
from minerva.environments.tasks.suite.domain import PLACE, XAXIS, ZAXIS, SuiteTask, add_frame

HEIGHT = 1.2
"""From here on, the torso stands."""
BODIES = ("torso", "right_thigh", "right_leg", "right_foot", "left_thigh", "left_leg", "left_foot")


class Stand(SuiteTask):
    """dm_control's walker/stand.

    Attributes:
        move_speed: The speed to reach; 0: to stand is enough.
    """

    model_file = "walker.xml"
    control_timestep = 0.025
    move_speed = 0.0

    def add_sensors(self, spec: Any) -> None:
        """Add the frames of all bodies."""
        for body in BODIES:
            add_frame(spec, body, XAXIS, ZAXIS)
        add_frame(spec, "torso", PLACE)

    def observation(self, now: State) -> dict[str, Array]:
        """Return the orientations of all bodies, the torso's height, and the velocities."""
        axes = [now[f"{body} {axis}"][:, 0] for body in BODIES for axis in (XAXIS, ZAXIS)]
        orientations = functions_for(now.qpos).stack(axes, axis=1)
        return {"orientations": orientations, "height": now[f"torso {PLACE}"][:, 2], "velocity": now.qvel}

    def reward(self, before: State, actions: Array, now: State) -> Array:
        """Return 1 for a torso that is high and upright, and moves as fast as it should."""
        standing = tolerance(now[f"torso {PLACE}"][:, 2], HEIGHT, float("inf"), margin=HEIGHT / 2)
        upright = (1 + now[f"torso {ZAXIS}"][:, 2]) / 2
        stand = (3 * standing + upright) / 4
        if self.move_speed == 0:
            return stand
        speed, aim = now["torso_subtreelinvel"][:, 0], self.move_speed
        move = tolerance(speed, aim, float("inf"), margin=aim / 2, value_at_margin=0.5, sigmoid="linear")
        return stand * (5 * move + 1) / 6


class Walk(Stand):
    """dm_control's walker/walk."""

    move_speed = 1.0


class Run(Stand):
    """dm_control's walker/run."""

    move_speed = 8.0
