"""Reacher-v5: bring the tip of an arm to a target."""

from __future__ import annotations

import numpy as np

from minerva.environments.tasks.arrays import Array, concatenate, functions_for, norm
from minerva.environments.tasks.base import Draws, Start, State
from minerva.environments.tasks.v5.locomotion import GymnasiumTask


class Reacher(GymnasiumTask):
    """Gymnasium's Reacher-v5; its arguments are described there."""

    model_file = "reacher.xml"
    fields = ("xpos",)

    def __init__(
        self, *, frame_skip: int = 2, reward_dist_weight: float = 1.0, reward_control_weight: float = 1.0
    ) -> None:
        self.reward_dist_weight, self.reward_control_weight = reward_dist_weight, reward_control_weight
        super().__init__(frame_skip, reset_noise_scale=0.1)
        self.tip, self.target = (int(self.model.body(name).id) for name in ("fingertip", "target"))

    def reset(self, random: Draws) -> Start:
        """Start with the arm near its position, and the target anywhere within reach."""
        qpos = self.model.qpos0 + random.uniform(-0.1, 0.1, self.model.nq)
        # Uniform in a disk, where the square of the radius is uniform.
        radius = 0.2 * random.uniform(0, 1, 1) ** 0.5
        angle = random.uniform(-np.pi, np.pi, 1)
        qpos[:, -2:] = np.concatenate([radius * np.cos(angle), radius * np.sin(angle)], axis=1)
        qvel = random.uniform(-0.005, 0.005, self.model.nv)
        qvel[:, -2:] = 0
        return Start(qpos, qvel)

    def to_target(self, now: State) -> Array:
        """Return the vector from the target to the tip, ``[N, 3]``."""
        return now["xpos"][:, self.tip] - now["xpos"][:, self.target]

    def observation(self, now: State) -> Array:
        """Return the arm's angles and velocities, the target's place and the vector from it to the tip."""
        arm, functions = now.qpos[:, :2], functions_for(now.qpos)
        ways = now.qpos[:, 2:], now.qvel[:, :2], self.to_target(now)[:, :2]
        return concatenate(functions.cos(arm), functions.sin(arm), *ways)

    def reward(self, before: State, actions: Array, now: State) -> Array:
        """Return less the farther the tip is from the target and the larger the controls are."""
        distance = norm(self.to_target(now))
        return -distance * self.reward_dist_weight + -(actions * actions).sum(axis=-1) * self.reward_control_weight
