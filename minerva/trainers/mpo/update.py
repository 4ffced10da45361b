"""MPO's update: critic, E-step and M-step, as a pure function of a state, a batch and noise."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from minerva.acceleration.learnable import Learnable, Optimizer, minimize
from minerva.networks.action_critic import Critic
from minerva.networks.diagonal_gaussian import DiagonalGaussianPolicy
from minerva.networks.duals import MINIMUM, Duals
from minerva.networks.heads import DistParams
from minerva.objectives import lagrange, mpo
from minerva.objectives.kl import kl_of_means, kl_of_stds
from minerva.objectives.retrace import retrace_target
from minerva.objectives.weighted import effective_sample_size
from minerva.trainers.mpo.config import MPOConfig

CACHE_ELEMENTS = 2**19
"""Activations of a hidden layer that fit into a core's cache: 2 MiB."""


class Batch(NamedTuple):
    """A batch of MPO: transitions; for n steps `rewards` are discounted sums and `next_obs` is n steps away."""

    obs: Tensor  # [B, O]
    actions: Tensor  # [B, A], raw or executed: the critic clips them
    rewards: Tensor  # [B]
    discounts: Tensor  # [B], γ^n (1 - terminated)
    next_obs: Tensor  # [B, O]


class SequenceBatch(NamedTuple):
    """A batch of MPO with Retrace: sequences of transitions."""

    obs: Tensor  # [B, T, O]
    actions: Tensor  # [B, T, A], raw or executed: the critic clips them
    actions_raw: Tensor  # [B, T, A]
    behaviour_logp: Tensor  # [B, T]
    rewards: Tensor  # [B, T]
    terminated: Tensor  # [B, T], 0 or 1
    ended: Tensor  # [B, T], 0 or 1
    next_obs: Tensor  # [B, T, O]


class Noise(NamedTuple):
    """The noise of an MPO update: standard normal numbers that it samples actions with."""

    e_step: Tensor  # [B, S, A]
    critic: Tensor  # [B, S, A]; for Retrace [B, T, R, A], R = retrace_mc_actions; for a shared pass nothing


class TrainState(NamedTuple):
    """Everything that an MPO update changes: networks, target networks, dual variables."""

    policy: Learnable
    q: Learnable
    duals: Learnable
    policy_target: Tensor  # [P], parameters of the target policy
    q_target: Tensor  # [P'], parameters of the target critic


class Optimizers(NamedTuple):
    """The optimizers of MPO: of policy, critic and dual variables."""

    policy: Optimizer[DiagonalGaussianPolicy]
    q: Optimizer[Critic]
    duals: Optimizer[Duals]


class Multipliers(NamedTuple):
    """MPO's dual variables, all positive: temperatures and Lagrange multipliers."""

    temperature: Tensor  # η, scalar
    alpha_mean: Tensor  # [A]
    alpha_stddev: Tensor  # [A]
    penalty_temperature: Tensor  # of the out-of-bounds cost, scalar


class Sampled(NamedTuple):
    """Actions that MPO's target policy sampled in some states, and their values."""

    mean: Tensor  # [..., A]
    log_std: Tensor  # [..., A]
    actions: Tensor  # [..., S, A], raw
    q_values: Tensor  # [..., S]


