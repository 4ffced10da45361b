"""PPO's networks and its update."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from minerva.networks.mlp import tanh_mlp
from minerva.networks.numpy_mlp import NumpyMLP
from minerva.objectives import ppo
from minerva.objectives.gaussian import gaussian_entropy, gaussian_log_prob
from minerva.objectives.returns import (
    Advantages,
    bootstrapped_returns,
    explained_variance,
    generalized_advantage_estimation,
)
from minerva.objectives.weighted import weighted_mean
from minerva.storage.rollout import Rollout
from minerva.trainers.gradient_step import CompiledStep, GradientStep, PlainStep
from minerva.trainers.ppo.config import PPOConfig
from minerva.utils.running_norm import RunningNorm


class ActionAndValue(NamedTuple):
    """What the policy and the critic say of a batch of observations."""

    action: Tensor  # [B, A], not clipped
    log_prob: Tensor  # [B]
    entropy: Tensor  # [B]
    value: Tensor  # [B, 1]


class Agent(nn.Module):
    """A Gaussian policy and a critic: two tanh networks that share nothing but the observation normaliser.

    `get_value`, `get_deterministic_action` and `get_action_and_value` take raw observations. What the rollout stores is
    normalised already; `act`, `evaluate` and `values` take that.

    Args:
        obs_dim: O.
        act_dim: A.
        policy_layer_sizes: Units of the policy's hidden layers.
        value_layer_sizes: Units of the critic's hidden layers.
        normalize_obs: Whether raw observations are normalised.
        log_std_init: Where the logarithm of the standard deviation starts.
    """

    def __init__(
        self,
        obs_dim: int,
        act_dim: int,
        policy_layer_sizes: Sequence[int],
        value_layer_sizes: Sequence[int],
        normalize_obs: bool = True,
        log_std_init: float = 0.0,
    ) -> None:
        super().__init__()
        for name, sizes in (("policy_layer_sizes", policy_layer_sizes), ("value_layer_sizes", value_layer_sizes)):
            if not sizes:
                raise ValueError(f"{name}: must name at least one layer, such as (64, 64); got {sizes!r}.")
        self.obs_normalizer: RunningNorm | nn.Identity = RunningNorm(obs_dim) if normalize_obs else nn.Identity()
        self.actor_mean = tanh_mlp(obs_dim, policy_layer_sizes, act_dim, out_gain=0.01)
        self.actor_logstd = nn.Parameter(torch.full((1, act_dim), float(log_std_init)))
        self.critic = tanh_mlp(obs_dim, value_layer_sizes, 1, out_gain=1.0)

    def get_value(self, x: Tensor) -> Tensor:
        """Value raw observations ``[B, O]``: ``[B, 1]``."""
        value: Tensor = self.critic(self.obs_normalizer(x))
        return value

    def get_deterministic_action(self, x: Tensor) -> Tensor:
        """Give the mean action for raw observations ``[B, O]``: ``[B, A]``."""
        mean: Tensor = self.actor_mean(self.obs_normalizer(x))
        return mean

    def get_action_and_value(self, x: Tensor, action: Tensor | None = None) -> ActionAndValue:
        """Act in raw observations ``[B, O]``, or score the actions given."""
        obs = self.obs_normalizer(x)
        if action is None:
            action = self.act(obs)
        return ActionAndValue(action, *self.evaluate(obs, action), self.critic(obs))

    @torch.no_grad()
    def choose(self, x: Tensor, deterministic: bool, generator: torch.Generator | None = None) -> Tensor:
        """Give the mean action for raw observations ``[B, O]``, or a sampled one: ``[B, A]``."""
        return self.get_deterministic_action(x) if deterministic else self.act(self.obs_normalizer(x), generator)

    @torch.no_grad()
    def act(self, obs: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """Sample actions ``[B, A]`` for normalised observations ``[B, O]``."""
        mean: Tensor = self.actor_mean(obs)
        noise = torch.randn(mean.shape, generator=generator, device=mean.device)
        # LaTeX: a = \mu + \sigma \xi, \quad \xi \sim \mathcal{N}(0, I)
        return mean + self.actor_logstd.exp() * noise

    def evaluate(self, obs: Tensor, actions: Tensor) -> tuple[Tensor, Tensor]:
        """Score actions in normalised observations of any batch shape: log-probabilities and entropies, ``[...]``."""
        mean: Tensor = self.actor_mean(obs)
        log_prob = gaussian_log_prob(mean, self.actor_logstd, actions)
        return log_prob, gaussian_entropy(self.actor_logstd).expand(log_prob.shape)

    def values(self, obs: Tensor) -> Tensor:
        """Value normalised observations ``[..., O]``: ``[...]``."""
        value: Tensor = self.critic(obs)
        return value.squeeze(-1)


def make_actor(agent: Agent, generator: torch.Generator) -> Callable[[Tensor], Tensor]:
    """Make the function that acts while experience is collected: `Agent.act`, on a CPU run on NumPy.

    Args:
        agent: Its memory is shared, so the function acts with whatever an update or `load_state_dict` wrote there.
        generator: Draws the noise.
    """
    if agent.actor_logstd.device.type != "cpu":
        return lambda obs: agent.act(obs, generator)
    network, log_std = NumpyMLP(agent.actor_mean), agent.actor_logstd.detach().numpy()

    def act(obs: Tensor) -> Tensor:
        mean = network(obs.numpy())
        noise = torch.randn(mean.shape, generator=generator).numpy()
        # LaTeX: a = \mu + \sigma \xi, \quad \xi \sim \mathcal{N}(0, I)
        return torch.from_numpy(mean + np.exp(log_std) * noise)

    return act


class Batch(NamedTuple):
    """A rollout as the update sees it, flattened to B = T·N rows."""

    obs: Tensor  # [B, O]
    actions: Tensor  # [B, A]
    log_probs: Tensor  # [B]
    values: Tensor  # [B]
    advantages: Tensor  # [B]
    returns: Tensor  # [B]
    weights: Tensor  # [B], 0 for a restarting step, else 1


class MinibatchLosses(NamedTuple):
    """One minibatch's loss and what is logged of it, each a scalar."""

    total: Tensor
    policy: Tensor
    value: Tensor
    entropy: Tensor
    old_approx_kl: Tensor
    approx_kl: Tensor
    clipfrac: Tensor


