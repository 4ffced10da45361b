"""MPO's agent: the networks, how they act, and the batches that they learn from."""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from minerva.networks.action_critic import Critic, SmallInitLinear
from minerva.networks.diagonal_gaussian import LOG_STD_RANGE, DiagonalGaussianPolicy
from minerva.networks.layer_norm_mlp import LayerNormMLP
from minerva.networks.numpy_mlp import NumpyMLP
from minerva.trainers.flat import FlatModule, FlatOptimizer, Twin
from minerva.trainers.health import warn_of_skipped
from minerva.trainers.mpo.config import MPOConfig
from minerva.trainers.mpo.update import (
    Batch,
    Duals,
    Learned,
    Metrics,
    MPOUpdate,
    Noise,
    SequenceBatch,
    apply_update,
    named_metrics,
    noise_shapes,
)
from minerva.utils.running_norm import RunningNorm

__all__ = ["Critic", "DiagonalGaussianPolicy", "LayerNormMLP", "MPOAgent", "SmallInitLinear"]


class MPOAgent(nn.Module):
    """Policy, critic, their targets, the dual variables and the optimizers.

    Args:
        obs_dim: O.
        act_dim: A.
        action_low: Lower bounds of actions, ``[A]`` or a number.
        action_high: Upper bounds, likewise.
        device: Where the networks are.
        policy_layer_sizes: As the config's field.
        critic_layer_sizes: As the config's field.
        config: MPO's hyperparameters; by default their defaults.
        generator: Draws the noise of `act` and `update`, on the device; by default one seeded by torch's global one.
        **fields: Fields of `MPOConfig`, on top of `config`.

    Attributes:
        policy, policy_target, q, q_target: The networks.
        skipped: Updates that were left out because a number was not finite.
    """

    def __init__(
        self,
        obs_dim: int,
        act_dim: int,
        action_low: Any,
        action_high: Any,
        device: str | torch.device = "cpu",
        policy_layer_sizes: Sequence[int] | None = None,
        critic_layer_sizes: Sequence[int] | None = None,
        *,
        config: MPOConfig | None = None,
        generator: torch.Generator | None = None,
        **fields: Any,
    ) -> None:
        super().__init__()
        for name, sizes in (("policy_layer_sizes", policy_layer_sizes), ("critic_layer_sizes", critic_layer_sizes)):
            if sizes is not None:
                fields[name] = tuple(sizes)
        self.config = config = MPOConfig.from_fields(config, fields)
        self.device = torch.device(device)
        bounds = (action_low, action_high)
        self.policy = DiagonalGaussianPolicy(obs_dim, act_dim, config.policy_layer_sizes, *bounds)
        self.q = Critic(obs_dim, act_dim, config.critic_layer_sizes, *bounds)
        self.policy_target = copy.deepcopy(self.policy).requires_grad_(False)
        self.q_target = copy.deepcopy(self.q).requires_grad_(False)
        self.duals = Duals(act_dim, config)
        self.to(self.device)
        # On the CPU: it takes in observations as they come from the environments.
        self.obs_normalizer: RunningNorm | nn.Identity = RunningNorm(obs_dim) if config.normalize_obs else nn.Identity()
        self.generator = generator or torch.Generator(self.device).manual_seed(int(torch.randint(2**62, ())))
        flat = [FlatModule(module) for module in (self.policy, self.policy_target, self.q, self.q_target, self.duals)]
        self._flat = flat  # held, so that a copy of the agent ties each of them to its vector again
        moments = [FlatOptimizer.first_moments(flat[i].vector) for i in (0, 2, 4)]
        count = torch.zeros(1, dtype=torch.float64, device=self.device)
        self.learned = Learned._make([*(module.vector for module in flat), *moments, count])
        self.compute = MPOUpdate(flat[0], flat[2], flat[4], config)
        self.skipped = torch.zeros(1, dtype=torch.float64, device=self.device)

    @property
    def log_temperature(self) -> nn.Parameter:
        """The temperature's parameter, before the softplus."""
        return self.duals.temperature.parameter

    @property
    def log_alpha_mean(self) -> nn.Parameter:
        """The parameters of the mean's multipliers, before the softplus, ``[A]``."""
        return self.duals.alpha_mean.parameter

    @property
    def log_alpha_stddev(self) -> nn.Parameter:
        """The parameters of the standard deviation's multipliers, before the softplus, ``[A]``."""
        return self.duals.alpha_stddev.parameter

    # Acting

    def act(self, obs: Any, deterministic: bool = False) -> Any:
        """Choose executed actions for raw observations ``[O]`` or ``[B, O]``; arrays give arrays, tensors tensors."""
        return self.act_with_logp(obs, deterministic)[0]

    @torch.no_grad()
    def act_with_logp(self, obs: Any, deterministic: bool = False) -> tuple[Any, Any, Any]:
        """Choose actions: executed, raw, and the log-density of the raw ones, ``[..., 1]``."""
        x = self.prepared(torch.as_tensor(obs, dtype=torch.float32))
        mean, log_std = self.policy(x)
        raw, executed = self.policy.sample_action_raw_and_exec(mean, log_std, deterministic, self.generator)
        result = (executed, raw, self.policy.log_prob(mean, log_std, raw))
        return result if isinstance(obs, Tensor) else tuple(part.cpu().numpy() for part in result)  # type: ignore[return-value]

    @torch.no_grad()
    def choose(self, obs: Tensor, deterministic: bool, generator: torch.Generator | None = None) -> Tensor:
        """Give the mean action for raw observations ``[B, O]``, or a sampled one, executed: ``[B, A]``."""
        mean, log_std = self.policy(self.prepared(obs))
        return self.policy.sample_action(mean, log_std, deterministic, generator)

    def prepared(self, obs: Tensor) -> Tensor:
        """Normalize raw observations and move them to the networks."""
        if isinstance(self.obs_normalizer, RunningNorm):
            obs = self.obs_normalizer(obs.to(self.obs_normalizer.mean.device))
        return obs.to(self.policy.action_low.device)

    # Learning

    def update(self, batch: Mapping[str, Any]) -> dict[str, float] | None:
        """Improve critic, multipliers and policy on a batch of raw observations.

        Args:
            batch: Arrays or tensors: `obs, actions_exec` (or `actions`), `next_obs` of ``[B, ·]``, `rewards, dones` of
                ``[B, 1]`` (`dones` means terminated), `discounts` in place of `dones` for n steps. For Retrace all of
                ``[B, T, ·]``, with `actions_raw`, `behaviour_logp`, and `ended` where a trace is to be cut.

        Returns:
            Metrics, or None where a number was not finite: then nothing has changed.
        """
        tensors = self.to_batch(batch)
        finite, metrics = self.step(tensors, self.draw_noise(tensors))
        if finite:
            return {**named_metrics(metrics, self.config), "health/skipped": float(self.skipped)}
        warn_of_skipped(int(self.skipped))
        return None

    def step(self, batch: Batch | SequenceBatch, noise: Noise) -> tuple[Tensor, Metrics]:
        """Make one update in place, or none where a number is not finite; everything stays on the device."""
        return apply_update(self.compute, self.learned, self.skipped, batch, noise)

    def to_batch(self, batch: Mapping[str, Any]) -> Batch | SequenceBatch:
        """Turn a batch of arrays into tensors on the device, observations normalized."""

        def tensor(name: str) -> Tensor:
            if name not in batch:
                raise ValueError(f"batch: must hold {name!r}, got {', '.join(map(repr, batch))}.")
            return torch.as_tensor(batch[name], dtype=torch.float32, device=self.device)

        def observations(name: str) -> Tensor:
            raw = tensor(name)
            # The normalizer clips, which would hide that a number is infinite.
            return torch.where(torch.isfinite(raw), self.prepared(raw), torch.nan)

        obs, next_obs = observations("obs"), observations("next_obs")
        actions = tensor("actions_exec" if "actions_exec" in batch else "actions")
        sequence = obs.dim() == 3
        if sequence and not self.config.sequences:  # each sequence's first transition is all that is needed
            obs, next_obs, actions = obs[:, 0], next_obs[:, 0], actions[:, 0]
        lead = obs.shape[:-1]

        def scalars(name: str) -> Tensor:
            values = tensor(name)
            return (values[:, 0] if sequence and len(lead) == 1 else values).reshape(lead)

        if not (sequence and self.config.sequences):
            if self.config.sequences:
                raise ValueError(f"batch: use_retrace needs sequences [B, T, ·], got obs of shape {tuple(obs.shape)}.")
            # LaTeX: \gamma (1 - d)
            discounts = scalars("discounts") if "discounts" in batch else self.config.gamma * (1 - scalars("dones"))
            return Batch(obs, actions, scalars("rewards"), discounts, next_obs)
        return SequenceBatch(
            obs,
            actions,
            tensor("actions_raw"),
            scalars("behaviour_logp"),
            scalars("rewards"),
            scalars("dones"),
            scalars("ended" if "ended" in batch else "dones"),
            next_obs,
        )

    def draw_noise(self, batch: Batch | SequenceBatch) -> Noise:
        """Draw what an update on this batch needs."""
        shapes = noise_shapes(batch, self.config)
        return Noise(*(torch.randn(shape, generator=self.generator, device=self.device) for shape in shapes))

    def optimizer_state(self) -> dict[str, Tensor]:
        """Give what the optimizers and counters hold."""
        names = ("policy_moments", "q_moments", "duals_moments", "updates")
        return {**{name: getattr(self.learned, name).clone() for name in names}, "skipped": self.skipped.clone()}

    def load_optimizer_state(self, state: dict[str, Tensor]) -> None:
        """Take it back."""
        for name, value in state.items():
            (self.skipped if name == "skipped" else getattr(self.learned, name)).copy_(value)


