"""PPO's update: advantages of a rollout, and gradient steps on minibatches of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from minerva.acceleration.applied import Acceleration, AppliedUpdate
from minerva.acceleration.flat import FlatModule
from minerva.acceleration.learnable import Learnable, Optimizer, minimize
from minerva.networks.actor_critic import ActorCritic
from minerva.objectives import ppo
from minerva.objectives.critic import explained_variance, value_loss
from minerva.objectives.weighted import weighted_mean, weighted_sum
from minerva.storage.rollout import RolloutBuffer
from minerva.trainers.on_policy import estimate_advantages
from minerva.trainers.ppo.config import PPOConfig
from minerva.utils.modes import mode, restore_unless, training_parts
from minerva.utils.ranks import ALONE, Ranks


class Batch(NamedTuple):
    """A rollout, or a minibatch of it, as PPO's update takes it.

    A rollout has B = T·N rows, time-major. For a recurrent policy it stays whole sequences: all but
    `recurrent_state` are ``[T, N, ...]`` in place of ``[B, ...]``.
    """

    obs: Tensor  # [B, O]
    actions: Tensor  # [B, A]
    log_probs: Tensor  # [B]
    values: Tensor  # [B]
    advantages: Tensor  # [B]
    returns: Tensor  # [B]
    weights: Tensor  # [B], 0 for a restarting step, else 1
    episode_starts: Tensor  # [B], 1 where an episode begins
    recurrent_state: Tensor  # [N, S], before the first step; of a policy that is not recurrent [B, 0]


class TrainState(NamedTuple):
    """Everything that a PPO update changes, besides buffers of a user's own encoder (BatchNorm)."""

    policy: Learnable  # policy and critic


class Coefficients(NamedTuple):
    """PPO's settings that may change from update to update, each a scalar."""

    clip_ratio: Tensor
    clip_ratio_vf: Tensor
    ent_coef: Tensor
    learning_rate: Tensor


class MinibatchLosses(NamedTuple):
    """PPO's loss on a minibatch and what is logged of it, each a scalar."""

    total: Tensor
    policy: Tensor
    value: Tensor
    entropy: Tensor
    old_approx_kl: Tensor
    approx_kl: Tensor
    square_kl: Tensor
    clipfrac: Tensor


class UpdateResult(NamedTuple):
    """The result of a PPO update, all steps on a rollout; its dictionaries are empty if every row was restarting."""

    metrics: dict[str, float]
    means: dict[str, float]  # the fields of `MinibatchLosses`, over minibatches not skipped; over all if every one was
    gradient_steps: int
    skipped: int  # minibatches whose loss or gradient was not finite: they changed nothing
    batch: Batch  # the rollout, with the advantages of the first epoch


