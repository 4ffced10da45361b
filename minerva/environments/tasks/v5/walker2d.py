"""Walker2d-v5: walk forward and do not fall."""

from __future__ import annotations

from minerva.environments.tasks.arrays import Array, clip, concatenate
from minerva.environments.tasks.base import State
from minerva.environments.tasks.v5.locomotion import Locomotion, between


class Walker2d(Locomotion):
    """Gymnasium's Walker2d-v5; its arguments are described there."""

    model_file = "walker2d_v5.xml"

    def __init__(
        self,
        *,
        frame_skip: int = 4,
        forward_reward_weight: float = 1.0,
        ctrl_cost_weight: float = 1e-3,
        healthy_reward: float = 1.0,
        terminate_when_unhealthy: bool = True,
        healthy_z_range: tuple[float, float] = (0.8, 2.0),
        healthy_angle_range: tuple[float, float] = (-1.0, 1.0),
        reset_noise_scale: float = 5e-3,
        exclude_current_positions_from_observation: bool = True,
    ) -> None:
        self.healthy_reward = healthy_reward
        self.terminate_when_unhealthy = terminate_when_unhealthy
        self.healthy_z_range, self.healthy_angle_range = healthy_z_range, healthy_angle_range
        skipped = 1 * bool(exclude_current_positions_from_observation)
        super().__init__(frame_skip, forward_reward_weight, ctrl_cost_weight, reset_noise_scale, skipped)

    def healthy(self, now: State) -> Array:
        """Return where it stands."""
        (min_z, max_z), (min_angle, max_angle) = self.healthy_z_range, self.healthy_angle_range
        return between(min_z, now.qpos[:, 1], max_z) & between(min_angle, now.qpos[:, 2], max_angle)

    def observation(self, now: State) -> Array:
        """Return the positions and velocities of the joints, of which velocities are clipped."""
        return concatenate(now.qpos[:, self.skipped :], clip(now.qvel, -10.0, 10.0))

    def reward(self, before: State, actions: Array, now: State) -> Array:
        """Return what speed and standing pay, less what controls cost."""
        pay = self.forward_reward(before.qpos[:, 0], now.qpos[:, 0]) + self.healthy(now) * self.healthy_reward
        return pay - self.control_cost(actions)

    def terminated(self, now: State) -> Array | None:
        """Return where it has fallen."""
        return ~self.healthy(now) if self.terminate_when_unhealthy else None
