"""MPO's networks and its update."""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.func import grad_and_value

from minerva.networks.action_critic import Critic, SmallInitLinear
from minerva.networks.diagonal_gaussian import LOG_STD_RANGE, DiagonalGaussianPolicy
from minerva.networks.duals import MINIMUM, DualVariable, floored, inverse_softplus
from minerva.networks.layer_norm_mlp import LayerNormMLP
from minerva.networks.numpy_mlp import NumpyMLP
from minerva.objectives import mpo
from minerva.objectives.gaussian import gaussian_log_prob
from minerva.objectives.kl import kl_of_means, kl_of_stds
from minerva.objectives.retrace import retrace_target
from minerva.trainers.flat import FlatModule, FlatOptimizer, Twin
from minerva.trainers.health import warn_of_skipped
from minerva.trainers.mpo.config import MPOConfig
from minerva.utils.running_norm import RunningNorm

__all__ = ["Critic", "DiagonalGaussianPolicy", "LayerNormMLP", "MPOAgent", "SmallInitLinear"]


class Multipliers(NamedTuple):
    """The dual variables, all positive."""

    temperature: Tensor  # η, scalar
    alpha_mean: Tensor  # [A]
    alpha_stddev: Tensor  # [A]
    penalty_temperature: Tensor  # of the out-of-bounds cost, scalar


class Duals(nn.Module):
    """The dual variables that an agent learns."""

    def __init__(self, act_dim: int, config: MPOConfig) -> None:
        super().__init__()

        def start(given: float | None) -> float:
            return max(MINIMUM, inverse_softplus(config.lambda_init) if given is None else given)

        self.temperature = DualVariable(start(config.temperature_init))
        self.alpha_mean = DualVariable(start(config.init_log_alpha_mean), (act_dim,))
        self.alpha_stddev = DualVariable(start(config.init_log_alpha_stddev), (act_dim,))
        self.penalty_temperature = DualVariable(start(config.temperature_init))

    def forward(self) -> Multipliers:
        """Give all of them."""
        return Multipliers(self.temperature(), self.alpha_mean(), self.alpha_stddev(), self.penalty_temperature())


class Batch(NamedTuple):
    """Transitions; for n steps `rewards` are discounted sums and `next_obs` is n steps away."""

    obs: Tensor  # [B, O]
    actions: Tensor  # [B, A], executed
    rewards: Tensor  # [B]
    discounts: Tensor  # [B], γ^n (1 - terminated)
    next_obs: Tensor  # [B, O]


class SequenceBatch(NamedTuple):
    """Sequences for Retrace."""

    obs: Tensor  # [B, T, O]
    actions: Tensor  # [B, T, A], executed
    actions_raw: Tensor  # [B, T, A]
    behaviour_logp: Tensor  # [B, T]
    rewards: Tensor  # [B, T]
    terminated: Tensor  # [B, T], 0 or 1
    ended: Tensor  # [B, T], 0 or 1
    next_obs: Tensor  # [B, T, O]


class Noise(NamedTuple):
    """Standard normal numbers that an update's actions are made of."""

    e_step: Tensor  # [B, S, A]
    critic: Tensor  # [B, S, A]; for Retrace [B, T, R, A]


class Learned(NamedTuple):
    """Everything that an update changes, as vectors."""

    policy: Tensor
    policy_target: Tensor
    q: Tensor
    q_target: Tensor
    duals: Tensor
    policy_moments: Tensor
    q_moments: Tensor
    duals_moments: Tensor
    updates: Tensor  # [1], float64: successful ones


class Sampled(NamedTuple):
    """Actions that the target policy sampled in some states, and their values."""

    mean: Tensor  # [..., A]
    log_std: Tensor  # [..., A]
    actions: Tensor  # [..., S, A], raw
    q_values: Tensor  # [..., S]


class Metrics(NamedTuple):
    """What an update logs; scalars but the multipliers, ``[A]``."""

    q_loss: Tensor
    policy_loss: Tensor
    eta_loss: Tensor
    dual_loss: Tensor
    kl_q_pi: Tensor
    kl_mean: Tensor  # [A]
    kl_std: Tensor  # [A]
    eta: Tensor
    alpha_mean: Tensor  # [A]
    alpha_std: Tensor  # [A]
    q_min: Tensor
    q_max: Tensor
    std_min: Tensor
    std_max: Tensor
    entropy: Tensor
    param_delta: Tensor
    ess: Tensor
    saturation: Tensor