def make_optimizer(agent: Agent, config: PPOConfig) -> torch.optim.Optimizer:
    """Make the optimiser that the config names."""
    if config.optimizer_type == "adam":
        return torch.optim.Adam(agent.parameters(), lr=config.policy_lr, eps=1e-5, fused=True)
    return torch.optim.SGD(agent.parameters(), lr=config.policy_lr, momentum=config.sgd_momentum)


def estimate_advantages(rollout: Rollout, values: Tensor, config: PPOConfig) -> Advantages:
    """Estimate advantages and returns of a rollout with the estimator that the config names (values: ``[T+1, N]``)."""
    episode = (rollout.rewards, values, rollout.terminated, rollout.truncated)
    if config.advantage_estimator == "gae":
        return generalized_advantage_estimation(*episode, config.gamma, config.gae_lambda)
    return bootstrapped_returns(*episode, config.gamma)


@torch.no_grad()
def make_batch(agent: Agent, rollout: Rollout, config: PPOConfig) -> Batch:
    """Score a full rollout with the policy and critic that collected it, in one pass each."""
    values = agent.values(rollout.obs)  # [T+1, N]
    log_probs, _ = agent.evaluate(rollout.obs[:-1], rollout.actions)  # [T, N]
    advantages, returns = estimate_advantages(rollout, values, config)
    parts = (rollout.obs[:-1], rollout.actions, log_probs, values[:-1], advantages, returns, 1 - rollout.restarting)
    return Batch(*(part.flatten(0, 1) for part in parts))


def minibatch_losses(agent: Agent, batch: Batch, config: PPOConfig) -> MinibatchLosses:
    """PPO's loss on a minibatch (Schulman et al. 2017, eq. 9, negated)."""
    w = batch.weights
    log_probs, entropy = agent.evaluate(batch.obs, batch.actions)
    values = agent.values(batch.obs)
    # LaTeX: \log \rho = \log \pi(a|s) - \log \pi_{\mathrm{old}}(a|s)
    log_ratio = log_probs - batch.log_probs
    advantages = ppo.normalize_advantages(batch.advantages, w) if config.norm_adv else batch.advantages
    # LaTeX[Schulman2017, eq. 7]: L_{\mathrm{pg}} = \mathbb{E}[\ell_{\mathrm{pg}}]
    policy_loss = weighted_mean(ppo.clipped_policy_loss(log_ratio, advantages, config.clip_ratio), w)
    if config.clip_vloss:
        value_losses = ppo.clipped_value_loss(values, batch.values, batch.returns, config.clip_ratio)
    else:
        value_losses = ppo.value_loss(values, batch.returns)
    # LaTeX: L_V = \mathbb{E}[\ell_V]
    value_loss = weighted_mean(value_losses, w)
    # LaTeX: H = \mathbb{E}[H(\pi(\cdot|s))]
    mean_entropy = weighted_mean(entropy, w)
    # LaTeX[Schulman2017, eq. 9]: L = L_{\mathrm{pg}} - c_H H + c_V L_V
    total = policy_loss - config.ent_coef * mean_entropy + config.vf_coef * value_loss
    with torch.no_grad():
        # LaTeX[Schulman2020, k1]: \mathbb{E}[-\log \rho]
        old_approx_kl = weighted_mean(-log_ratio, w)
        # LaTeX[Schulman2020, k3]: \mathbb{E}[\rho - 1 - \log \rho]
        approx_kl = weighted_mean(ppo.kl_estimate(log_ratio), w)
        # LaTeX: \mathbb{E}\left[ \mathbb{1}[\,|\rho - 1| > \epsilon\,] \right]
        clipfrac = weighted_mean(ppo.is_clipped(log_ratio, config.clip_ratio), w)
    return MinibatchLosses(total, policy_loss, value_loss, mean_entropy, old_approx_kl, approx_kl, clipfrac)


