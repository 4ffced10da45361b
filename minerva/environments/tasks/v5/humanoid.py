"""Humanoid-v5: walk forward on two legs."""

from __future__ import annotations

from minerva.environments.tasks.arrays import Array, as_double, clip, concatenate, like
from minerva.environments.tasks.base import State
from minerva.environments.tasks.v5.locomotion import INFINITY, Locomotion, between


class Humanoid(Locomotion):
    """Gymnasium's Humanoid-v5; its arguments are described there."""

    model_file = "humanoid.xml"

    def __init__(
        self,
        *,
        frame_skip: int = 5,
        forward_reward_weight: float = 1.25,
        ctrl_cost_weight: float = 0.1,
        contact_cost_weight: float = 5e-7,
        contact_cost_range: tuple[float, float] = (-INFINITY, 10.0),
        healthy_reward: float = 5.0,
        terminate_when_unhealthy: bool = True,
        healthy_z_range: tuple[float, float] = (1.0, 2.0),
        reset_noise_scale: float = 1e-2,
        exclude_current_positions_from_observation: bool = True,
        include_cinert_in_observation: bool = True,
        include_cvel_in_observation: bool = True,
        include_qfrc_actuator_in_observation: bool = True,
        include_cfrc_ext_in_observation: bool = True,
    ) -> None:
        self.contact_cost_weight, self.contact_cost_range = contact_cost_weight, contact_cost_range
        self.healthy_reward, self.healthy_z_range = healthy_reward, healthy_z_range
        self.terminate_when_unhealthy = terminate_when_unhealthy
        # In the order of the observation. Those of the world, or of the root, are left out.
        included = {
            "cinert": (include_cinert_in_observation, 1),
            "cvel": (include_cvel_in_observation, 1),
            "qfrc_actuator": (include_qfrc_actuator_in_observation, 6),
            "cfrc_ext": (include_cfrc_ext_in_observation, 1),
        }
        self.observed = {name: first for name, (yes, first) in included.items() if yes}
        self.fields = tuple(dict.fromkeys(("xipos", "cfrc_ext", *self.observed)))
        skipped = 2 * bool(exclude_current_positions_from_observation)
        super().__init__(frame_skip, forward_reward_weight, ctrl_cost_weight, reset_noise_scale, skipped)
        self.mass_share = self.model.body_mass / self.model.body_mass.sum()

    def center_of_mass(self, now: State) -> Array:
        """Return x of the center of mass."""
        x = now["xipos"][:, :, 0]
        return (x * like(self.mass_share, x)).sum(axis=-1)

    def observation(self, now: State) -> Array:
        """Return the joints' positions and velocities, the bodies' inertias and velocities, and forces."""
        return concatenate(super().observation(now), *(now[name][:, first:] for name, first in self.observed.items()))

    def reward(self, before: State, actions: Array, now: State) -> Array:
        """Return what speed and standing pay, less what controls and contacts cost."""
        contact_cost = self.contact_cost_weight * (now["cfrc_ext"] ** 2).sum(axis=(1, 2))
        cost = self.control_cost(as_double(actions)) + clip(contact_cost, *self.contact_cost_range)
        speed = self.forward_reward(self.center_of_mass(before), self.center_of_mass(now))
        return speed + self.healthy(now) * self.healthy_reward - cost

    def healthy(self, now: State) -> Array:
        """Return where it stands."""
        low, high = self.healthy_z_range
        return between(low, now.qpos[:, 2], high)

    def terminated(self, now: State) -> Array | None:
        """Return where it has fallen."""
        return ~self.healthy(now) if self.terminate_when_unhealthy else None