class Actor:
    """Acts while experience is collected: the policy on NumPy, on the CPU.

    On a CPU it shares the policy's memory; else it has a copy, renewed when it acts for the first time after `refresh`:
    until then nothing waits for the GPU.

    Args:
        agent: Whose policy.
        generator: Draws the noise, on the CPU.
    """

    def __init__(self, agent: MPOAgent, generator: torch.Generator) -> None:
        self._agent = agent
        self._generator = generator
        self._twin = Twin(agent.policy)
        self._outdated = False
        policy = self._twin.module
        self._encoder = NumpyMLP(policy.encoder)
        self._mean = NumpyMLP(nn.Sequential(policy.policy_mean))
        self._log_std = NumpyMLP(nn.Sequential(policy.policy_logstd))

    def refresh(self) -> None:
        """Take over what the policy has learned."""
        self._outdated = True

    def __call__(self, obs: NDArray[np.float32]) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Give raw actions ``[N, A]`` and their log-probabilities ``[N]`` for raw observations ``[N, O]``."""
        if self._outdated:
            self._twin.refresh()
            self._outdated = False
        if isinstance(self._agent.obs_normalizer, RunningNorm):
            obs = self._agent.obs_normalizer(torch.from_numpy(obs)).numpy()
        with np.errstate(all="ignore"):  # an observation may be infinite: it is acted on, and its transition dropped
            return self._act(obs)

    def _act(self, obs: NDArray[np.float32]) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        features = self._encoder(obs)
        mean = np.nan_to_num(self._mean(features), nan=0.0, posinf=0.0, neginf=0.0)
        log_std = np.nan_to_num(self._log_std(features), nan=0.0, posinf=0.0, neginf=0.0).clip(*LOG_STD_RANGE)
        noise = torch.randn(mean.shape, generator=self._generator).numpy()
        # LaTeX: \log b(a) = \sum_j \left( -\tfrac12 \xi_j^2 - \log \sigma_j \right) - \tfrac{A}{2} \log 2\pi
        log_probs = (-0.5 * noise * noise - log_std).sum(-1) - np.float32(0.5 * math.log(2 * math.pi) * mean.shape[-1])
        # LaTeX: a = \mu + \sigma \xi, \quad \xi \sim \mathcal{N}(0, I)
        return mean + np.exp(log_std) * noise, log_probs
