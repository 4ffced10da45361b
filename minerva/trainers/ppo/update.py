"""PPO's update: a rollout, its advantages, and gradient steps on minibatches of it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from minerva.objectives import ppo
from minerva.objectives.returns import (
    Advantages,
    bootstrapped_returns,
    explained_variance,
    generalized_advantage_estimation,
    value_loss,
)
from minerva.objectives.weighted import weighted_mean
from minerva.storage.rollout import RolloutBuffer
from minerva.trainers.gradient_step import FlatStep, GradientStep, PlainStep
from minerva.trainers.ppo.agent import Agent, can_be_captured
from minerva.trainers.ppo.config import PPOConfig


class Batch(NamedTuple):
    """A rollout as the update sees it.

    Without a memory it is flattened to B = T·N rows. With one it stays whole sequences: in place of ``[B, ...]``, all
    but `state` is ``[T, N, ...]``.
    """

    obs: Tensor  # [B, O]
    actions: Tensor  # [B, A]
    log_probs: Tensor  # [B]
    values: Tensor  # [B]
    advantages: Tensor  # [B]
    returns: Tensor  # [B]
    weights: Tensor  # [B], 0 for a restarting step, else 1
    starts: Tensor  # [B], 1 where an episode begins
    state: Tensor  # [N, S], of the memory before the first step; without a memory [B, 0]


class Coefficients(NamedTuple):
    """The settings that may change from update to update, each a scalar."""

    clip_ratio: Tensor
    clip_ratio_vf: Tensor
    ent_coef: Tensor


class MinibatchLosses(NamedTuple):
    """One minibatch's loss and what is logged of it, each a scalar."""

    total: Tensor
    policy: Tensor
    value: Tensor
    entropy: Tensor
    old_approx_kl: Tensor
    approx_kl: Tensor
    square_kl: Tensor
    clipfrac: Tensor


def make_optimizer(agent: Agent, config: PPOConfig) -> torch.optim.Optimizer:
    """Make the optimizer that the config names."""
    if config.optimizer_type == "adam":
        return torch.optim.Adam(agent.parameters(), lr=config.policy_lr_at(1.0), eps=1e-5, fused=True)
    return torch.optim.SGD(agent.parameters(), lr=config.policy_lr_at(1.0), momentum=config.sgd_momentum)


def estimate_advantages(rollout: RolloutBuffer, values: Tensor, config: PPOConfig) -> Advantages:
    """Estimate advantages and returns of a rollout with the estimator that the config names (values: ``[T+1, N]``)."""
    episode = (rollout.rewards, values, rollout.terminated, rollout.truncated)
    if config.advantage_estimator == "gae":
        return generalized_advantage_estimation(*episode, config.gamma, config.gae_lambda)
    return bootstrapped_returns(*episode, config.gamma)


@torch.no_grad()
def make_batch(agent: Agent, rollout: RolloutBuffer, config: PPOConfig) -> Batch:
    """Score a full rollout with the policy and critic that collected it, in one pass."""
    parameters, values = agent.describe(rollout.obs, rollout.first_state, rollout.starts)  # [T+1, N, ·]
    parameters = tuple(part[:-1] if part.dim() == 3 else part for part in parameters)  # a deviation is for all alike
    log_probs, _ = agent.score(parameters, rollout.actions)  # [T, N]
    advantages, returns = estimate_advantages(rollout, values, config)
    weights, starts = 1 - rollout.restarting, rollout.starts[:-1]
    parts = (rollout.obs[:-1], rollout.actions, log_probs, values[:-1], advantages, returns, weights, starts)
    if agent.state_dim:
        return Batch(*(*parts, rollout.first_state))
    nothing = torch.zeros(weights.numel(), 0, device=weights.device)
    return Batch(*(*(part.flatten(0, 1) for part in parts), nothing))


def coefficients_at(remaining: float, config: PPOConfig, like: Tensor) -> Coefficients:
    """Give the settings where that share of training remains, as tensors like another."""
    numbers = (config.clip_ratio_at(remaining), config.clip_ratio_vf_at(remaining), config.ent_coef_at(remaining))
    return Coefficients(*torch.tensor(numbers, device=like.device, dtype=like.dtype).unbind())