def minibatch_losses(
    policy: ActorCritic,
    batch: Batch,
    config: PPOConfig,
    coefficients: Coefficients,
    mean: Callable[[Tensor, Tensor], Tensor] = weighted_mean,
) -> tuple[Tensor, MinibatchLosses]:
    """Compute PPO's loss on a minibatch (Schulman et al. 2017, eq. 9, negated), and what is logged of it.

    With `weighted_sum` as the mean, on one of the `shared_minibatches`, all is this process's part of a sum.
    """
    w, head = batch.weights, policy.head
    params, values, _ = policy.forward_sequence(batch.obs, batch.recurrent_state, batch.episode_starts)
    # LaTeX: \log \rho = \log \pi(a|s) - \log \pi_{\mathrm{old}}(a|s)
    log_ratio = head.log_prob(params, batch.actions) - batch.log_probs
    advantages = batch.advantages
    if config.norm_adv:
        advantages = ppo.normalize_advantages(advantages, w, config.unbiased_std)
    # LaTeX[Schulman2017, eq. 7]: L_{\mathrm{pg}} = \mathbb{E}[\ell_{\mathrm{pg}}]
    policy_loss = mean(ppo.clipped_policy_loss(log_ratio, advantages, coefficients.clip_ratio), w)
    if config.clip_vloss:
        value_losses = ppo.clipped_value_loss(values, batch.values, batch.returns, coefficients.clip_ratio_vf)
    else:
        value_losses = value_loss(values, batch.returns)
    # LaTeX: L_V = \mathbb{E}[\ell_V]
    critic_loss = mean(value_losses, w)
    # LaTeX: H = \mathbb{E}[H(\pi(\cdot|s))]
    entropy = mean(head.entropy(params), w)
    # LaTeX[Schulman2017, eq. 9]: L = L_{\mathrm{pg}} - c_H H + c_V L_V
    total = policy_loss - coefficients.ent_coef * entropy + config.vf_coef * critic_loss
    with torch.no_grad():
        # LaTeX[Schulman2020, k1]: \mathbb{E}[-\log \rho]
        old_approx_kl = mean(-log_ratio, w)
        # LaTeX[Schulman2020, k3]: \mathbb{E}[\rho - 1 - \log \rho]
        approx_kl = mean(ppo.kl_estimate(log_ratio), w)
        # LaTeX[Schulman2020, k2]: \mathbb{E}\left[ \tfrac12 (\log \rho)^2 \right]
        square_kl = mean(0.5 * log_ratio**2, w)
        # LaTeX: \mathbb{E}\left[ \mathbb{1}[\,|\rho - 1| > \epsilon\,] \right]
        clipfrac = mean(ppo.is_clipped(log_ratio, coefficients.clip_ratio), w)
    parts = (total, policy_loss, critic_loss, entropy, old_approx_kl, approx_kl, square_kl, clipfrac)
    return total, MinibatchLosses(*parts)