class UpdateResult(NamedTuple):
    """What an update did."""

    metrics: dict[str, float]
    gradient_steps: int
    skipped: int  # minibatches whose loss or gradient was not finite: they changed nothing


def make_gradient_step(
    agent: Agent, optimizer: torch.optim.Optimizer, config: PPOConfig, compiled: bool = False
) -> GradientStep:
    """Make the step that an update takes for each minibatch."""

    def loss(module: Agent, minibatch: tuple[Tensor, ...]) -> MinibatchLosses:
        return minibatch_losses(module, Batch(*minibatch), config)

    if compiled and isinstance(optimizer, torch.optim.Adam):
        return CompiledStep(agent, optimizer, loss, config.max_grad_norm)
    return PlainStep(agent, optimizer, loss, config.max_grad_norm)


def update(
    agent: Agent,
    gradient_step: GradientStep,
    rollout: Rollout,
    config: PPOConfig,
    generator: torch.Generator,
) -> UpdateResult:
    """Improve policy and critic on a full rollout.

    Args:
        agent: Changed in place.
        gradient_step: Made by `make_gradient_step` for this agent; its optimiser's learning rate is set.
        rollout: A full one.
        config: PPO's hyperparameters.
        generator: Shuffles the minibatches (a CPU generator).
    """
    batch = make_batch(agent, rollout, config)
    variance = explained_variance(batch.returns, batch.values, batch.weights)
    losses: MinibatchLosses | None = None
    applied: list[Tensor] = []
    clipfracs: list[Tensor] = []
    for epoch in range(config.update_epochs):
        if config.recompute_advantages and epoch > 0:
            batch = batch._replace(**recomputed(agent, rollout, config))
        order = torch.randperm(len(batch.obs), generator=generator).to(batch.obs.device)
        shuffled = [part[order] for part in batch]
        gradient_step.begin()
        for start in range(0, len(order), config.minibatch_size):
            minibatch = Batch(*(part[start : start + config.minibatch_size] for part in shuffled))
            taken = gradient_step(filled_up(minibatch, config) if gradient_step.static_shapes else minibatch)
            losses = MinibatchLosses(*taken.losses)
            applied.append(taken.applied)
            clipfracs.append(losses.clipfrac)
        gradient_step.end()
        if losses is not None and config.target_kl and 0 < config.target_kl < losses.approx_kl.item():
            break
    assert losses is not None
    gradient_steps = int(torch.stack(applied).sum())
    metrics = {
        "losses/value_loss": losses.value.item(),
        "losses/policy_loss": losses.policy.item(),
        "losses/entropy": losses.entropy.item(),
        "losses/old_approx_kl": losses.old_approx_kl.item(),
        "losses/approx_kl": losses.approx_kl.item(),
        "losses/clipfrac": torch.stack(clipfracs).mean().item(),
        "losses/explained_variance": variance.item(),
    }
    return UpdateResult(metrics, gradient_steps, len(applied) - gradient_steps)


def filled_up(minibatch: Batch, config: PPOConfig) -> Batch:
    """Fill a short minibatch up with copies of its first row, which have no weight."""
    missing = config.minibatch_size - len(minibatch.obs)
    if missing == 0:
        return minibatch
    longer = Batch(*(torch.cat([part, part[:1].expand(missing, *part.shape[1:])]) for part in minibatch))
    longer.weights[-missing:] = 0
    return longer


@torch.no_grad()
def recomputed(agent: Agent, rollout: Rollout, config: PPOConfig) -> dict[str, Tensor]:
    """Estimate a rollout's advantages and returns with the critic as it is now, flat."""
    estimates = estimate_advantages(rollout, agent.values(rollout.obs), config)
    return {name: part.flatten() for name, part in estimates._asdict().items()}
