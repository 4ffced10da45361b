"""What the tasks of the dm_control suite share: models with further sensors, and random starts."""

from __future__ import annotations

import importlib.util
import warnings
from pathlib import Path
from typing import Any

import numpy as np

from minerva.environments.tasks.arrays import Array, tolerance
from minerva.environments.tasks.base import Draws, Start, Task

XAXIS, YAXIS, ZAXIS, PLACE = "xaxis", "yaxis", "zaxis", "place"


class SuiteTask(Task):
    """A task with a model of dm_control's, to which sensors are added.

    Attributes:
        model_file: Name of the model.
        control_timestep: Seconds of an environment step; None: one step of the simulation.
    """

    model_file: str
    control_timestep: float | None = None

    def __init__(self) -> None:
        super().__init__()
        if self.control_timestep is not None:
            self.frame_skip = round(self.control_timestep / self.model.opt.timestep)

    def build(self) -> Any:
        """Load the model from the installed package and add the task's sensors."""
        import mujoco

        package = importlib.util.find_spec("dm_control")  # its import takes a second
        assert package is not None and package.origin is not None
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about words in the models that are outdated
            spec = mujoco.MjSpec.from_file(str(Path(package.origin).parent / "suite" / self.model_file))
            self.add_sensors(spec)
            return spec.compile()

    def add_sensors(self, spec: Any) -> None:
        """Add what the task needs to know beyond joints and the model's own sensors."""

    def reset(self, random: Draws) -> Start:
        """Start with every joint anywhere in its range."""
        qpos = random_joints(self.model, random)
        return Start(qpos, np.zeros((len(qpos), self.model.nv)))


def add_frame(spec: Any, body: str, *kinds: str) -> None:
    """Add sensors for axes of a body, and the place of its frame; they are called ``"<body> <kind>"``."""
    import mujoco

    sensors = {
        XAXIS: mujoco.mjtSensor.mjSENS_FRAMEXAXIS,
        YAXIS: mujoco.mjtSensor.mjSENS_FRAMEYAXIS,
        ZAXIS: mujoco.mjtSensor.mjSENS_FRAMEZAXIS,
        PLACE: mujoco.mjtSensor.mjSENS_FRAMEPOS,
    }
    for kind in kinds:
        add_sensor(spec, f"{body} {kind}", sensors[kind], mujoco.mjtObj.mjOBJ_XBODY, body)


def add_sensor(spec: Any, name: str, kind: Any, object_kind: Any, measured: str) -> None:
    """Add a sensor to a model."""
    spec.add_sensor(name=name, type=kind, objtype=object_kind, objname=measured)


def random_joints(model: Any, random: Draws) -> Array:
    """Draw positions as dm_control does: limited joints in their range, hinges anywhere, free ones any way round."""
    import mujoco

    kinds = mujoco.mjtJoint
    qpos = np.tile(model.qpos0, (len(random.environments), 1))
    for joint in range(model.njnt):
        place, kind = model.jnt_qposadr[joint], model.jnt_type[joint]
        if model.jnt_limited[joint]:
            low, high = model.jnt_range[joint]
            qpos[:, place] = random.uniform(low, high, 1)[:, 0]
        elif kind == kinds.mjJNT_HINGE:
            qpos[:, place] = random.uniform(-np.pi, np.pi, 1)[:, 0]
        elif kind == kinds.mjJNT_FREE:
            # Of positive numbers only: dm_control keeps this mistake, so that results stay comparable.
            quaternion = random.uniform(0, 1, 4)
            qpos[:, place + 3 : place + 7] = quaternion / np.linalg.norm(quaternion, axis=1, keepdims=True)
    return qpos


def small_control(actions: Array) -> Array:
    """Return a factor that is 1 without controls, and 4/5 if all are as large as they may be."""
    small = tolerance(actions, margin=1, value_at_margin=0, sigmoid="quadratic").mean(axis=-1)
    return (4 + small) / 5
