"""dm_control/humanoid: stand, walk or run."""

from __future__ import annotations

from typing import Any

from minerva.environments.tasks.arrays import Array, functions_for, norm, tolerance
from minerva.environments.tasks.base import State
from minerva.environments.tasks.suite.domain import PLACE, XAXIS, YAXIS, ZAXIS, SuiteTask, add_frame, small_control

HEIGHT = 1.4
"""From here on, the head is where it is in standing."""
LIMBS = ("left_hand", "left_foot", "right_hand", "right_foot")
AXES = (XAXIS, YAXIS, ZAXIS)


class Stand(SuiteTask):
    """dm_control's humanoid/stand.

    Attributes:
        move_speed: The speed to reach; 0: to stand still is enough.
    """

    model_file = "humanoid.xml"
    control_timestep = 0.025
    without_contacts = True
    move_speed = 0.0

    def add_sensors(self, spec: Any) -> None:
        """Add the frame of the torso, and where head, hands and feet are."""
        add_frame(spec, "torso", PLACE, *AXES)
        for body in ("head", *LIMBS):
            add_frame(spec, body, PLACE)

    def observation(self, now: State) -> dict[str, Array]:
        """Return joints, height of the head, hands and feet seen from the torso, its slant, and velocities."""
        functions, torso = functions_for(now.qpos), now[f"torso {PLACE}"]
        axes = [now[f"torso {axis}"] for axis in AXES]
        ways = [now[f"{limb} {PLACE}"] - torso for limb in LIMBS]
        return {
            "joint_angles": now.qpos[:, 7:],
            "head_height": now[f"head {PLACE}"][:, 2],
            "extremities": functions.stack([(way * axis).sum(axis=-1) for way in ways for axis in axes], axis=1),
            "torso_vertical": functions.stack([axis[:, 2] for axis in axes], axis=1),
            "com_velocity": now["torso_subtreelinvel"],
            "velocity": now.qvel,
        }

    def reward(self, before: State, actions: Array, now: State) -> Array:
        """Return 1 for standing upright and moving as fast as it should, without controls."""
        standing = tolerance(now[f"head {PLACE}"][:, 2], HEIGHT, float("inf"), margin=HEIGHT / 4)
        slant = now[f"torso {ZAXIS}"][:, 2]
        upright = tolerance(slant, 0.9, float("inf"), sigmoid="linear", margin=1.9, value_at_margin=0)
        velocity, aim = now["torso_subtreelinvel"][:, :2], self.move_speed
        if aim == 0:
            motion = tolerance(velocity, margin=2).mean(axis=-1)
        else:
            move = tolerance(norm(velocity), aim, float("inf"), margin=aim, value_at_margin=0, sigmoid="linear")
            motion = (5 * move + 1) / 6
        return small_control(actions) * (standing * upright) * motion


class Walk(Stand):
    """dm_control's humanoid/walk."""

    move_speed = 1.0


class Run(Stand):
    """dm_control's humanoid/run."""

    move_speed = 10.0
