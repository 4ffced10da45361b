"""What V-MPO learns from: a rollout as rows, what the policy that acted says of them, and what cannot be used."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from minerva.networks.actor_critic import ActorCritic
from minerva.networks.heads import DistParams
from minerva.storage.rollout import RolloutBuffer
from minerva.trainers.on_policy import estimate_advantages
from minerva.trainers.vmpo.config import VMPOConfig


class Batch(NamedTuple):
    """A rollout as V-MPO's update takes it, flattened to B = T·N rows, time-major."""

    obs: Tensor  # [B, O], as the policy saw them
    actions: Tensor  # [B, A], on the environment's scale
    old: DistParams  # [B, ·] each, of the policy that acted
    returns: Tensor  # [B]
    advantages: Tensor  # [B]
    restarting_weights: Tensor  # [B], 0 for a step that crosses into a new episode, else 1
    importance_weights: Tensor  # [B]
    recurrent_state: Tensor  # [N, S], before the first step; of a policy that is not recurrent [0]
    episode_starts: Tensor  # [T, N], 1 where an episode begins; of a policy that is not recurrent [0]


def kept_samples(count: int, config: VMPOConfig) -> int:
    """Return how many samples `topk_fraction` keeps of so many that do not cross into a new episode."""
    return int(config.topk_fraction * count + 1e-9)  # as `vmpo.select_top`


def mask_restarts(batch: Batch, mask_dim: int) -> Batch:
    """Set rows without weight to 0, their action masks to all allowed; if no row has weight, all stay as they are."""
    w = batch.restarting_weights
    masked = ~((w > 0) | w.isnan()) & (w > 0).any()  # [B]; a weight that is not a number stays, to be found

    def cleared(part: Tensor, value: float = 0.0) -> Tensor:
        return part.masked_fill(masked if part.dim() == 1 else masked.unsqueeze(-1), value)

    obs = cleared(batch.obs)
    if mask_dim:  # otherwise there would be nothing left to choose from
        obs = torch.cat([obs[:, :-mask_dim], cleared(batch.obs[:, -mask_dim:], 1.0)], dim=-1)
    rest = ("actions", "returns", "advantages", "restarting_weights", "importance_weights")
    return batch._replace(
        obs=obs, old=tuple(map(cleared, batch.old)), **{name: cleared(getattr(batch, name)) for name in rest}
    )


def batch_is_finite(batch: Batch) -> Tensor:
    """Return whether all of a batch is finite, a scalar; a logit of the policy that acted may be -∞."""
    parts = [part.isfinite().all() for part in batch if isinstance(part, Tensor)]
    return torch.stack([*parts, *((part < torch.inf).all() for part in batch.old)]).all()


@torch.no_grad()
def make_batch(policy: ActorCritic, rollout: RolloutBuffer, config: VMPOConfig) -> Batch:
    """Build V-MPO's batch: evaluate a full rollout with the policy and critic that collected it, in one pass."""
    params, values, _ = policy.forward_sequence(rollout.obs, rollout.first_recurrent_state, rollout.episode_starts)
    advantages, returns = estimate_advantages(rollout, values, config)
    weights = (1 - rollout.restarting).flatten()
    nothing = weights.new_zeros(0)
    return Batch(
        rollout.obs[:-1].flatten(0, 1),
        rollout.actions.flatten(0, 1),
        tuple(part[:-1].flatten(0, 1) for part in params),
        returns.flatten(),
        advantages.flatten(),
        weights,
        torch.ones_like(weights),
        rollout.first_recurrent_state if policy.state_dim else nothing,
        rollout.episode_starts[:-1] if policy.state_dim else nothing,
    )