class Updater:
    """Learn from rollouts with PPO; it holds what an update changes, and how updates run.

    Args:
        policy: Policy and critic, on their device; changed in place.
        config: PPO's hyperparameters.
    """

    def __init__(self, policy: ActorCritic, config: PPOConfig) -> None:
        self._policy = policy
        self._training_parts = training_parts(policy)
        self._buffers = policy.encoder_buffers()
        self._config = config
        self._ranks = ALONE
        self._module = FlatModule(policy)
        self.state = TrainState(Learnable.start(self._module.vector))
        self.skipped = 0
        self.set_acceleration(Acceleration())

    def set_ranks(self, ranks: Ranks) -> None:
        """Learn together with other processes: each has the rollouts of its own environments."""
        self._ranks = ranks
        self.set_acceleration(Acceleration())

    def set_acceleration(self, acceleration: Acceleration) -> None:
        """Run updates this way from now on."""
        config, self._acceleration = self._config, acceleration
        self._optimizer = Optimizer(
            self._module,
            1.0,  # `gradient_step` multiplies it by the scheduled learning rate
            config.max_grad_norm,
            config.optimizer_type,
            config.sgd_momentum,
            in_place=not any(acceleration),
            total=self._ranks.total if self._ranks.count > 1 else None,
        )
        self._step = AppliedUpdate(self.gradient_step, self.state, acceleration)

    def gradient_step(
        self, state: TrainState, minibatch: Batch, coefficients: Coefficients
    ) -> tuple[TrainState, MinibatchLosses]:
        """Compute one gradient step on a minibatch: a pure function, but the plain path overwrites the state."""
        optimizer = self._optimizer.scaled(coefficients.learning_rate)
        config, losses_of = self._config, minibatch_losses
        if self._ranks.count > 1:  # `shared_minibatches` has normalized advantages and weights over all processes
            config, losses_of = replace(config, norm_adv=False), partial(minibatch_losses, mean=weighted_sum)
        policy, losses = minimize(
            losses_of, state.policy, optimizer, minibatch, config=config, coefficients=coefficients
        )
        return TrainState(policy), losses

    def learn(self, rollout: RolloutBuffer, remaining: float, generator: torch.Generator) -> UpdateResult:
        """Improve policy and critic on a full rollout.

        Args:
            rollout: A full one.
            remaining: The share of training that remains, which scheduled settings follow.
            generator: Shuffles the minibatches (a CPU generator).
        """
        config, ranks = self._config, self._ranks
        real = (rollout.restarting == 0).cpu()  # [T, N]
        rollout = rollout.on(self._policy.device)
        batch = first_batch = make_batch(self._policy, rollout, config)
        if not ranks.total(real.any().float()):
            return UpdateResult({}, {}, 0, 0, first_batch)
        variance = explained_variance(*map(ranks.whole, (batch.returns, batch.values, batch.weights)))
        coefficients = coefficients_at(remaining, config, batch.values)
        fixed_shapes = any(self._acceleration)
        applied_steps, losses = [], []
        for epoch in range(config.update_epochs):
            if config.recompute_advantages and epoch > 0:
                batch = batch._replace(**recompute_advantages(self._policy, rollout, config))
            with mode(self._training_parts, training=True):
                for minibatch in self._minibatches(batch, generator, real):
                    padded = pad_minibatch(minibatch, config) if fixed_shapes else minibatch
                    before = [buffer.clone() for buffer in self._buffers]
                    finite, step_losses = self._step(padded, coefficients)
                    restore_unless(finite, self._buffers, before)
                    losses.append(torch.stack(step_losses))
                    applied_steps.append(finite.clone())  # a CUDA graph reuses its output memory
            if config.target_kl and 0 < config.target_kl < MinibatchLosses(*ranks.total(losses[-1])).approx_kl.item():
                break
        applied = torch.stack(applied_steps).cpu()  # [minibatches]
        gradient_steps = int(applied.sum())
        self.skipped += len(losses) - gradient_steps
        table = ranks.total(torch.stack(losses)).cpu()  # [minibatches, losses]
        if gradient_steps > 0:  # the numbers of a skipped minibatch are not finite
            table = table[applied]
        last, means = (
            dict(zip(MinibatchLosses._fields, row.tolist(), strict=True)) for row in (table[-1], table.mean(0))
        )
        metrics = {
            "losses/value_loss": last["value"],
            "losses/policy_loss": last["policy"],
            "losses/entropy": last["entropy"],
            "losses/old_approx_kl": last["old_approx_kl"],
            "losses/approx_kl": last["approx_kl"],
            "losses/clipfrac": means["clipfrac"],
            "losses/explained_variance": variance.item(),
        }
        return UpdateResult(metrics, means, gradient_steps, len(losses) - gradient_steps, first_batch)

    def _minibatches(self, batch: Batch, generator: torch.Generator, real: Tensor) -> Iterator[Batch]:
        if self._ranks.count > 1:
            return shared_minibatches(batch, self._config, generator, self._ranks)
        return minibatches(batch, self._config, generator, real)


@torch.no_grad()
def make_batch(policy: ActorCritic, rollout: RolloutBuffer, config: PPOConfig) -> Batch:
    """Build PPO's batch: evaluate a full rollout with the policy and critic that collected it, in one pass."""
    params, values, _ = policy.forward_sequence(
        rollout.obs, rollout.first_recurrent_state, rollout.episode_starts
    )  # [T+1, N, ·]
    params = tuple(part[:-1] if part.dim() == 3 else part for part in params)  # a state-independent log-std is [1, A]
    log_probs = policy.head.log_prob(params, rollout.actions)  # [T, N]
    advantages, returns = estimate_advantages(rollout, values, config)
    weights, starts = 1 - rollout.restarting, rollout.episode_starts[:-1]
    parts = (rollout.obs[:-1], rollout.actions, log_probs, values[:-1], advantages, returns, weights, starts)
    if policy.state_dim:
        return Batch(*(*parts, rollout.first_recurrent_state))
    no_state = torch.zeros(weights.numel(), 0, device=weights.device)
    return Batch(*(*(part.flatten(0, 1) for part in parts), no_state))


@torch.no_grad()
def recompute_advantages(policy: ActorCritic, rollout: RolloutBuffer, config: PPOConfig) -> dict[str, Tensor]:
    """Estimate a rollout's advantages and returns with the critic as it is now, in the batch's shape."""
    values = policy.forward_sequence(rollout.obs, rollout.first_recurrent_state, rollout.episode_starts).value
    estimates = estimate_advantages(rollout, values, config)
    return {name: part if policy.state_dim else part.flatten() for name, part in estimates._asdict().items()}