def minibatch_losses(
    agent: Agent, batch: Batch, config: PPOConfig, coefficients: Coefficients | None = None
) -> MinibatchLosses:
    """PPO's loss on a minibatch (Schulman et al. 2017, eq. 9, negated); by default as at a run's start."""
    w = batch.weights
    coefficients = coefficients or coefficients_at(1.0, config, batch.values)
    parameters, values = agent.describe(batch.obs, batch.state, batch.starts)
    log_probs, entropy = agent.score(parameters, batch.actions)
    # LaTeX: \log \rho = \log \pi(a|s) - \log \pi_{\mathrm{old}}(a|s)
    log_ratio = log_probs - batch.log_probs
    advantages = batch.advantages
    if config.norm_adv:
        advantages = ppo.normalize_advantages(advantages, w, config.unbiased_std)
    # LaTeX[Schulman2017, eq. 7]: L_{\mathrm{pg}} = \mathbb{E}[\ell_{\mathrm{pg}}]
    policy_loss = weighted_mean(ppo.clipped_policy_loss(log_ratio, advantages, coefficients.clip_ratio), w)
    if config.clip_vloss:
        value_losses = ppo.clipped_value_loss(values, batch.values, batch.returns, coefficients.clip_ratio_vf)
    else:
        value_losses = value_loss(values, batch.returns)
    # LaTeX: L_V = \mathbb{E}[\ell_V]
    critic_loss = weighted_mean(value_losses, w)
    # LaTeX: H = \mathbb{E}[H(\pi(\cdot|s))]
    mean_entropy = weighted_mean(entropy, w)
    # LaTeX[Schulman2017, eq. 9]: L = L_{\mathrm{pg}} - c_H H + c_V L_V
    total = policy_loss - coefficients.ent_coef * mean_entropy + config.vf_coef * critic_loss
    with torch.no_grad():
        # LaTeX[Schulman2020, k1]: \mathbb{E}[-\log \rho]
        old_approx_kl = weighted_mean(-log_ratio, w)
        # LaTeX[Schulman2020, k3]: \mathbb{E}[\rho - 1 - \log \rho]
        approx_kl = weighted_mean(ppo.kl_estimate(log_ratio), w)
        # LaTeX[Schulman2020, k2]: \mathbb{E}\left[ \tfrac12 (\log \rho)^2 \right]
        square_kl = weighted_mean(0.5 * log_ratio**2, w)
        # LaTeX: \mathbb{E}\left[ \mathbb{1}[\,|\rho - 1| > \epsilon\,] \right]
        clipfrac = weighted_mean(ppo.is_clipped(log_ratio, coefficients.clip_ratio), w)
    return MinibatchLosses(total, policy_loss, critic_loss, mean_entropy, old_approx_kl, approx_kl, square_kl, clipfrac)


class UpdateResult(NamedTuple):
    """What an update did."""

    metrics: dict[str, float]
    means: dict[str, float]  # the fields of `MinibatchLosses`, over all minibatches
    gradient_steps: int
    skipped: int  # minibatches whose loss or gradient was not finite: they changed nothing
    batch: Batch  # what was learned from


def make_gradient_step(
    agent: Agent, optimizer: torch.optim.Optimizer, config: PPOConfig, compiled: bool = False
) -> GradientStep:
    """Make the step that an update takes for each minibatch; on a GPU it is captured as a graph where it can be."""
    names = len(Batch._fields)

    def loss(module: Agent, minibatch: tuple[Tensor, ...]) -> MinibatchLosses:
        return minibatch_losses(module, Batch(*minibatch[:names]), config, Coefficients(*minibatch[names:]))

    max_grad_norm = float("inf") if config.max_grad_norm is None else config.max_grad_norm
    captured = agent.device.type == "cuda" and can_be_captured(agent)
    if (compiled or captured) and isinstance(optimizer, torch.optim.Adam):
        return FlatStep(agent, optimizer, loss, max_grad_norm, compiled, captured)
    return PlainStep(agent, optimizer, loss, max_grad_norm)


