"""How a policy acts: while experience is collected, and outside of training."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
import torch
from gymnasium import Space
from numpy.typing import NDArray
from torch import Tensor, nn

from minerva.acceleration.cuda_graph import CudaGraph
from minerva.acceleration.flat import CpuCopy
from minerva.networks.actor_critic import ActorCritic
from minerva.networks.diagonal_gaussian import DiagonalGaussianPolicy
from minerva.networks.encoders import MakeEncoder
from minerva.networks.numpy_mlp import Array, noise_source
from minerva.trainers.collector import Act
from minerva.utils.running_norm import RunningNorm
from minerva.utils.seeding import torch_generator
from minerva.utils.structure import check, expect

MAX_CPU_ACTING_PARAMETERS = 300_000
"""Parameters up to which a network acts faster on the CPU than on a GPU, where launches and transfers take longer."""

PolicyNetwork = ActorCritic | DiagonalGaussianPolicy


class Shapes(NamedTuple):
    """The sizes and bounds that shape an agent's networks, besides the config."""

    observation_space: Space[Any]  # before flattening
    action_space: Space[Any]  # of one environment
    obs_dim: int  # O, length of a row, mask included
    mask_dim: int = 0  # K
    make_encoder: MakeEncoder | None = None  # builds the user's own encoder, with `encoder` "custom"


class BaseAgent(nn.Module):
    """A policy network with its observation normalizer.

    Attributes:
        policy: The network; PPO and V-MPO have a critic in it.
        obs_normalizer: Of raw observations, on the CPU; the identity where they are not normalized.
    """

    policy: PolicyNetwork
    obs_normalizer: RunningNorm | nn.Identity

    @property
    def state_dim(self) -> int:
        """S, length of the recurrent state; 0 without a recurrent core."""
        return self.policy.state_dim

    def initial_state(self, count: int) -> Tensor:
        """Return the recurrent state at the start of episodes, ``[count, S]``."""
        return torch.zeros(count, self.state_dim, device=self.policy.device)

    def prepare(self, obs: Tensor) -> Tensor:
        """Turn raw observations into what the policy takes: its dtype, normalized, on its device."""
        if not (obs.dtype == torch.uint8 and self.policy.takes_bytes):
            obs = obs.to(next(self.policy.parameters()).dtype)
        if isinstance(self.obs_normalizer, RunningNorm):
            obs = self.obs_normalizer(obs.to(self.obs_normalizer.mean.device))
        return obs.to(self.policy.device)

    def check_state(self, state: Any, name: str) -> None:
        """Check that loaded weights and statistics fit this agent and can be acted with.

        Raises:
            StructureError: They do not fit, or are not numbers.
        """
        check(state, dict(self.state_dict()), name)
        for key, _ in self.named_parameters(remove_duplicate=False):
            expect(not state[key].isnan().any(), f"{name}.{key}", "must hold numbers", torch.nan)
        for key in self.obs_normalizer.state_dict():
            statistic = state[f"obs_normalizer.{key}"]
            right = bool(statistic.isfinite().all()) and (key == "mean" or bool((statistic >= 0).all()))
            expect(right, f"{name}.obs_normalizer.{key}", "must hold statistics of observations", statistic)

    @torch.no_grad()
    def act_recurrent(
        self, obs: Tensor, recurrent_state: Tensor, deterministic: bool, generator: torch.Generator | None = None
    ) -> tuple[Tensor, Tensor]:
        """Choose actions for raw observations.

        Args:
            obs: ``[B, O]``.
            recurrent_state: ``[B, S]``.
            deterministic: Take the most likely action (a Gaussian's mean), or sample.
            generator: Draws the noise of samples.

        Returns:
            Actions ``[B, A]``, not clipped to the action space, and the recurrent state after them.
        """
        params, recurrent_state = self.policy.policy_step(self.prepare(obs), recurrent_state)
        head = self.policy.head
        if deterministic:
            return head.mode(params), recurrent_state
        return head.sample(params, head.draw_noise(obs.shape[:-1], generator, params[0])), recurrent_state


class ActingPolicy:
    """Act outside of training, on raw observations: for evaluation, for `minerva.load` and for the command line.

    It remembers the recurrent state between calls. The agent must be in evaluation mode.

    Args:
        agent: What acts. Its normalizer does not move.
        generator: Draws the noise of samples.
    """

    def __init__(self, agent: BaseAgent, generator: torch.Generator | None = None) -> None:
        self._agent = agent
        self._generator = generator
        self._state: Tensor | None = None

    def reset(self) -> None:
        """Reset the recurrent state: episodes begin."""
        self._state = None

    @torch.no_grad()
    def __call__(self, observations: NDArray[Any], deterministic: bool = True) -> NDArray[np.float32]:
        """Choose unclipped actions ``[B, A]`` for raw observations ``[B, O]``."""
        obs, agent = torch.from_numpy(observations), self._agent
        if self._state is None or len(self._state) != len(obs):
            self._state = agent.initial_state(len(obs))
        chosen, self._state = agent.act_recurrent(obs, self._state, deterministic, self._generator)
        actions: NDArray[np.float32] = chosen.cpu().numpy()
        return actions


