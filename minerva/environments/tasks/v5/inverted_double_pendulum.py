"""InvertedDoublePendulum-v5: balance two poles, one on the other, on a cart."""

from __future__ import annotations

from minerva.environments.tasks.arrays import Array, clip, concatenate, functions_for
from minerva.environments.tasks.base import State
from minerva.environments.tasks.v5.locomotion import GymnasiumTask


class InvertedDoublePendulum(GymnasiumTask):
    """Gymnasium's InvertedDoublePendulum-v5; its arguments are described there."""

    model_file = "inverted_double_pendulum.xml"
    normal_velocity = True
    fields = ("site_xpos", "qfrc_constraint")

    def __init__(self, *, frame_skip: int = 5, healthy_reward: float = 10.0, reset_noise_scale: float = 0.1) -> None:
        self.healthy_reward = healthy_reward
        super().__init__(frame_skip, reset_noise_scale)

    def observation(self, now: State) -> Array:
        """Return the cart's place, the poles' angles, velocities, and the force of the rail's end on the cart."""
        angles, functions = now.qpos[:, 1:], functions_for(now.qpos)
        velocities, force = clip(now.qvel, -10.0, 10.0), clip(now["qfrc_constraint"][:, :1], -10.0, 10.0)
        return concatenate(now.qpos[:, :1], functions.sin(angles), functions.cos(angles), velocities, force)

    def reward(self, before: State, actions: Array, now: State) -> Array:
        """Return what standing pays, less what distance and velocity of the poles cost."""
        x, y = now["site_xpos"][:, 0, 0], now["site_xpos"][:, 0, 2]
        distance_cost = 0.01 * x**2 + (y - 2) ** 2
        velocity_cost = 1e-3 * now.qvel[:, 1] ** 2 + 5e-3 * now.qvel[:, 2] ** 2
        return self.healthy_reward * ~self.terminated(now) - distance_cost - velocity_cost

    def terminated(self, now: State) -> Array:
        """Return where the upper end has come down."""
        return now["site_xpos"][:, 0, 2] <= 1