def minibatches(batch: Batch, config: PPOConfig, generator: torch.Generator) -> Iterator[Batch]:
    """Shuffle a batch and cut it up: rows, or whole environments where there is a memory.

    Args:
        batch: As `make_batch` gives it.
        config: PPO's hyperparameters.
        generator: A CPU generator.
    """
    recurrent = batch.weights.dim() == 2
    count = len(batch.state) if recurrent else len(batch.weights)
    size = config.minibatch_size // len(batch.weights) if recurrent else config.minibatch_size
    order = torch.randperm(count, generator=generator).to(batch.obs.device)
    if recurrent:
        for start in range(0, count, size):
            chosen = order[start : start + size]
            yield Batch(*(*(part[:, chosen] for part in batch[:-1]), batch.state[chosen]))
        return
    for parts in zip(*(torch.split(part[order], size) for part in batch), strict=True):
        yield Batch(*parts)


def update(
    agent: Agent,
    gradient_step: GradientStep,
    rollout: RolloutBuffer,
    config: PPOConfig,
    generator: torch.Generator,
    remaining: float = 1.0,
) -> UpdateResult:
    """Improve policy and critic on a full rollout.

    Args:
        agent: Changed in place.
        gradient_step: Made by `make_gradient_step` for this agent; its optimizer's learning rate is set.
        rollout: A full one.
        config: PPO's hyperparameters.
        generator: Shuffles the minibatches (a CPU generator).
        remaining: The share of training that remains, which scheduled settings follow.
    """
    rollout = rollout.on(agent.device)
    batch = whole = make_batch(agent, rollout, config)
    variance = explained_variance(batch.returns, batch.values, batch.weights)
    coefficients = coefficients_at(remaining, config, batch.values)
    taken = []
    gradient_step.begin()
    for epoch in range(config.update_epochs):
        if config.recompute_advantages and epoch > 0:
            gradient_step.end()  # the critic is asked
            batch = batch._replace(**recomputed(agent, rollout, config))
        for minibatch in minibatches(batch, config, generator):
            filled = filled_up(minibatch, config) if gradient_step.static_shapes else minibatch
            taken.append(gradient_step((*filled, *coefficients)))
        newest = MinibatchLosses(*taken[-1].losses)
        if config.target_kl and 0 < config.target_kl < newest.approx_kl.item():
            break
    gradient_step.end()
    gradient_steps = int(torch.stack([one.applied for one in taken]).sum())
    table = torch.stack([one.losses for one in taken]).cpu()  # [minibatches, losses]
    last, means = (dict(zip(MinibatchLosses._fields, row.tolist(), strict=True)) for row in (table[-1], table.mean(0)))
    metrics = {
        "losses/value_loss": last["value"],
        "losses/policy_loss": last["policy"],
        "losses/entropy": last["entropy"],
        "losses/old_approx_kl": last["old_approx_kl"],
        "losses/approx_kl": last["approx_kl"],
        "losses/clipfrac": means["clipfrac"],
        "losses/explained_variance": variance.item(),
    }
    return UpdateResult(metrics, means, gradient_steps, len(taken) - gradient_steps, whole)


def filled_up(minibatch: Batch, config: PPOConfig) -> Batch:
    """Fill a short minibatch up with copies of its first row, which have no weight."""
    missing = config.minibatch_size - len(minibatch.obs)
    if missing == 0:
        return minibatch
    longer = Batch(*(torch.cat([part, part[:1].expand(missing, *part.shape[1:])]) for part in minibatch))
    longer.weights[-missing:] = 0
    return longer


@torch.no_grad()
def recomputed(agent: Agent, rollout: RolloutBuffer, config: PPOConfig) -> dict[str, Tensor]:
    """Estimate a rollout's advantages and returns with the critic as it is now, in the batch's shape."""
    _, values = agent.describe(rollout.obs, rollout.first_state, rollout.starts)
    estimates = estimate_advantages(rollout, values, config)
    return {name: part if agent.state_dim else part.flatten() for name, part in estimates._asdict().items()}
