"""What Gymnasium's tasks share: where their models are, noise at the start, speed, and the cost of controls."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from minerva.environments.tasks.arrays import Array, concatenate
from minerva.environments.tasks.base import Draws, Start, State, Task

INFINITY = float("inf")


class GymnasiumTask(Task):
    """A task with a model of Gymnasium's; what it reads is as `mj_step` leaves it.

    Args:
        frame_skip: Simulation steps per environment step.
        reset_noise_scale: Size of the noise at the start of an episode.

    Attributes:
        model_file: Name of the model.
        normal_velocity: Whether velocities at the start are normal, or uniform.
    """

    refresh = False
    model_file: str
    normal_velocity = False

    def __init__(self, frame_skip: int, reset_noise_scale: float) -> None:
        self.frame_skip = frame_skip
        self.reset_noise_scale = reset_noise_scale
        super().__init__()

    def build(self) -> Any:
        """Load the model from the installed package."""
        import gymnasium
        import mujoco

        folder = Path(gymnasium.__file__).parent / "envs" / "mujoco" / "assets"
        return mujoco.MjModel.from_xml_path(str(folder / self.model_file))

    def reset(self, random: Draws) -> Start:
        """Start near the model's position."""
        scale, nq, nv = self.reset_noise_scale, self.model.nq, self.model.nv
        qpos = self.model.qpos0 + random.uniform(-scale, scale, nq)
        return Start(qpos, scale * random.normal(nv) if self.normal_velocity else random.uniform(-scale, scale, nv))


class Locomotion(GymnasiumTask):
    """A task that pays for speed along x and charges for controls.

    Args:
        frame_skip: Simulation steps per environment step.
        forward_reward_weight: Reward for a speed of 1.
        ctrl_cost_weight: Cost of the sum of squared controls.
        reset_noise_scale: Size of the noise at the start of an episode.
        skipped: How many positions an observation leaves out.
    """

    def __init__(
        self,
        frame_skip: int,
        forward_reward_weight: float,
        ctrl_cost_weight: float,
        reset_noise_scale: float,
        skipped: int,
    ) -> None:
        self.forward_reward_weight = forward_reward_weight
        self.ctrl_cost_weight = ctrl_cost_weight
        self.skipped = skipped
        super().__init__(frame_skip, reset_noise_scale)

    def observation(self, now: State) -> Array:
        """Return the positions and velocities of the joints."""
        return concatenate(now.qpos[:, self.skipped :], now.qvel)

    def reward(self, before: State, actions: Array, now: State) -> Array:
        """Return what speed pays, less what controls cost."""
        return self.forward_reward(before.qpos[:, 0], now.qpos[:, 0]) - self.control_cost(actions)

    def forward_reward(self, x_before: Array, x_now: Array) -> Array:
        """Return what is paid for the way from one x to the other."""
        return self.forward_reward_weight * ((x_now - x_before) / self.dt)

    def control_cost(self, actions: Array) -> Array:
        """Return what controls cost."""
        return self.ctrl_cost_weight * (actions * actions).sum(axis=-1)


def between(low: float, x: Array, high: float) -> Array:
    """Return where numbers are inside of limits, and not at them."""
    return (low < x) & (x < high)
