"""Ant-v5: run forward on four legs."""

from __future__ import annotations

from minerva.environments.tasks.arrays import Array, clip, concatenate, functions_for
from minerva.environments.tasks.base import State
from minerva.environments.tasks.v5.locomotion import Locomotion


class Ant(Locomotion):
    """Gymnasium's Ant-v5; its arguments are described there."""

    model_file = "ant.xml"
    normal_velocity = True
    fields = ("xpos", "cfrc_ext")

    def __init__(
        self,
        *,
        frame_skip: int = 5,
        forward_reward_weight: float = 1.0,
        ctrl_cost_weight: float = 0.5,
        contact_cost_weight: float = 5e-4,
        healthy_reward: float = 1.0,
        main_body: int | str = 1,
        terminate_when_unhealthy: bool = True,
        healthy_z_range: tuple[float, float] = (0.2, 1.0),
        contact_force_range: tuple[float, float] = (-1.0, 1.0),
        reset_noise_scale: float = 0.1,
        exclude_current_positions_from_observation: bool = True,
        include_cfrc_ext_in_observation: bool = True,
    ) -> None:
        self.contact_cost_weight, self.contact_force_range = contact_cost_weight, contact_force_range
        self.healthy_reward, self.healthy_z_range = healthy_reward, healthy_z_range
        self.terminate_when_unhealthy = terminate_when_unhealthy
        self.observes_forces = include_cfrc_ext_in_observation
        skipped = 2 * bool(exclude_current_positions_from_observation)
        super().__init__(frame_skip, forward_reward_weight, ctrl_cost_weight, reset_noise_scale, skipped)
        self.main_body = int(self.model.body(main_body).id)

    def forces(self, now: State) -> Array:
        """Return the forces on all bodies, ``[N, bodies, 6]``, clipped."""
        return clip(now["cfrc_ext"], *self.contact_force_range)

    def healthy(self, now: State) -> Array:
        """Return where it is neither too low nor too high."""
        low, high = self.healthy_z_range
        z = now.qpos[:, 2]
        return functions_for(z).isfinite(concatenate(now.qpos, now.qvel)).all(axis=-1) & (low <= z) & (z <= high)

    def observation(self, now: State) -> Array:
        """Return the positions and velocities of the joints, and the forces on the bodies."""
        joints = super().observation(now)
        return concatenate(joints, self.forces(now)[:, 1:]) if self.observes_forces else joints

    def reward(self, before: State, actions: Array, now: State) -> Array:
        """Return what speed and health pay, less what controls and contacts cost."""
        x = before["xpos"][:, self.main_body, 0], now["xpos"][:, self.main_body, 0]
        contact_cost = self.contact_cost_weight * (self.forces(now) ** 2).sum(axis=(1, 2))
        pay = self.forward_reward(*x) + self.healthy(now) * self.healthy_reward
        return pay - (self.control_cost(actions) + contact_cost)

    def terminated(self, now: State) -> Array | None:
        """Return where it has fallen or jumped too high."""
        return ~self.healthy(now) if self.terminate_when_unhealthy else None
