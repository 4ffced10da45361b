"""How V-MPO's policy acts while experience is collected: on a CPU on NumPy, on a GPU as a graph, where either can."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor, nn

from minerva.networks.lstm import NumpyMemory
from minerva.networks.numpy_mlp import Array, NoiseSource, NumpyMLP
from minerva.trainers.accelerate import Captured
from minerva.trainers.collector import Act, on_arrays
from minerva.trainers.vmpo.agent import Policy, VMPOAgent
from minerva.trainers.vmpo.discrete_policy import DiscretePolicy
from minerva.trainers.vmpo.gaussian_mlp_policy import LOG_STD_RANGE


def acts_on_numpy(policy: Policy) -> bool:
    """Whether a policy can act on NumPy."""
    return not policy.mask_dim


def make_actor(agent: VMPOAgent, generator: torch.Generator, policy: Policy | None = None) -> Act:
    """Make the function that acts while experience is collected: `VMPOAgent.step`, on NumPy or as a graph.

    Args:
        agent: Its memory is shared, so the function acts with whatever an update or `load_state_dict` wrote there.
        generator: Draws the noise, where the acting policy is.
        policy: What acts in the agent's place, its twin on the CPU.
    """
    policy = policy or agent.policy
    if policy.value_head.weight.device.type == "cuda" and not agent.state_dim:
        return _captured_actor(policy, generator)

    def on_tensors(obs: Tensor, state: Tensor, starts: Tensor) -> tuple[Tensor, Tensor]:
        return agent.step(obs, state, starts, generator)

    if policy.value_head.weight.device.type != "cpu":
        return on_tensors
    if not acts_on_numpy(policy):
        return on_arrays(on_tensors)
    sample = _numpy_sampler(policy, generator)
    encoder = NumpyMLP(policy.policy_encoder)
    if policy.policy_memory is None or policy.value_memory is None:
        return lambda obs, state, starts: (sample(encoder(obs)), state)
    encoders, memories = [encoder], [policy.policy_memory]
    if not policy.shared_encoder:
        encoders, memories = [encoder, NumpyMLP(policy.value_encoder)], [policy.policy_memory, policy.value_memory]
    memory = NumpyMemory(encoders, memories)

    def act(obs: Array, state: Array, starts: Array) -> tuple[Array, Array]:
        features, state = memory(obs, state, starts)
        return sample(features), state

    return act


def _captured_actor(policy: Policy, generator: torch.Generator) -> Act:
    """Make it as a graph, the noise drawn outside."""

    @torch.no_grad()
    def choose(obs: Tensor, noise: Tensor) -> Tensor:
        return policy.sample(policy(obs), noise)

    captured = Captured(choose, ())
    return lambda obs, state, starts: (captured(obs, policy.draw_noise(obs, generator)), state)


def _numpy_sampler(policy: Policy, generator: torch.Generator) -> Callable[[Array], Array]:
    """Make the function that samples actions ``[N, A]`` from the policy's features ``[N, F]``."""
    if isinstance(policy, DiscretePolicy):
        head, logits = policy.head, NumpyMLP(nn.Sequential(policy.policy_logits))
        uniform = NoiseSource("uniform", head.action_dim, generator)
        return lambda x: head.sample_numpy((logits(x),), uniform.draw(len(x)))
    mean_head, std_head = NumpyMLP(nn.Sequential(policy.policy_mean)), policy.policy_logstd
    log_stds: Callable[[Array], Array]
    if isinstance(std_head, nn.Linear):
        log_stds = NumpyMLP(nn.Sequential(std_head))
    else:
        free = std_head.detach().numpy()
        log_stds = lambda features: free  # noqa: E731
    low, high = policy.action_low.numpy(), policy.action_high.numpy()
    middle, half = (high + low) / 2, (high - low) / 2
    normal = NoiseSource("normal", len(low), generator)

    def sample(features: Array) -> Array:
        mean = mean_head(features)
        # LaTeX: u = \mu + \sigma \xi, \quad \xi \sim \mathcal{N}(0, I)
        raw = mean + np.exp(np.clip(log_stds(features), *LOG_STD_RANGE)) * normal.draw(len(mean))
        # LaTeX: a_j = c_j + h_j \tanh(u_j)
        actions: Array = middle + half * np.tanh(raw)
        np.minimum(np.maximum(actions, low, out=actions), high, out=actions)
        return actions

    return sample
