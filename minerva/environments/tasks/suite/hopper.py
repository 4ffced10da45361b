"""dm_control/hopper: stand or hop on one leg in a plane."""

from __future__ import annotations

from typing import Any

from minerva.environments.tasks.arrays import Array, concatenate, functions_for, tolerance
from minerva.environments.tasks.base import State
from minerva.environments.tasks.suite.domain import SuiteTask, add_sensor, small_control

HEIGHT = 0.6
"""From here on, torso over foot, it stands."""
SPEED = 2.0


class Stand(SuiteTask):
    """dm_control's hopper/stand."""

    model_file = "hopper.xml"
    control_timestep = 0.02

    def add_sensors(self, spec: Any) -> None:
        """Add where the masses of torso and foot are."""
        import mujoco

        for body in ("torso", "foot"):
            kind, of = mujoco.mjtSensor.mjSENS_FRAMEPOS, mujoco.mjtObj.mjOBJ_BODY
            add_sensor(spec, f"{body} mass", kind, of, body)

    def observation(self, now: State) -> dict[str, Array]:
        """Return the joints' positions, without the one along the ground, velocities, and touch at toe and heel."""
        touch = functions_for(now.qpos).log1p(concatenate(now["touch_toe"], now["touch_heel"]))
        return {"position": now.qpos[:, 1:], "velocity": now.qvel, "touch": touch}

    def standing(self, now: State) -> Array:
        """Return 1 where it stands, else 0."""
        return tolerance(now["torso mass"][:, 2] - now["foot mass"][:, 2], HEIGHT, 2.0)

    def reward(self, before: State, actions: Array, now: State) -> Array:
        """Return 1 for standing without controls."""
        return self.standing(now) * small_control(actions)


class Hop(Stand):
    """dm_control's hopper/hop."""

    def reward(self, before: State, actions: Array, now: State) -> Array:
        """Return 1 for standing and moving as fast as it should."""
        speed = now["torso_subtreelinvel"][:, 0]
        hopping = tolerance(speed, SPEED, float("inf"), margin=SPEED / 2, value_at_margin=0.5, sigmoid="linear")
        return self.standing(now) * hopping
