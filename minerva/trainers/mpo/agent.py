"""MPO's agent: the networks, how they act, and the batches that they learn from."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from minerva.acceleration.applied import Acceleration, AppliedUpdate, load_moments, moments
from minerva.acceleration.flat import FlatModule
from minerva.acceleration.learnable import Learnable, Optimizer
from minerva.networks.action_critic import Critic, SmallInitLinear
from minerva.networks.diagonal_gaussian import DiagonalGaussianPolicy
from minerva.networks.duals import MINIMUM, Duals, inverse_softplus
from minerva.networks.layer_norm_mlp import LayerNormMLP
from minerva.trainers.actor import BaseAgent
from minerva.trainers.health import warn_about_skipped
from minerva.trainers.mpo.config import MPOConfig
from minerva.trainers.mpo.update import (
    Batch,
    Noise,
    Optimizers,
    SequenceBatch,
    TrainState,
    named_metrics,
    noise_shapes,
    update,
)
from minerva.utils.running_norm import RunningNorm

__all__ = ["Critic", "DiagonalGaussianPolicy", "LayerNormMLP", "MPOAgent", "SmallInitLinear"]


class MPOAgent(BaseAgent):
    """MPO's agent: policy, critic, their target networks, the dual variables and the optimizers.

    Args:
        obs_dim: O.
        act_dim: A.
        action_low: Lower bounds of actions, ``[A]`` or a number.
        action_high: Upper bounds of actions, ``[A]`` or a number.
        device: Where the networks are.
        policy_layer_sizes: As the config's field.
        critic_layer_sizes: As the config's field.
        config: MPO's hyperparameters; by default their defaults.
        generator: Draws the noise of `act` and `update`, on the device; by default seeded by torch's global one.
        **fields: Fields of `MPOConfig`, on top of `config`.

    Attributes:
        policy, policy_target, q, q_target: The networks.
        state: Everything that an update changes; it shares the storage of the networks.
        skipped: Updates that were skipped because a number was not finite, ``[1]``.
    """

    policy: DiagonalGaussianPolicy

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
        self.duals = _make_duals(config, act_dim)
        self.to(self.device)
        # On the CPU: it takes in observations as they come from the environments.
        self.obs_normalizer: RunningNorm | nn.Identity = nn.Identity()
        if config.normalize_obs:
            self.obs_normalizer = RunningNorm(obs_dim, config.obs_clip)
        self.generator = generator or torch.Generator(self.device).manual_seed(int(torch.randint(2**62, ())))
        self.skipped = torch.zeros(1, dtype=torch.float64, device=self.device)
        policy, q, duals = FlatModule(self.policy), FlatModule(self.q), FlatModule(self.duals)
        self._targets = FlatModule(self.policy_target, frozen=True), FlatModule(self.q_target, frozen=True)
        learnables = (Learnable.start(module.vector) for module in (policy, q, duals))
        self.state = TrainState._make([*learnables, *(module.vector for module in self._targets)])
        self.optimizers = _make_optimizers(config, policy, q, duals)
        self.set_acceleration(Acceleration())
        self._update_plainly = self._apply_update  # for batches of any size

    def set_acceleration(self, acceleration: Acceleration) -> None:
        """Run `step` this way from now on; compiled or captured, it takes batches of one size."""
        self._apply_update = AppliedUpdate(partial(update, self.optimizers, self.config), self.state, acceleration)

    @property
    def log_temperature(self) -> nn.Parameter:
        """The temperature's parameter, before the softplus."""
        return self.duals.get_parameter("temperature")

    @property
    def log_alpha_mean(self) -> nn.Parameter:
        """The parameters of the mean's multipliers, before the softplus, ``[A]``."""
        return self.duals.get_parameter("alpha_mean")

    @property
    def log_alpha_stddev(self) -> nn.Parameter:
        """The parameters of the standard deviation's multipliers, before the softplus, ``[A]``."""
        return self.duals.get_parameter("alpha_stddev")

    # Acting

    def act(self, obs: Any, deterministic: bool = False) -> Any:
        """Choose executed actions for raw observations ``[O]`` or ``[B, O]``; arrays give arrays, tensors tensors."""
        return self.act_with_logp(obs, deterministic)[0]

    @torch.no_grad()
    def act_with_logp(self, obs: Any, deterministic: bool = False) -> tuple[Any, Any, Any]:
        """Choose actions: executed, raw, and the log-density of the raw ones, ``[..., 1]``."""
        mean, log_std = self.policy(self.prepare(torch.as_tensor(obs)))
        raw, executed = self.policy.sample_action_raw_and_exec(mean, log_std, deterministic, self.generator)
        result = (executed, raw, self.policy.log_prob(mean, log_std, raw))
        return result if isinstance(obs, Tensor) else tuple(part.cpu().numpy() for part in result)  # type: ignore[return-value]

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
        finite: Tensor | bool = all(bool(part.isfinite().all()) for part in tensors)
        if finite:
            finite, metrics = self._update_plainly(tensors, self.draw_noise(tensors))
            self.skipped += ~finite
        else:
            self.skipped += 1
        if finite:
            return {**named_metrics(metrics), "health/skipped": float(self.skipped)}
        warn_about_skipped(int(self.skipped))
        return None

    def step(self, batch: Batch | SequenceBatch, noise: Noise) -> tuple[Tensor, dict[str, Tensor]]:
        """Make one update in place, or none where a number is not finite; everything stays on the device."""
        finite, metrics = self._apply_update(batch, noise)
        self.skipped += ~finite
        return finite, metrics

    def to_batch(self, batch: Mapping[str, Any]) -> Batch | SequenceBatch:
        """Turn a batch of arrays into tensors on the device, observations normalized."""
        sequences = self.config.sequences
        first_only = not sequences and np.ndim(batch.get("obs", 0)) == 3  # of sequences, which only Retrace needs whole

        def tensor(name: str) -> Tensor:
            if name not in batch:
                raise ValueError(f"batch: must hold {name!r}, got {', '.join(map(repr, batch))}.")
            part = torch.as_tensor(batch[name], dtype=torch.float32, device=self.device)
            return part[:, 0] if first_only else part

        def observations(name: str) -> Tensor:
            raw = tensor(name)
            # The normalizer clips, which would hide that a number is infinite.
            return torch.where(torch.isfinite(raw), self.prepare(raw), torch.nan)

        obs, next_obs = observations("obs"), observations("next_obs")
        actions = tensor("actions_exec" if "actions_exec" in batch else "actions")
        if sequences and obs.dim() != 3:
            raise ValueError(f"batch: use_retrace needs sequences [B, T, ·], got obs of shape {tuple(obs.shape)}.")

        def scalars(name: str) -> Tensor:
            return tensor(name).reshape(obs.shape[:-1])

        if not sequences:
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
        """Return moments and counters of the optimizers."""
        return {**moments(self.state), "skipped": self.skipped.clone()}

    def load_optimizer_state(self, state: dict[str, Tensor]) -> None:
        """Load moments and counters of the optimizers."""
        load_moments(self.state, state)
        self.skipped.copy_(state["skipped"])


def _make_duals(config: MPOConfig, act_dim: int) -> Duals:
    default = inverse_softplus(config.lambda_init)
    mean, stddev = config.init_log_alpha_mean, config.init_log_alpha_stddev
    starts = {
        "temperature": config.temperature_init,
        "alpha_mean": default if mean is None else mean,
        "alpha_stddev": default if stddev is None else stddev,
        "penalty_temperature": config.temperature_init,
    }
    return Duals(starts, {"alpha_mean": (act_dim,), "alpha_stddev": (act_dim,)})


def _make_optimizers(
    config: MPOConfig, policy: FlatModule[DiagonalGaussianPolicy], q: FlatModule[Critic], duals: FlatModule[Duals]
) -> Optimizers:
    eta, alpha = config.temperature_lr, config.lambda_lr
    rates = duals.fill_by_prefix(
        {"temperature": eta, "penalty_temperature": eta, "alpha_mean": alpha, "alpha_stddev": alpha}
    )
    common = (config.max_grad_norm, config.optimizer_type, config.sgd_momentum)
    return Optimizers(
        Optimizer(policy, config.policy_lr / config.m_steps, *common),
        Optimizer(q, config.q_lr, *common),
        Optimizer(duals, rates, *common, minimum=MINIMUM),
    )
