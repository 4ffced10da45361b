"""A small agent, a rollout with every kind of episode end, and a run of `update`."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from minerva.storage.rollout import RolloutBuffer
from minerva.trainers.ppo.agent import Agent
from minerva.trainers.ppo.config import PPOConfig
from minerva.trainers.ppo.update import UpdateResult, make_gradient_step, make_optimizer, update
from tests.objectives import oracle_ppo as oracle

OBS, ACT = 3, 2


def make_agent(seed: int = 0, normalize_obs: bool = True) -> Agent:
    torch.manual_seed(seed)
    agent = Agent(OBS, ACT, (4,), (5,), normalize_obs)
    with torch.no_grad():
        # Away from the start: every part of the network then matters to the loss.
        for parameter in agent.parameters():
            parameter.add_(torch.randn(parameter.shape), alpha=0.2)
    return agent


def make_config(**fields: Any) -> PPOConfig:
    return PPOConfig(**{"rollout_steps": 12, "num_envs": 2, "minibatch_size": 8, "target_kl": None, **fields})


def make_rollout(agent: Agent, steps: int = 12, num_envs: int = 2, ends: bool = True, seed: int = 0) -> RolloutBuffer:
    """A rollout with an episode of each kind of end, NEXT_STEP and all."""
    generator = torch.Generator().manual_seed(seed)
    rollout = RolloutBuffer(steps, num_envs, OBS, ACT, torch.device("cpu"))
    rollout.begin(torch.randn(num_envs, OBS, generator=generator))
    zeros = torch.zeros(num_envs)
    for t in range(steps):
        terminated, truncated, restarting = zeros.clone(), zeros.clone(), zeros.clone()
        if ends:
            terminated[0], truncated[1] = float(t in (3, steps - 1)), float(t == 6)
            restarting[0], restarting[1] = float(t == 4), float(t == 7)
        rewards = torch.randn(num_envs, generator=generator) * (1 - restarting)
        actions = agent.act(rollout.current_obs, generator)
        rollout.add(
            actions, torch.randn(num_envs, OBS, generator=generator), rewards, terminated, truncated, restarting
        )
    return rollout


def layers_of(network: nn.Module) -> list[tuple[oracle.Array, oracle.Array]]:
    return [
        (layer.weight.detach().double().numpy(), layer.bias.detach().double().numpy())
        for layer in network.modules()
        if isinstance(layer, nn.Linear)
    ]


def weights_of(agent: Agent) -> dict[str, torch.Tensor]:
    return {name: value.clone() for name, value in agent.state_dict().items()}


def same(a: Any, b: Any) -> bool:
    """Bit for bit, through dictionaries and lists."""
    if isinstance(a, torch.Tensor):
        return isinstance(b, torch.Tensor) and torch.equal(a, b)
    if isinstance(a, dict):
        return isinstance(b, dict) and a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    if isinstance(a, list):
        return len(a) == len(b) and all(same(x, y) for x, y in zip(a, b, strict=True))
    return bool(a == b)


def run_update(
    agent: Agent, rollout: RolloutBuffer, config: PPOConfig, optimizer: torch.optim.Optimizer | None = None
) -> UpdateResult:
    step = make_gradient_step(agent, optimizer or make_optimizer(agent, config), config, compiled=False)
    return update(agent, step, rollout, config, torch.Generator().manual_seed(3))