def update(
    optimizers: Optimizers, config: MPOConfig, state: TrainState, batch: Batch | SequenceBatch, noise: Noise
) -> tuple[TrainState, dict[str, Tensor]]:
    """Compute an MPO update: target networks, a step on the critic, one on all multipliers, `m_steps` on the policy."""
    policy_module, q_module, duals_module = optimizers.policy.module, optimizers.q.module, optimizers.duals.module
    first_step = batch if isinstance(batch, Batch) else SequenceBatch(*(part[:, 0] for part in batch))
    # Where the policy is improved: in the states that actions were taken in, or in those that followed.
    policy_obs = batch.next_obs if config.shared_critic_pass else first_step.obs  # [B, O]
    policy_target, q_target = target_networks(state, config)
    with policy_module.at(policy_target) as policy, q_module.at(q_target) as q:
        targets, sampled = evaluate_targets(policy, q, batch, first_step.obs, noise, config)

    # Critic
    new_q, q_loss = minimize(critic_loss, state.q, optimizers.q, first_step.obs, first_step.actions, targets)

    # E-step, and one step on all multipliers
    with policy_module.at(state.policy.parameters) as policy:
        kls = divergences(policy(policy_obs), sampled)
    with duals_module.at(state.duals.parameters) as duals:
        multipliers = Multipliers(*duals())
    weights = policy_weights = mpo.e_step_weights(sampled.q_values, multipliers.temperature)  # [B, S]
    cost = mpo.out_of_bounds_cost(sampled.actions, policy.action_low, policy.action_high)  # [B, S]
    if config.action_penalization:
        # LaTeX: q_{b,i} \leftarrow q_{b,i} + q^c_{b,i}
        policy_weights = weights + mpo.e_step_weights(cost, multipliers.penalty_temperature)
    new_duals, dual_losses = minimize(dual_loss, state.duals, optimizers.duals, sampled.q_values, cost, kls, config)
    with duals_module.at(new_duals.parameters) as duals:
        multipliers = Multipliers(*duals())

    # M-step
    new_policy = state.policy
    for _ in range(config.m_steps):
        new_policy, (fit, kl_mean, kl_std, std) = minimize(
            policy_loss, new_policy, optimizers.policy, policy_obs, sampled, policy_weights, multipliers
        )

    alpha_mean, alpha_std = multipliers.alpha_mean, multipliers.alpha_stddev
    metrics = {
        "loss/q": q_loss,
        "loss/policy": fit,
        **dual_losses,
        # LaTeX: \frac{1}{\epsilon} \mathbb{E}_b \left[ \mathrm{KL}(q_b \,\|\, u) \right]
        "kl/q_pi": mpo.kl_to_uniform(weights).mean() / config.kl_epsilon,
        "kl/mean": kl_mean.mean(),
        "kl/std": kl_std.mean(),
        "eta": multipliers.temperature,
        "alpha_mean": alpha_mean.mean(),
        "alpha_std": alpha_std.mean(),
        "lambda": alpha_mean.mean(),
        "q/min": sampled.q_values.min(),
        "q/max": sampled.q_values.max(),
        "pi/std_min": std.min(),
        "pi/std_max": std.max(),
        "entropy": mpo.entropy(weights).mean(),
        # LaTeX: \lVert \theta - \theta_{\mathrm{old}} \rVert_2
        "train/param_delta": (new_policy.parameters - state.policy.parameters).norm(),
        "health/kl_mean_ratio": kl_mean.max() / config.mstep_kl_epsilon,
        "health/kl_std_ratio": kl_std.max() / config.epsilon_stddev,
        "health/ess": effective_sample_size(weights).mean(),
        "health/dual_saturation": (new_duals.parameters <= MINIMUM).float().mean(),
        "health/alpha_mean": alpha_mean,  # [A]
        "health/alpha_std": alpha_std,  # [A]
    }
    # A softmax can hide an infinite value. A step count that is not a number marks the update as failed.
    values_finite = targets.isfinite().all() & sampled.q_values.isfinite().all()
    new_q = new_q._replace(steps=torch.where(values_finite, new_q.steps, torch.nan))
    return TrainState(new_policy, new_q, new_duals, policy_target, q_target), metrics


def target_networks(state: TrainState, config: MPOConfig) -> tuple[Tensor, Tensor]:
    """Return the parameters of MPO's target networks for this update: copied, averaged or unchanged."""
    if config.target_tau is not None:
        return (
            # LaTeX: \theta' \leftarrow (1 - \tau)\, \theta' + \tau\, \theta
            torch.lerp(state.policy_target, state.policy.parameters, config.target_tau),
            # LaTeX: \phi' \leftarrow (1 - \tau)\, \phi' + \tau\, \phi
            torch.lerp(state.q_target, state.q.parameters, config.target_tau),
        )
    due = state.q.steps % config.target_networks_update_period == 0
    # LaTeX: \theta' \leftarrow \theta, \quad \phi' \leftarrow \phi \qquad \text{where } u \bmod P = 0
    return (
        torch.where(due, state.policy.parameters, state.policy_target),
        torch.where(due, state.q.parameters, state.q_target),
    )


