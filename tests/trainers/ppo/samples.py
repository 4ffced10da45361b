"""A small agent, a rollout with every kind of episode end, and what is learned from it."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from minerva.storage.rollout import RolloutBuffer
from minerva.trainers.ppo.agent import Agent
from minerva.trainers.ppo.config import PPOConfig
from minerva.trainers.ppo.update import Updater, UpdateResult
from tests.networks.samples import move_parameters
from tests.objectives import oracle_ppo as oracle

OBS, ACT = 3, 2


def make_agent(seed: int = 0, normalize_obs: bool = True) -> Agent:
    torch.manual_seed(seed)
    agent = Agent(OBS, ACT, (4,), (5,), normalize_obs)
    move_parameters(agent, 0.2)  # every part of the network then matters to the loss
    return agent


def no_state(count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The recurrent state and the episode starts of a policy that is not recurrent."""
    return torch.zeros(count, 0), torch.zeros(count)


@torch.no_grad()
def act(agent: Agent, obs: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Sample actions for observations that are normalized already."""
    params, head = agent.policy(obs), agent.policy.head
    return head.sample(params, head.draw_noise(obs.shape[:-1], generator, params[0]))


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
        actions = act(agent, rollout.obs[rollout.position], generator)
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


def run_update(agent: Agent, rollout: RolloutBuffer, config: PPOConfig, updater: Updater | None = None) -> UpdateResult:
    updater = updater or Updater(agent.policy, config)
    return updater.learn(rollout, remaining=1.0, generator=torch.Generator().manual_seed(3))
