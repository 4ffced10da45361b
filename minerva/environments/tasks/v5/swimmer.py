"""Swimmer-v5: swim forward."""

from __future__ import annotations

from minerva.environments.tasks.v5.locomotion import Locomotion


class Swimmer(Locomotion):
    """Gymnasium's Swimmer-v5; its arguments are described there."""

    model_file = "swimmer.xml"

    def __init__(
        self,
        *,
        frame_skip: int = 4,
        forward_reward_weight: float = 1.0,
        ctrl_cost_weight: float = 1e-4,
        reset_noise_scale: float = 0.1,
        exclude_current_positions_from_observation: bool = True,
    ) -> None:
        skipped = 2 * bool(exclude_current_positions_from_observation)
        super().__init__(frame_skip, forward_reward_weight, ctrl_cost_weight, reset_noise_scale, skipped)
