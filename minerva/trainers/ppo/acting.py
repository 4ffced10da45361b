"""How PPO's policy acts while experience is collected: on NumPy where it is small and on a CPU, on a GPU as a graph."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from minerva.networks.heads import GaussianHead
from minerva.networks.lstm import NumpyMemory
from minerva.networks.mlp import Hidden
from minerva.networks.numpy_mlp import Array, NoiseSource, NumpyMLP
from minerva.trainers.accelerate import Captured
from minerva.trainers.collector import Act, on_arrays
from minerva.trainers.ppo.agent import Agent, can_be_captured, draw_noise


def make_actor(agent: Agent, generator: torch.Generator) -> Act:
    """Make the function that acts while experience is collected: `Agent.step`, small networks on a CPU on NumPy.

    Args:
        agent: Its memory is shared, so the function acts with whatever an update or `load_state_dict` wrote there.
        generator: Draws the noise, where the agent is.
    """
    if agent.device.type == "cuda" and can_be_captured(agent):
        return _captured_actor(agent, generator)

    def on_tensors(obs: Tensor, state: Tensor, starts: Tensor) -> tuple[Tensor, Tensor]:
        return agent.step(obs, state, starts, generator)

    if agent.device.type != "cpu":
        return on_tensors
    policy = _numpy_policy(agent)
    if policy is None:
        return on_arrays(on_tensors)
    head = agent.head
    noise = NoiseSource(head.noise, head.action_dim, generator)
    log_std = agent.actor_logstd.detach().numpy() if isinstance(head, GaussianHead) else None

    def act(obs: Array, state: Array, starts: Array) -> tuple[Array, Array]:
        given, state = policy(obs, state, starts)
        parameters = (given,) if log_std is None else (given, log_std)
        return head.sample_numpy(parameters, noise.draw(len(obs))), state

    return act


def _captured_actor(agent: Agent, generator: torch.Generator) -> Act:
    """Make it as a graph, the noise drawn outside."""

    @torch.no_grad()
    def choose(obs: Tensor, noise: Tensor) -> Tensor:
        return agent.head.sample(agent._policy(obs)[0], noise)

    captured = Captured(choose, ())
    device = agent.device
    return lambda obs, state, starts: (captured(obs, draw_noise(agent.head, len(obs), generator, device)), state)


def acts_on_numpy(agent: Agent) -> bool:
    """Whether the agent's policy can act on NumPy."""
    columns = [] if agent.trunk is None else agent.trunk.columns
    hidden = all(isinstance(column.encoder, Hidden) and NumpyMLP.runs(column.encoder) for column in columns)
    return not agent.mask_dim and hidden and NumpyMLP.runs(agent.actor_mean)


NumpyPolicy = Callable[[Array, Array, Array], tuple[Array, Array]]


def _numpy_policy(agent: Agent) -> NumpyPolicy | None:
    """Give what the policy's network says, and the state after, on NumPy; None where torch has to do it."""
    if not acts_on_numpy(agent):
        return None
    trunk, last = agent.trunk, NumpyMLP(agent.actor_mean)
    if trunk is None:
        return lambda obs, state, starts: (last(obs), state)
    columns = trunk.columns
    encoders = [NumpyMLP(column.encoder) for column in columns if isinstance(column.encoder, Hidden)]
    if not trunk.recurrent:
        return lambda obs, state, starts: (last(encoders[0](obs)), state)
    memory = NumpyMemory(encoders, [column.memory for column in columns if column.memory is not None])

    def policy(obs: Array, state: Array, starts: Array) -> tuple[Array, Array]:
        features, state = memory(obs, state, starts)
        return last(features), state

    return policy