class MPOUpdate:
    """One update as a function of what was learned, a batch and noise: it changes nothing and draws nothing.

    Args:
        policy: The policy; its parameters are given anew with each call.
        q: The critic, likewise.
        duals: The dual variables, likewise.
        config: MPO's hyperparameters.
    """

    def __init__(self, policy: FlatModule, q: FlatModule, duals: FlatModule, config: MPOConfig) -> None:
        self._policy = policy
        self._q = q
        self._duals = duals
        self._config = config
        self._low: Tensor = policy.module.action_low  # type: ignore[assignment]
        self._high: Tensor = policy.module.action_high  # type: ignore[assignment]
        kind, clip, momentum = config.optimizer_type, config.max_grad_norm, config.sgd_momentum
        eta, alpha = config.temperature_lr, config.lambda_lr
        rates = duals.expanded(
            {"temperature": eta, "penalty_temperature": eta, "alpha_mean": alpha, "alpha_stddev": alpha}
        )
        self._policy_optimizer = FlatOptimizer(kind, config.policy_lr / config.m_steps, clip, momentum)
        self._q_optimizer = FlatOptimizer(kind, config.q_lr, clip, momentum)
        self._dual_optimizer = FlatOptimizer(kind, rates, clip, momentum)

    def __call__(self, old: Learned, batch: Batch | SequenceBatch, noise: Noise) -> tuple[Learned, Tensor, Metrics]:
        """Compute an update.

        Returns:
            What is learned then, whether every number of it was finite (a scalar, 0 or 1), and the metrics.
        """
        config, count = self._config, old.updates
        policy_target, q_target = self._targets(old)
        first_obs = batch.obs if isinstance(batch, Batch) else batch.obs[:, 0]  # [B, O]
        with torch.no_grad():
            targets, sampled = self._evaluate_targets(policy_target, q_target, batch, first_obs, noise)

        # Critic
        actions = batch.actions if isinstance(batch, Batch) else batch.actions[:, 0]
        q_gradient, q_loss = grad_and_value(self._q_loss)(old.q, first_obs, actions, targets)
        q = self._q_optimizer(old.q, old.q_moments, q_gradient, count)

        # E-step, and one step on all multipliers
        with torch.no_grad():
            mean, log_std = self._policy(old.policy, first_obs)
            # LaTeX[Abdolmaleki2018b, sec. 4.2.1]: D_{\mu,j} = \mathbb{E}_b\, \mathrm{KL}\left( \mathcal{N}(\mu'_b, \sigma'_b) \,\|\, \mathcal{N}(\mu_b, \sigma'_b) \right)_j
            kl_mean = kl_of_means(mean, sampled.mean, sampled.log_std).mean(0)  # [A]
            # LaTeX[Abdolmaleki2018b, sec. 4.2.1]: D_{\sigma,j} = \mathbb{E}_b\, \mathrm{KL}\left( \mathcal{N}(\mu'_b, \sigma'_b) \,\|\, \mathcal{N}(\mu'_b, \sigma_b) \right)_j
            kl_std = kl_of_stds(log_std, sampled.log_std).mean(0)  # [A]
            multipliers: Multipliers = self._duals(old.duals)
            weights = mpo.e_step_weights(sampled.q_values, multipliers.temperature)  # [B, S]
            all_weights = weights
            cost = mpo.out_of_bounds_cost(sampled.actions, self._low, self._high)  # [B, S]
            if config.action_penalization:
                # LaTeX: q_{b,i} \leftarrow q_{b,i} + q^c_{b,i}
                all_weights = weights + mpo.e_step_weights(cost, multipliers.penalty_temperature)
        dual_gradient, (dual_total, (dual_loss, eta_loss)) = grad_and_value(self._dual_loss, has_aux=True)(
            old.duals, sampled.q_values, cost, kl_mean, kl_std
        )
        duals = self._dual_optimizer(old.duals, old.duals_moments, dual_gradient, count)
        new_duals = floored(duals.vector)
        new_multipliers: Multipliers = self._duals(new_duals)

        # M-step
        policy, moments = old.policy, old.policy_moments
        policy_norms: list[Tensor] = []
        for m_step in range(config.m_steps):
            gradient, (total, parts) = grad_and_value(self._policy_loss, has_aux=True)(
                policy, first_obs, sampled, all_weights, new_multipliers
            )
            stepped = self._policy_optimizer(policy, moments, gradient, count * config.m_steps + m_step)
            policy, moments = stepped.vector, stepped.moments
            policy_norms += [total, stepped.norm]
        policy_loss, kl_mean, kl_std, std = parts

        new = Learned(
            policy, policy_target, q.vector, q_target, new_duals, moments, q.moments, duals.moments, count + 1
        )
        inputs = torch.stack([torch.isfinite(part).all() for part in batch])
        numbers = torch.stack(
            [targets.sum(), sampled.q_values.sum(), q_loss, q.norm, dual_total, duals.norm, *policy_norms]
        )
        finite = inputs.all() & torch.isfinite(numbers).all()
        metrics = Metrics(
            q_loss,
            policy_loss,
            eta_loss,
            dual_loss,
            # LaTeX: \frac{1}{\epsilon} \mathbb{E}_b \left[ \mathrm{KL}(q_b \,\|\, u) \right]
            mpo.kl_to_uniform(weights).mean() / config.kl_epsilon,
            kl_mean,
            kl_std,
            new_multipliers.temperature,
            new_multipliers.alpha_mean,
            new_multipliers.alpha_stddev,
            sampled.q_values.min(),
            sampled.q_values.max(),
            std.min(),
            std.max(),
            mpo.entropy(weights).mean(),
            # LaTeX: \lVert \theta - \theta_{\mathrm{old}} \rVert_2
            (policy - old.policy).norm(),
            mpo.effective_sample_size(weights).mean(),
            (new_duals <= MINIMUM).float().mean(),
        )
        return new, finite, metrics

    def _targets(self, old: Learned) -> tuple[Tensor, Tensor]:
        """Give the target networks of this update."""
        config = self._config
        if config.target_tau is not None:
            return (
                # LaTeX: \theta' \leftarrow (1 - \tau)\, \theta' + \tau\, \theta
                torch.lerp(old.policy_target, old.policy, config.target_tau),
                # LaTeX: \phi' \leftarrow (1 - \tau)\, \phi' + \tau\, \phi
                torch.lerp(old.q_target, old.q, config.target_tau),
            )
        due = old.updates % config.target_networks_update_period == 0
        # LaTeX: \theta' \leftarrow \theta, \quad \phi' \leftarrow \phi \qquad \text{where } u \bmod P = 0
        return torch.where(due, old.policy, old.policy_target), torch.where(due, old.q, old.q_target)

    def _evaluate_targets(
        self, policy: Tensor, q: Tensor, batch: Batch | SequenceBatch, first_obs: Tensor, noise: Noise
    ) -> tuple[Tensor, Sampled]:
        """Give what the critic is fitted to, ``[B]``, and the E-step's actions and values."""
        config = self._config
        if isinstance(batch, Batch):
            rows = len(first_obs)
            # Both passes through the target networks in one.
            both = self._sample(
                policy, q, torch.cat([first_obs, batch.next_obs]), torch.cat([noise.e_step, noise.critic])
            )
            # LaTeX: V(s') = \frac{1}{S} \sum_{i=1}^{S} Q'(s', a'_i)
            targets = mpo.td_target(batch.rewards, batch.discounts, both.q_values[rows:].mean(-1))
            return targets, Sampled(*(part[:rows] for part in both))
        following = self._sample(policy, q, batch.next_obs, noise.critic)
        mean, log_std = self._policy(policy, batch.obs)
        # LaTeX: \log \frac{\pi'(a_t|s_t)}{b(a_t|s_t)} = \log \pi'(a_t|s_t) - \log b(a_t|s_t)
        log_ratios = gaussian_log_prob(mean, log_std, batch.actions_raw) - batch.behaviour_logp
        targets = retrace_target(
            self._q(q, batch.obs, batch.actions).squeeze(-1),
            # LaTeX: V(s_{t+1}) = \frac{1}{R} \sum_{i=1}^{R} Q'(s_{t+1}, a'_i)
            following.q_values.mean(-1),
            batch.rewards,
            batch.terminated,
            batch.ended,
            log_ratios,
            config.gamma,
            config.retrace_lambda,
        )
        return targets, self._sample(policy, q, first_obs, noise.e_step)

    def _sample(self, policy: Tensor, q: Tensor, obs: Tensor, noise: Tensor) -> Sampled:
        """Sample actions in each state ``[..., O]`` and value them."""
        mean, log_std = self._policy(policy, obs)
        # LaTeX: a_i = \mu' + \sigma' \xi_i, \quad \xi_i \sim \mathcal{N}(0, I)
        actions = mean.unsqueeze(-2) + log_std.exp().unsqueeze(-2) * noise
        states = obs.unsqueeze(-2).expand(*actions.shape[:-1], obs.shape[-1])
        return Sampled(mean, log_std, actions, self._q(q, states, actions).squeeze(-1))

    def _q_loss(self, vector: Tensor, obs: Tensor, actions: Tensor, targets: Tensor) -> Tensor:
        values = self._q(vector, obs, actions).squeeze(-1)
        # LaTeX[Abdolmaleki2018a, eq. 13]: L_Q = \mathbb{E}\left[(Q(s, a) - y)^2\right]
        loss: Tensor = ((values - targets) ** 2).mean()
        return loss

    def _dual_loss(
        self, vector: Tensor, q_values: Tensor, cost: Tensor, kl_mean: Tensor, kl_std: Tensor
    ) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """Give the loss of all multipliers; beside it that without the penalty's part, and the temperature's part."""
        config = self._config
        eta, alpha_mean, alpha_std, penalty_eta = self._duals(vector)
        # LaTeX[Abdolmaleki2018a, eq. 9]: L_\eta = \mathbb{E}_b[L_{\eta,b}]
        eta_loss = mpo.temperature_loss(q_values, eta, config.kl_epsilon).mean()
        # LaTeX[Abdolmaleki2018a, app. D.3]: L_\alpha = \sum_j \alpha_{\mu,j} (\epsilon_\mu - D_{\mu,j}) + \sum_j \alpha_{\sigma,j} (\epsilon_\sigma - D_{\sigma,j})
        alpha_loss = (
            mpo.alpha_loss(alpha_mean, kl_mean, config.mstep_kl_epsilon).sum()
            + mpo.alpha_loss(alpha_std, kl_std, config.epsilon_stddev).sum()
        )
        # LaTeX: L_{\mathrm{dual}} = L_\eta + L_\alpha
        loss = total = eta_loss + alpha_loss
        if config.action_penalization:
            # LaTeX: L_{\mathrm{dual}} = L_\eta + L_\alpha + \mathbb{E}_b[L_{\eta_c,b}]
            total = loss + mpo.temperature_loss(cost, penalty_eta, config.epsilon_penalty).mean()
        return total, (loss.detach(), eta_loss.detach())

    def _policy_loss(
        self, vector: Tensor, obs: Tensor, sampled: Sampled, weights: Tensor, multipliers: Multipliers
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Give the decoupled M-step's loss; beside it the fit, the two KLs and the standard deviations."""
        mean, log_std = self._policy(vector, obs)
        old_mean, old_log_std = sampled.mean.unsqueeze(1), sampled.log_std.unsqueeze(1)  # [B, 1, A]
        # LaTeX[Abdolmaleki2018b, sec. 4.2.1]: L_\mu = -\mathbb{E}_b \sum_i q_{b,i} \log \mathcal{N}(a_i; \mu, \sigma')
        mean_loss = mpo.weighted_nll(gaussian_log_prob(mean.unsqueeze(1), old_log_std, sampled.actions), weights).mean()
        # LaTeX[Abdolmaleki2018b, sec. 4.2.1]: L_\sigma = -\mathbb{E}_b \sum_i q_{b,i} \log \mathcal{N}(a_i; \mu', \sigma)
        std_loss = mpo.weighted_nll(gaussian_log_prob(old_mean, log_std.unsqueeze(1), sampled.actions), weights).mean()
        # LaTeX[Abdolmaleki2018b, sec. 4.2.1]: D_{\mu,j} = \mathbb{E}_b\, \mathrm{KL}\left( \mathcal{N}(\mu'_b, \sigma'_b) \,\|\, \mathcal{N}(\mu_b, \sigma'_b) \right)_j
        kl_mean = kl_of_means(mean, sampled.mean, sampled.log_std).mean(0)  # [A]
        # LaTeX[Abdolmaleki2018b, sec. 4.2.1]: D_{\sigma,j} = \mathbb{E}_b\, \mathrm{KL}\left( \mathcal{N}(\mu'_b, \sigma'_b) \,\|\, \mathcal{N}(\mu'_b, \sigma_b) \right)_j
        kl_std = kl_of_stds(log_std, sampled.log_std).mean(0)  # [A]
        penalty = (
            mpo.kl_penalty(multipliers.alpha_mean, kl_mean).sum()
            + mpo.kl_penalty(multipliers.alpha_stddev, kl_std).sum()
        )
        # LaTeX[Abdolmaleki2018b, sec. 4.2.1]: L_\pi = L_\mu + L_\sigma + \sum_j \alpha_{\mu,j} D_{\mu,j} + \sum_j \alpha_{\sigma,j} D_{\sigma,j}
        total = mean_loss + std_loss + penalty
        aside = ((mean_loss + std_loss).detach(), kl_mean.detach(), kl_std.detach(), log_std.exp().detach())
        return total, aside


class MPOAgent(nn.Module):
    """Policy, critic, their targets, the dual variables and the optimisers.

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
        """Normalise raw observations and move them to the networks."""
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
        """Turn a batch of arrays into tensors on the device, observations normalised."""

        def tensor(name: str) -> Tensor:
            if name not in batch:
                raise ValueError(f"batch: must hold {name!r}, got {', '.join(map(repr, batch))}.")
            return torch.as_tensor(batch[name], dtype=torch.float32, device=self.device)

        def observations(name: str) -> Tensor:
            raw = tensor(name)
            # The normaliser clips, which would hide that a number is infinite.
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
        """Give what the optimisers and counters hold."""
        names = ("policy_moments", "q_moments", "duals_moments", "updates")
        return {**{name: getattr(self.learned, name).clone() for name in names}, "skipped": self.skipped.clone()}

    def load_optimizer_state(self, state: dict[str, Tensor]) -> None:
        """Take it back."""
        for name, value in state.items():
            (self.skipped if name == "skipped" else getattr(self.learned, name)).copy_(value)


def apply_update(
    compute: MPOUpdate, learned: Learned, skipped: Tensor, batch: Batch | SequenceBatch, noise: Noise
) -> tuple[Tensor, Metrics]:
    """Compute an update and write it over what was learned, unless a number of it is not finite."""
    new, finite, metrics = compute(learned, batch, noise)
    for old, value in zip(learned, new, strict=True):
        old.copy_(torch.where(finite, value, old))
    skipped.add_(~finite)
    return finite, metrics


def noise_shapes(batch: Batch | SequenceBatch, config: MPOConfig) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Give the shapes of an update's noise."""
    rows, act_dim = len(batch.obs), batch.actions.shape[-1]
    e_step = (rows, config.action_samples, act_dim)
    if isinstance(batch, Batch):
        return e_step, e_step
    return e_step, (rows, batch.obs.shape[1], config.retrace_mc_actions, act_dim)


def named_metrics(metrics: Metrics, config: MPOConfig) -> dict[str, float]:
    """Give an update's metrics their names."""
    plain = Metrics(*(value.detach().cpu() for value in metrics))
    per_dimension = {
        f"health/{name}_{j}": value
        for name, values in (("alpha_mean", plain.alpha_mean), ("alpha_std", plain.alpha_std))
        for j, value in enumerate(values.tolist())
    }
    return {
        "loss/q": plain.q_loss.item(),
        "loss/policy": plain.policy_loss.item(),
        "loss/dual_eta": plain.eta_loss.item(),
        "loss/dual": plain.dual_loss.item(),
        "kl/q_pi": plain.kl_q_pi.item(),
        "kl/mean": plain.kl_mean.mean().item(),
        "kl/std": plain.kl_std.mean().item(),
        "eta": plain.eta.item(),
        "alpha_mean": plain.alpha_mean.mean().item(),
        "alpha_std": plain.alpha_std.mean().item(),
        "lambda": plain.alpha_mean.mean().item(),
        "q/min": plain.q_min.item(),
        "q/max": plain.q_max.item(),
        "pi/std_min": plain.std_min.item(),
        "pi/std_max": plain.std_max.item(),
        "entropy": plain.entropy.item(),
        "train/param_delta": plain.param_delta.item(),
        "health/kl_mean_ratio": plain.kl_mean.max().item() / config.mstep_kl_epsilon,
        "health/kl_std_ratio": plain.kl_std.max().item() / config.epsilon_stddev,
        "health/ess": plain.ess.item(),
        "health/dual_saturation": plain.saturation.item(),
        **per_dimension,
    }


class Actor:
    """Acts while experience is collected: the policy on NumPy, on the CPU.

    On a CPU it shares the policy's memory; else it has a copy that `refresh` renews.

    Args:
        agent: Whose policy.
        generator: Draws the noise, on the CPU.
    """

    def __init__(self, agent: MPOAgent, generator: torch.Generator) -> None:
        self._agent = agent
        self._generator = generator
        self._twin = Twin(agent.policy)
        policy = self._twin.module
        self._encoder = NumpyMLP(policy.encoder)
        self._mean = NumpyMLP(nn.Sequential(policy.policy_mean))
        self._log_std = NumpyMLP(nn.Sequential(policy.policy_logstd))

    def refresh(self) -> None:
        """Take over what the policy has learned."""
        self._twin.refresh()

    def __call__(self, obs: NDArray[np.float32]) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Give raw actions ``[N, A]`` and their log-probabilities ``[N]`` for raw observations ``[N, O]``."""
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
