"""Hopper-v5: hop forward and do not fall."""

from __future__ import annotations

from minerva.environments.tasks.arrays import Array, concatenate
from minerva.environments.tasks.base import State
from minerva.environments.tasks.v5.locomotion import INFINITY, between
from minerva.environments.tasks.v5.walker2d import Walker2d


class Hopper(Walker2d):
    """Gymnasium's Hopper-v5; its arguments are described there."""

    model_file = "hopper.xml"

    def __init__(
        self,
        *,
        frame_skip: int = 4,
        forward_reward_weight: float = 1.0,
        ctrl_cost_weight: float = 1e-3,
        healthy_reward: float = 1.0,
        terminate_when_unhealthy: bool = True,
        healthy_state_range: tuple[float, float] = (-100.0, 100.0),
        healthy_z_range: tuple[float, float] = (0.7, INFINITY),
        healthy_angle_range: tuple[float, float] = (-0.2, 0.2),
        reset_noise_scale: float = 5e-3,
        exclude_current_positions_from_observation: bool = True,
    ) -> None:
        self.healthy_state_range = healthy_state_range
        super().__init__(
            frame_skip=frame_skip,
            forward_reward_weight=forward_reward_weight,
            ctrl_cost_weight=ctrl_cost_weight,
            healthy_reward=healthy_reward,
            terminate_when_unhealthy=terminate_when_unhealthy,
            healthy_z_range=healthy_z_range,
            healthy_angle_range=healthy_angle_range,
            reset_noise_scale=reset_noise_scale,
            exclude_current_positions_from_observation=exclude_current_positions_from_observation,
        )

    def healthy(self, now: State) -> Array:
        """Return where it stands, and no joint is beyond all measure."""
        low, high = self.healthy_state_range
        return super().healthy(now) & between(low, concatenate(now.qpos[:, 2:], now.qvel), high).all(axis=-1)
