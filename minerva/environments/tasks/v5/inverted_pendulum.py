"""InvertedPendulum-v5: balance a pole on a cart."""

from __future__ import annotations

from minerva.environments.tasks.arrays import Array, concatenate, functions_for
from minerva.environments.tasks.base import State
from minerva.environments.tasks.v5.locomotion import GymnasiumTask


class InvertedPendulum(GymnasiumTask):
    """Gymnasium's InvertedPendulum-v5; its arguments are described there."""

    model_file = "inverted_pendulum.xml"

    def __init__(self, *, frame_skip: int = 2, reset_noise_scale: float = 0.01) -> None:
        super().__init__(frame_skip, reset_noise_scale)

    def observation(self, now: State) -> Array:
        """Return positions and velocities of cart and pole."""
        return concatenate(now.qpos, now.qvel)

    def reward(self, before: State, actions: Array, now: State) -> Array:
        """Return 1 as long as the pole stands."""
        return ~self.terminated(now) * 1.0

    def terminated(self, now: State) -> Array:
        """Return where the pole has fallen."""
        finite = functions_for(now.qpos).isfinite(self.observation(now)).all(axis=-1)
        return ~finite | (abs(now.qpos[:, 1]) > 0.2)
