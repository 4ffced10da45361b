"""Tiny agents, and batches for them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from gymnasium import Space
from torch import Tensor

from minerva.networks.heads import head_for
from minerva.trainers.vmpo.agent import VMPOAgent
from minerva.trainers.vmpo.gaussian_mlp_policy import SquashedGaussianPolicy

OBS, ACT = 2, 2
LOW, HIGH = np.array([-1.0, 0.5], dtype=np.float32), np.array([3.0, 1.0], dtype=np.float32)
Batch = dict[str, Tensor]


@contextmanager
def float64() -> Iterator[None]:
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(torch.float32)


def make_agent(seed: int = 0, **fields: Any) -> VMPOAgent:
    torch.manual_seed(seed)
    sizes = {"policy_layer_sizes": (3, 2), "value_layer_sizes": (3,)}
    agent = VMPOAgent(OBS, ACT, LOW, HIGH, "cpu", **{**sizes, **fields})
    with torch.no_grad():  # away from the start: every part of the networks then matters
        for parameter in agent.policy.parameters():
            parameter.add_(torch.randn(parameter.shape), alpha=0.2)
    return agent


def gaussian(agent: VMPOAgent) -> SquashedGaussianPolicy:
    assert isinstance(agent.policy, SquashedGaussianPolicy)
    return agent.policy


def make_data(agent: VMPOAgent, rows: int = 16, seed: int = 0, optional: bool = True) -> Batch:
    """A batch of an old policy somewhat away from the present one."""
    torch.manual_seed(seed + 100)
    obs = torch.randn(rows, OBS)
    with torch.no_grad():
        mean, log_std = agent.policy(obs)
        mean, log_std = mean + 0.1 * torch.randn(mean.shape), log_std + 0.1 * torch.randn(mean.shape)
        actions, _ = gaussian(agent).sample_action(mean, log_std)
    batch = {
        "obs": obs,
        "actions": actions,
        "old_means": mean,
        "old_log_stds": log_std,
        "returns": torch.randn(rows, 1) + 1,
        "advantages": 2 * torch.randn(rows, 1) + 0.5,
    }
    if optional:
        batch["restarting_weights"] = (torch.arange(rows) % 5 != 3).to(obs.dtype).unsqueeze(-1)
        batch["importance_weights"] = torch.rand(rows, 1) + 0.5
    return batch


def make_discrete_agent(space: Space[Any], masks: bool = False, seed: int = 0, **fields: Any) -> VMPOAgent:
    head = head_for(space)
    mask_dim = head.mask_dim if masks else 0
    torch.manual_seed(seed)
    sizes = {"policy_layer_sizes": (3, 2), "value_layer_sizes": (3,)}
    agent = VMPOAgent(
        OBS + mask_dim, head.action_dim, action_space=space, mask_dim=mask_dim, **{**sizes, **fields}
    )  # fmt: skip
    with torch.no_grad():
        for parameter in agent.policy.parameters():
            parameter.add_(torch.randn(parameter.shape), alpha=0.5)
    return agent


def make_discrete_data(agent: VMPOAgent, rows: int = 16, seed: int = 0, optional: bool = True) -> Batch:
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
        actions = policy.choose((logits,), False, None)
    batch = {
        "obs": obs,
        "actions": actions,
        "old_logits": logits,
        "returns": torch.randn(rows, 1) + 1,
        "advantages": 2 * torch.randn(rows, 1) + 0.5,
    }
    if optional:
        batch["restarting_weights"] = (torch.arange(rows) % 5 != 3).to(obs.dtype).unsqueeze(-1)
        batch["importance_weights"] = torch.rand(rows, 1) + 0.5
    return batch


def learned(agent: VMPOAgent) -> dict[str, Any]:
    """Everything that an update may change."""
    tensors = {name: value.clone() for name, value in agent.state_dict().items()}
    optimizers = agent.optimizer_state()
    del optimizers["skipped"]
    return {**tensors, **optimizers}