class Actor:
    """Act while experience is collected: on NumPy, on torch, or as a CUDA graph.

    It shares the network's parameters, or has a copy on the CPU where the network learns on a GPU and is small enough
    to act faster there.

    Args:
        network: What acts. Its parameters must be where they will stay.
        seed: The action noise is drawn from a generator spawned from it.
        log_probs: Whether the log-probabilities of actions are needed. The network then acts on the CPU, on NumPy.

    Attributes:
        device: Where the network acts.
        generator: Draws the action noise.
    """

    def __init__(self, network: PolicyNetwork, seed: int, log_probs: bool = False) -> None:
        small = sum(parameter.numel() for parameter in network.parameters()) <= MAX_CPU_ACTING_PARAMETERS
        self._copy = CpuCopy(network, network.runs_on_numpy and (small or log_probs))
        self._network = self._copy.module
        self._log_probs = log_probs
        self.device = self._network.device
        self.generator = torch_generator(seed, "action_noise", self.device)
        self._act = self._choose_path()

    def invalidate(self) -> None:
        """Note that the network has learned: a copy is renewed before it acts again."""
        self._copy.invalidate()

    def __call__(self, obs: Any, recurrent_state: Any, episode_starts: Any) -> tuple[Any, Any, Any]:
        """Sample actions.

        Args:
            obs: Normalized observations, ``[N, O]``. All three are arrays where the network acts on the CPU; otherwise
                tensors, the last of them on the CPU.
            recurrent_state: ``[N, S]``.
            episode_starts: ``[N]``, 1 where an episode begins: the recurrent state is reset there.

        Returns:
            Actions ``[N, A]``, not clipped, the recurrent state after them, and log-probabilities ``[N]`` or None.
        """
        self._copy.refresh()
        return self._act(obs, recurrent_state, episode_starts)

    def _choose_path(self) -> Act:
        network = self._network
        if self.device.type == "cuda" and network.static:
            return self._captured()
        if self.device.type == "cpu":
            return self._numpy() if network.runs_on_numpy else self._torch_on_arrays
        return self._torch

    def _numpy(self) -> Act:
        network, head = self._network, self._network.head
        policy, sample = network.numpy_policy(), head.numpy_sampler()
        draw_noise = noise_source(head.noise, head.action_dim, self.generator)

        def act(obs: Array, state: Array, episode_starts: Array) -> tuple[Array, Array, None]:
            params, state = policy(obs, state, episode_starts)
            return sample(params, draw_noise(len(obs))), state, None

        def act_with_log_probs(obs: Array, state: Array, episode_starts: Array) -> tuple[Array, Array, Array]:
            params, state = policy(obs, state, episode_starts)
            drawn, log_std = draw_noise(len(obs)), params[1]
            constant = np.float32(0.5 * math.log(2 * math.pi) * head.action_dim)
            # LaTeX: \log b(a) = \sum_j \left( -\tfrac12 \xi_j^2 - \log \sigma_j \right) - \tfrac{A}{2} \log 2\pi
            log_probs = (-0.5 * drawn * drawn - log_std).sum(-1) - constant
            return sample(params, drawn), state, log_probs

        return act_with_log_probs if self._log_probs else act

    @torch.no_grad()
    def _torch(self, obs: Tensor, state: Tensor, episode_starts: Tensor) -> tuple[Tensor, Tensor, None]:
        if self._network.state_dim:
            state = state * (1 - episode_starts).unsqueeze(-1).to(state.device)
        params, state = self._network.policy_step(obs, state)
        head = self._network.head
        return head.sample(params, head.draw_noise(obs.shape[:-1], self.generator, params[0])), state, None

    def _torch_on_arrays(self, *arrays: NDArray[Any]) -> tuple[Any, Any, None]:
        actions, state, _ = self._torch(*map(torch.from_numpy, arrays))
        return actions.numpy(), state.numpy(), None

    def _captured(self) -> Act:
        network, head = self._network, self._network.head
        like = next(network.parameters())

        @torch.no_grad()
        def sample(obs: Tensor, noise: Tensor) -> Tensor:
            return head.sample(network.policy_step(obs, obs[:, :0])[0], noise)

        graph = CudaGraph(sample)  # the noise is drawn outside
        return lambda obs, state, starts: (graph(obs, head.draw_noise((len(obs),), self.generator, like)), state, None)