def evaluate_targets(
    policy: DiagonalGaussianPolicy,
    q: Critic,
    batch: Batch | SequenceBatch,
    first_obs: Tensor,
    noise: Noise,
    config: MPOConfig,
) -> tuple[Tensor, Sampled]:
    """Evaluate MPO's target networks: the critic's targets, ``[B]``, and the E-step's actions and values."""
    if isinstance(batch, Batch) and config.shared_critic_pass:
        shared = sample(policy, q, batch.next_obs, noise.e_step)
        # LaTeX: V(s') = \frac{1}{S} \sum_{i=1}^{S} Q'(s', a_i)
        return mpo.td_target(batch.rewards, batch.discounts, shared.q_values.mean(-1)), shared
    if isinstance(batch, Batch):
        rows = len(first_obs)
        # Both passes through the target networks in one.
        both = sample(policy, q, torch.cat([first_obs, batch.next_obs]), torch.cat([noise.e_step, noise.critic]))
        # LaTeX: V(s') = \frac{1}{S} \sum_{i=1}^{S} Q'(s', a'_i)
        targets = mpo.td_target(batch.rewards, batch.discounts, both.q_values[rows:].mean(-1))
        return targets, Sampled(*(part[:rows] for part in both))
    next_samples = sample(policy, q, batch.next_obs, noise.critic)
    # LaTeX: \log \frac{\pi'(a_t|s_t)}{b(a_t|s_t)} = \log \pi'(a_t|s_t) - \log b(a_t|s_t)
    log_ratios = policy.head.log_prob(policy(batch.obs), batch.actions_raw) - batch.behaviour_logp
    targets = retrace_target(
        q(batch.obs, batch.actions).squeeze(-1),
        # LaTeX: V(s_{t+1}) = \frac{1}{R} \sum_{i=1}^{R} Q'(s_{t+1}, a'_i)
        next_samples.q_values.mean(-1),
        batch.rewards,
        batch.terminated,
        batch.ended,
        log_ratios,
        config.gamma,
        config.retrace_lambda,
    )
    return targets, sample(policy, q, first_obs, noise.e_step)


def sample(policy: DiagonalGaussianPolicy, q: Critic, obs: Tensor, noise: Tensor) -> Sampled:
    """Sample actions in each state ``[..., O]`` and evaluate them with MPO's critic."""
    mean, log_std = policy(obs)
    # LaTeX: a_i = \mu' + \sigma' \xi_i, \quad \xi_i \sim \mathcal{N}(0, I)
    actions = mean.unsqueeze(-2) + log_std.exp().unsqueeze(-2) * noise
    states = obs.unsqueeze(-2).expand(*actions.shape[:-1], obs.shape[-1])
    chunks = zip(*(torch.chunk(part, _num_chunks(q, actions)) for part in (states, actions)), strict=True)
    return Sampled(mean, log_std, actions, torch.cat([q(*chunk) for chunk in chunks]).squeeze(-1))


def _num_chunks(q: Critic, actions: Tensor) -> int:
    """Return in how many chunks the critic evaluates actions, so that each fits a CPU's cache."""
    if actions.device.type != "cpu":
        return 1
    rows = actions.numel() // actions.shape[-1]
    return math.ceil(rows * q.widest_layer / CACHE_ELEMENTS)


