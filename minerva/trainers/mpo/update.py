"""MPO's update: critic, E-step and M-step, as a function of what was learned, a batch and noise."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.func import grad_and_value

from minerva.networks.duals import MINIMUM, DualVariable, floored, inverse_softplus
from minerva.objectives import lagrange, mpo
from minerva.objectives.gaussian import gaussian_log_prob
from minerva.objectives.kl import kl_of_means, kl_of_stds
from minerva.objectives.retrace import retrace_target
from minerva.objectives.weighted import effective_sample_size
from minerva.trainers.accelerate import accelerated
from minerva.trainers.flat import FlatModule, FlatOptimizer
from minerva.trainers.mpo.config import MPOConfig


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
    critic: Tensor  # [B, S, A]; for Retrace [B, T, R, A]; for a shared pass nothing


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


CACHED = 2**19
"""Numbers of a hidden layer that a core's cache holds (two megabytes), and that the allocator keeps."""


class MPOUpdate:
    """One update as a function of what was learned, a batch and noise: it changes nothing and draws nothing.

    Args:
        policy: The policy; its parameters are given anew with each call.
        q: The critic, likewise.
        duals: The dual variables, likewise.
        config: MPO's hyperparameters.

    Attributes:
        in_pieces: Whether a CPU values many actions a piece at a time, which is the same thing, faster.
    """

    def __init__(self, policy: FlatModule, q: FlatModule, duals: FlatModule, config: MPOConfig) -> None:
        self._policy = policy
        self._q = q
        self._duals = duals
        self._config = config
        self.in_pieces = True
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
        # Where the policy is improved: in the states that actions were taken in, or in those that followed.
        states = batch.next_obs if config.shared_critic_pass else first_obs  # [B, O]
        with torch.no_grad():
            targets, sampled = self._evaluate_targets(policy_target, q_target, batch, first_obs, noise)

        # Critic
        actions = batch.actions if isinstance(batch, Batch) else batch.actions[:, 0]
        q_gradient, q_loss = grad_and_value(self._q_loss)(old.q, first_obs, actions, targets)
        q = self._q_optimizer(old.q, old.q_moments, q_gradient, count)

        # E-step, and one step on all multipliers
        with torch.no_grad():
            mean, log_std = self._policy(old.policy, states)
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
                policy, states, sampled, all_weights, new_multipliers
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
            effective_sample_size(weights).mean(),
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
        if isinstance(batch, Batch) and config.shared_critic_pass:
            shared = self._sample(policy, q, batch.next_obs, noise.e_step)
            # LaTeX: V(s') = \frac{1}{S} \sum_{i=1}^{S} Q'(s', a_i)
            return mpo.td_target(batch.rewards, batch.discounts, shared.q_values.mean(-1)), shared
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
        pieces = zip(*(torch.chunk(part, self._pieces(actions)) for part in (states, actions)), strict=True)
        return Sampled(mean, log_std, actions, torch.cat([self._q(q, *piece) for piece in pieces]).squeeze(-1))

    def _pieces(self, actions: Tensor) -> int:
        """Give the number of pieces to value actions in: on a CPU, few enough at a time for its cache to hold them."""
        if not self.in_pieces or actions.device.type != "cpu":
            return 1
        rows = actions.numel() // actions.shape[-1]
        return math.ceil(rows * max(self._config.critic_layer_sizes) / CACHED)

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
            lagrange.alpha_loss(alpha_mean, kl_mean, config.mstep_kl_epsilon).sum()
            + lagrange.alpha_loss(alpha_std, kl_std, config.epsilon_stddev).sum()
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
            lagrange.kl_penalty(multipliers.alpha_mean, kl_mean).sum()
            + lagrange.kl_penalty(multipliers.alpha_stddev, kl_std).sum()
        )
        # LaTeX[Abdolmaleki2018b, sec. 4.2.1]: L_\pi = L_\mu + L_\sigma + \sum_j \alpha_{\mu,j} D_{\mu,j} + \sum_j \alpha_{\sigma,j} D_{\sigma,j}
        total = mean_loss + std_loss + penalty
        aside = ((mean_loss + std_loss).detach(), kl_mean.detach(), kl_std.detach(), log_std.exp().detach())
        return total, aside


def apply_update(
    compute: MPOUpdate, learned: Learned, skipped: Tensor, batch: Batch | SequenceBatch, noise: Noise
) -> tuple[Tensor, Metrics]:
    """Compute an update and write it over what was learned, unless a number of it is not finite."""
    new, finite, metrics = compute(learned, batch, noise)
    for old, value in zip(learned, new, strict=True):
        old.copy_(torch.where(finite, value, old))
    skipped.add_(~finite)
    return finite, metrics


def make_step(
    compute: MPOUpdate,
    learned: Learned,
    skipped: Tensor,
    kind: type[Batch] | type[SequenceBatch],
    compile_it: bool,
    capture_it: bool,
) -> Callable[..., tuple[Tensor, Metrics]]:
    """Make `apply_update` as a function of the tensors of a batch of that kind, and of noise: as is, or accelerated."""
    first, size = len(learned), len(kind._fields)

    def step(*tensors: Tensor) -> tuple[Tensor, Metrics]:
        old, count, inputs = Learned(*tensors[:first]), tensors[first], tensors[first + 1 :]
        return apply_update(compute, old, count, kind(*inputs[:size]), Noise(*inputs[size:]))

    return accelerated(step, (*learned, skipped), compile_it, capture_it)


def noise_shapes(batch: Batch | SequenceBatch, config: MPOConfig) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Give the shapes of an update's noise."""
    rows, act_dim = len(batch.obs), batch.actions.shape[-1]
    e_step = (rows, config.action_samples, act_dim)
    if isinstance(batch, Batch):
        return e_step, (0, *e_step[1:]) if config.shared_critic_pass else e_step
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
