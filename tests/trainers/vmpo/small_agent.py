"""Tiny agents, and batches for them."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from gymnasium import Space
from torch import Tensor

from minerva.acceleration.applied import moments
from minerva.networks.heads import head_for
from minerva.storage.rollout import RolloutBuffer
from minerva.trainers.vmpo.agent import VMPOAgent
from minerva.trainers.vmpo.batch import Batch
from minerva.trainers.vmpo.gaussian_mlp_policy import SquashedGaussianPolicy
from tests.networks.samples import move_parameters

OBS, ACT = 2, 2
LOW, HIGH = np.array([-1.0, 0.5], dtype=np.float32), np.array([3.0, 1.0], dtype=np.float32)
Data = dict[str, Tensor]
"""A batch as the public `update` takes it."""


def make_agent(seed: int = 0, **fields: Any) -> VMPOAgent:
    torch.manual_seed(seed)
    sizes = {"policy_layer_sizes": (3, 2), "value_layer_sizes": (3,)}
    agent = VMPOAgent(OBS, ACT, LOW, HIGH, "cpu", **{**sizes, **fields})
    move_parameters(agent.policy, 0.2)  # every part of the networks then matters
    return agent


def gaussian(agent: VMPOAgent) -> SquashedGaussianPolicy:
    assert isinstance(agent.policy, SquashedGaussianPolicy)
    return agent.policy


def make_data(agent: VMPOAgent, rows: int = 16, seed: int = 0, optional: bool = True) -> Data:
    """A batch of an old policy somewhat away from the present one."""
    torch.manual_seed(seed + 100)
    obs = torch.randn(rows, OBS)
    with torch.no_grad():
        mean, log_std = agent.policy(obs)
        mean, log_std = mean + 0.1 * torch.randn(mean.shape), log_std + 0.1 * torch.randn(mean.shape)
        actions, _ = gaussian(agent).sample_action(mean, log_std)
    return {
        "obs": obs,
        "actions": actions,
        "old_means": mean,
        "old_log_stds": log_std,
        **_outcomes(rows, optional),
    }


def _outcomes(rows: int, optional: bool) -> Data:
    """The part of a batch that is the same for every kind of action."""
    batch = {"returns": torch.randn(rows, 1) + 1, "advantages": 2 * torch.randn(rows, 1) + 0.5}
    if optional:
        batch["restarting_weights"] = (torch.arange(rows) % 5 != 3).to(torch.get_default_dtype()).unsqueeze(-1)
        batch["importance_weights"] = torch.rand(rows, 1) + 0.5
    return batch


def make_rollout(agent: VMPOAgent, steps: int) -> RolloutBuffer:
    """Two environments, over ends of both kinds; the policy that acted is the agent's."""
    rollout = RolloutBuffer(steps, 2, OBS, ACT, torch.device("cpu"))
    torch.manual_seed(8)
    rollout.obs = torch.randn(steps + 1, 2, OBS)
    rollout.actions = agent.act(rollout.obs[:-1].flatten(0, 1))[0].view(steps, 2, ACT)
    rollout.rewards, rollout.position = torch.randn(steps, 2), steps
    rollout.terminated[1, 0] = rollout.truncated[3, 1] = 1
    rollout.restarting[2, 0] = rollout.restarting[4, 1] = 1
    for name in ("terminated", "truncated", "restarting"):
        setattr(rollout, name, getattr(rollout, name).to(rollout.obs.dtype))
    return rollout


def as_dict(batch: Batch, agent: VMPOAgent) -> Data:
    """A batch of a rollout as the public `update` takes it."""
    parts = batch._asdict()
    old = dict(zip(agent.policy.head.param_names, parts.pop("old"), strict=True))
    state, starts = parts.pop("recurrent_state"), parts.pop("episode_starts")
    rows = {name: part if part.dim() == 2 else part.unsqueeze(-1) for name, part in parts.items()}
    return {**rows, **old, **({"state": state, "starts": starts} if agent.state_dim else {})}


def make_discrete_agent(space: Space[Any], masks: bool = False, seed: int = 0, **fields: Any) -> VMPOAgent:
    head = head_for(space)
    mask_dim = head.mask_dim if masks else 0
    torch.manual_seed(seed)
    sizes = {"policy_layer_sizes": (3, 2), "value_layer_sizes": (3,)}
    agent = VMPOAgent(
        OBS + mask_dim, head.action_dim, action_space=space, mask_dim=mask_dim, **{**sizes, **fields}
    )  # fmt: skip
    move_parameters(agent.policy, 0.5)
    return agent


def make_discrete_data(agent: VMPOAgent, rows: int = 16, seed: int = 0, optional: bool = True) -> Data:
    """A batch of an old policy somewhat away from the present one; masks allow two thirds."""
    torch.manual_seed(seed + 100)
    policy = agent.policy
    obs = torch.randn(rows, OBS)
    if policy.mask_dim:
        mask = (torch.arange(rows)[:, None] + torch.arange(policy.mask_dim)) % 3 > 0
        obs = torch.cat([obs, mask.to(obs.dtype)], dim=1)
    with torch.no_grad():
        logits = agent.act(obs)[2]
        logits = logits + 0.3 * torch.randn(logits.shape)
        actions = policy.head.sample((logits,), policy.head.draw_noise((rows,), None, logits))
    return {
        "obs": obs,
        "actions": actions,
        "old_logits": logits,
        **_outcomes(rows, optional),
    }


def learned(agent: VMPOAgent) -> dict[str, Any]:
    """Everything that an update may change."""
    tensors = {name: value.clone() for name, value in agent.state_dict().items()}
    return {**tensors, **moments(agent.updater.state)}