def critic_loss(q: Critic, obs: Tensor, actions: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Compute the loss of MPO's critic: the mean squared error."""
    # LaTeX[Abdolmaleki2018a, eq. 13]: L_Q = \mathbb{E}\left[(Q(s, a) - y)^2\right]
    loss = ((q(obs, actions).squeeze(-1) - targets) ** 2).mean()
    return loss, loss


def dual_loss(
    duals: Duals, q_values: Tensor, cost: Tensor, kls: tuple[Tensor, Tensor], config: MPOConfig
) -> tuple[Tensor, dict[str, Tensor]]:
    """Compute the loss of MPO's dual variables; what is logged of it leaves out the out-of-bounds penalty."""
    (eta, alpha_mean, alpha_std, penalty_eta), (kl_mean, kl_std) = duals(), kls
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
    return total, {"loss/dual_eta": eta_loss, "loss/dual": loss}


def divergences(params: DistParams, sampled: Sampled) -> tuple[Tensor, Tensor]:
    """Compute the KL divergences of the policy from the target policy, ``[A]`` each for mean and standard deviation."""
    # LaTeX[Abdolmaleki2018b, sec. 4.2.1]: D_{\mu,j} = \mathbb{E}_b\, \mathrm{KL}\left( \mathcal{N}(\mu'_b, \sigma'_b) \,\|\, \mathcal{N}(\mu_b, \sigma'_b) \right)_j
    kl_mean = kl_of_means(params[0], sampled.mean, sampled.log_std).mean(0)
    # LaTeX[Abdolmaleki2018b, sec. 4.2.1]: D_{\sigma,j} = \mathbb{E}_b\, \mathrm{KL}\left( \mathcal{N}(\mu'_b, \sigma'_b) \,\|\, \mathcal{N}(\mu'_b, \sigma_b) \right)_j
    kl_std = kl_of_stds(params[1], sampled.log_std).mean(0)
    return kl_mean, kl_std


def policy_loss(
    policy: DiagonalGaussianPolicy, obs: Tensor, sampled: Sampled, weights: Tensor, multipliers: Multipliers
) -> tuple[Tensor, tuple[Tensor, ...]]:
    """Compute the loss of MPO's M-step; also its part without penalty, both KLs ``[A]``, and σ ``[B, A]``."""
    mean, log_std = policy(obs)
    old_mean, old_log_std = sampled.mean.unsqueeze(1), sampled.log_std.unsqueeze(1)  # [B, 1, A]
    log_prob = policy.head.log_prob
    # LaTeX[Abdolmaleki2018b, sec. 4.2.1]: L_\mu = -\mathbb{E}_b \sum_i q_{b,i} \log \mathcal{N}(a_i; \mu, \sigma')
    mean_loss = mpo.weighted_nll(log_prob((mean.unsqueeze(1), old_log_std), sampled.actions), weights).mean()
    # LaTeX[Abdolmaleki2018b, sec. 4.2.1]: L_\sigma = -\mathbb{E}_b \sum_i q_{b,i} \log \mathcal{N}(a_i; \mu', \sigma)
    std_loss = mpo.weighted_nll(log_prob((old_mean, log_std.unsqueeze(1)), sampled.actions), weights).mean()
    kl_mean, kl_std = divergences((mean, log_std), sampled)
    penalty = (
        lagrange.kl_penalty(multipliers.alpha_mean, kl_mean).sum()
        + lagrange.kl_penalty(multipliers.alpha_stddev, kl_std).sum()
    )
    # LaTeX[Abdolmaleki2018b, sec. 4.2.1]: L_\pi = L_\mu + L_\sigma + \sum_j \alpha_{\mu,j} D_{\mu,j} + \sum_j \alpha_{\sigma,j} D_{\sigma,j}
    total = mean_loss + std_loss + penalty
    return total, (mean_loss + std_loss, kl_mean, kl_std, log_std.exp())


def noise_shapes(batch: Batch | SequenceBatch, config: MPOConfig) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the shapes of the noise of an MPO update."""
    rows, act_dim = len(batch.obs), batch.actions.shape[-1]
    e_step = (rows, config.action_samples, act_dim)
    if isinstance(batch, Batch):
        return e_step, (0, *e_step[1:]) if config.shared_critic_pass else e_step
    return e_step, (rows, batch.obs.shape[1], config.retrace_mc_actions, act_dim)


def named_metrics(metrics: Mapping[str, Tensor]) -> dict[str, float]:
    """Return the metrics of an MPO update as numbers; those of each action dimension get its index as a suffix."""
    numbers: dict[str, float] = {}
    for name, value in metrics.items():
        if value.dim():
            numbers |= {f"{name}_{j}": number for j, number in enumerate(value.tolist())}
        else:
            numbers[name] = value.item()
    return numbers