def coefficients_at(remaining: float, config: PPOConfig, like: Tensor) -> Coefficients:
    """Evaluate PPO's scheduled settings at this point of training, as tensors on the device of `like`."""
    numbers = (
        config.clip_ratio_at(remaining),
        config.clip_ratio_vf_at(remaining),
        config.ent_coef_at(remaining),
        config.policy_lr_at(remaining),
    )
    return Coefficients(*torch.tensor(numbers, device=like.device, dtype=like.dtype).unbind())


def minibatches(batch: Batch, config: PPOConfig, generator: torch.Generator, real: Tensor) -> Iterator[Batch]:
    """Shuffle a batch and split it into minibatches: of rows, or for a recurrent policy of whole environments.

    A minibatch of restarting rows alone is left out: there is nothing to learn from it.

    Args:
        batch: The rollout.
        config: PPO's hyperparameters.
        generator: Shuffles (a CPU generator).
        real: Which rows are not restarting, ``[T, N]`` on the CPU, so that nothing waits for a GPU.
    """
    recurrent = batch.weights.dim() == 2
    real = real.any(0) if recurrent else real.flatten()
    size = config.minibatch_size // len(batch.weights) if recurrent else config.minibatch_size
    shuffled = torch.randperm(len(real), generator=generator)
    is_real = real[shuffled].tolist()
    for i, minibatch in enumerate(_split(batch, shuffled.to(batch.obs.device), size)):
        if any(is_real[i * size : (i + 1) * size]):
            yield minibatch


def _split(batch: Batch, order: Tensor, size: int) -> Iterator[Batch]:
    """Split a batch in this order into minibatches: of `size` rows, or for a recurrent policy environments."""
    if batch.weights.dim() == 2:
        return (
            Batch(*(*(part[:, chosen] for part in batch[:-1]), batch.recurrent_state[chosen]))
            for chosen in torch.split(order, size)
        )
    return (Batch(*parts) for parts in zip(*(torch.split(part[order], size) for part in batch), strict=True))


def shared_minibatches(batch: Batch, config: PPOConfig, generator: torch.Generator, ranks: Ranks) -> Iterator[Batch]:
    """Yield this process's part of minibatches to which every process contributes as many of its rows.

    What all rows of a minibatch decide together is computed here, on the few numbers that it takes: which minibatches
    are left out, the normalized advantages, and the weights, which sum to 1 over all processes.

    Args:
        batch: This process's rollout.
        config: PPO's hyperparameters.
        generator: Shuffles the rows of this process (a CPU generator).
        ranks: The processes.
    """
    recurrent = batch.weights.dim() == 2
    rows = config.minibatch_size // ranks.count
    size = rows // len(batch.weights) if recurrent else rows
    order = torch.randperm(batch.weights.shape[-1], generator=generator).to(batch.obs.device)
    of_all = torch.stack(ranks.gather(torch.stack([batch.weights, batch.advantages])[..., order]))  # [G, 2, (T,) B]
    for minibatch, (w, advantages) in zip(
        _split(batch, order, size), (part.unbind(1) for part in torch.split(of_all, size, dim=-1)), strict=True
    ):
        if not w.any():
            continue
        if config.norm_adv:
            advantages = ppo.normalize_advantages(advantages, w, config.unbiased_std)
        yield minibatch._replace(weights=minibatch.weights / w.sum(), advantages=advantages[ranks.rank])


def pad_minibatch(minibatch: Batch, config: PPOConfig) -> Batch:
    """Pad a short minibatch, with copies of its first row that have no weight, to the one shape of compiled steps."""
    missing = config.minibatch_size - len(minibatch.obs)
    if missing == 0:
        return minibatch
    longer = Batch(*(torch.cat([part, part[:1].expand(missing, *part.shape[1:])]) for part in minibatch))
    longer.weights[-missing:] = 0
    return longer
