"""V-MPO's update: E-step and M-steps, as pure functions of a state and a batch."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from minerva.acceleration.applied import Acceleration, accelerate, is_finite, overwrite
from minerva.acceleration.flat import FlatModule
from minerva.acceleration.learnable import Learnable, Optimizer, minimize
from minerva.networks.actor_critic import ActorCritic
from minerva.networks.duals import MINIMUM, Duals
from minerva.networks.heads import ActionHead, DistParams, GaussianHead
from minerva.objectives import lagrange, vmpo
from minerva.objectives.critic import explained_variance, value_loss
from minerva.objectives.weighted import effective_sample_size, weighted_mean, weighted_sum, weighted_variance
from minerva.storage.rollout import RolloutBuffer
from minerva.trainers.health import warn_about_skipped
from minerva.trainers.on_policy import estimate_advantages
from minerva.trainers.vmpo.batch import Batch, batch_is_finite, kept_samples, mask_restarts
from minerva.trainers.vmpo.config import VMPOConfig
from minerva.utils.modes import mode, restore_unless, training_parts
from minerva.utils.ranks import ALONE, Ranks


class WeightedBatch(NamedTuple):
    """The result of V-MPO's E-step for the M-step: a batch with weights."""

    obs: Tensor  # [B, O]
    samples: Tensor  # [B, A], before the tanh
    log_volume: Tensor  # [B], the squashing's part of the density, which no parameter changes
    old: DistParams  # [B, ·] each
    returns: Tensor  # [B]
    counted: Tensor  # [B], 1 for rows whose restarting weight is above 0
    kept: Tensor  # [B], 1 for rows that the E-step keeps
    psi: Tensor  # [B], weights ψ, summing to 1 over the rollout; in one of M minibatches Mψ
    recurrent_state: Tensor  # [N, S]
    episode_starts: Tensor  # [T, N]


class TrainState(NamedTuple):
    """Everything that a V-MPO update changes, besides buffers of a user's own encoder (BatchNorm)."""

    policy: Learnable  # policy and critic
    alphas: Learnable  # [D], the multipliers of the KL bounds
    temperature: Learnable  # [1]


class Optimizers(NamedTuple):
    """The optimizers of V-MPO: of policy and critic, multipliers and temperature."""

    policy: Optimizer[ActorCritic]
    alphas: Optimizer[Duals]
    temperature: Optimizer[Duals]


class Bound(NamedTuple):
    """A bound on one of V-MPO's D KL divergences, and the names that belong to it."""

    epsilon: float
    multiplier: str  # name of the Lagrange multiplier
    kl_metric: str  # of the divergence in the last M-step, before it; with "_sel" over the kept samples
    penalty_metric: str
    alpha_metric: str
    ratio_metric: str  # the divergence over the kept samples, as a multiple of the bound


def kl_bounds(head: ActionHead, config: VMPOConfig) -> tuple[Bound, ...]:
    """Return the KL bounds of V-MPO's M-step: of mean and standard deviation, or of a discrete policy as a whole."""
    if isinstance(head, GaussianHead):
        mean = ("kl/mean", "loss/policy_kl_mean_pen", "vmpo/alpha_mu", "health/kl_mean_ratio")
        std = ("kl/std", "loss/policy_kl_std_pen", "vmpo/alpha_sigma", "health/kl_std_ratio")
        return Bound(config.epsilon_mu, "mu", *mean), Bound(config.epsilon_sigma, "sigma", *std)
    return (Bound(config.epsilon_mu, "policy", "kl/policy", "loss/policy_kl_pen", "vmpo/alpha", "health/kl_ratio"),)


class MStepLosses(NamedTuple):
    """The losses of an M-step of V-MPO: scalars, or one entry per divergence."""

    total: Tensor
    nll: Tensor
    noise: Tensor  # 0 without the control variate
    penalties: Tensor  # [D]
    value: Tensor
    alpha: Tensor  # L_α, with the multipliers from before their step
    kept_kls: Tensor  # [D]
    kls: Tensor  # [D]


# E-step


def temperature_loss(
    duals: Duals, advantages: Tensor, restarting_weights: Tensor, importance_weights: Tensor, config: VMPOConfig
) -> tuple[Tensor, tuple[Tensor, vmpo.Selection, Tensor]]:
    """Compute the loss of V-MPO's temperature, L_η; also the samples that are kept, and their weights, ``[B]``."""
    (eta,) = duals()
    scaled = vmpo.scale_advantages(advantages, restarting_weights, eta)
    selection = vmpo.select_top(scaled, restarting_weights, config.topk_fraction)
    result = vmpo.e_step(scaled, selection.weights, importance_weights, eta, config.epsilon_eta)
    return result.temperature_loss, (result.temperature_loss, selection, result.weights)


def e_step(
    optimizers: Optimizers, config: VMPOConfig, state: TrainState, batch: Batch
) -> tuple[TrainState, WeightedBatch, dict[str, Tensor]]:
    """Compute V-MPO's E-step: weigh the samples with the temperature as it is, and then take one step on it."""
    w, advantages = batch.restarting_weights, batch.advantages
    counted = (w > 0).to(w.dtype)
    if config.normalize_advantages:
        advantages = vmpo.normalize_advantages(advantages, counted)
    temperature, (loss, selection, psi) = minimize(
        temperature_loss, state.temperature, optimizers.temperature, advantages, w, batch.importance_weights, config
    )
    kept = (selection.weights > 0).to(w.dtype)
    samples, log_volume = optimizers.policy.module.module.head.unsquash(batch.actions)
    weighted = WeightedBatch(
        batch.obs, samples, log_volume, batch.old, batch.returns, counted, kept, psi, batch.recurrent_state,
        batch.episode_starts,
    )  # fmt: skip
    with optimizers.temperature.module.at(temperature.parameters) as duals:
        (eta,) = duals()
    metrics = {
        "vmpo/dual_loss": loss,
        "vmpo/epsilon_eta": torch.full_like(loss, config.epsilon_eta),
        "vmpo/temperature_raw": eta,
        # LaTeX: \frac{\sqrt{\mathrm{Var}[\hat{A}]}}{\eta}
        "vmpo/adv_std_over_temperature": weighted_variance(advantages, counted).sqrt() / eta,
        "vmpo/selected_frac": kept.sum() / counted.sum().clamp(min=1),
        "vmpo/threshold": selection.threshold,
        "vmpo/ess": effective_sample_size(psi),
        "vmpo/restarting_frac": 1 - counted.mean(),
        "vmpo/importance_mean": weighted_mean(batch.importance_weights, counted),
        "adv/raw_mean": weighted_mean(batch.advantages, counted),
        "adv/raw_std": weighted_variance(batch.advantages, counted).sqrt(),
        "returns/raw_mean": weighted_mean(batch.returns, counted),
        "returns/raw_std": weighted_variance(batch.returns, counted).sqrt(),
    }
    return state._replace(temperature=temperature), weighted, metrics


# M-step


def m_step(
    optimizers: Optimizers,
    config: VMPOConfig,
    state: TrainState,
    batch: WeightedBatch,
    lr_scale: Tensor,
    ranks: Ranks = ALONE,
) -> tuple[TrainState, MStepLosses]:
    """Compute V-MPO's M-step on a minibatch: a step on the multipliers, then with these one on policy and critic.

    `lr_scale` ``[1]`` multiplies the learning rates of policy and critic. With several processes, the minibatch is this
    one's part of theirs (see `shared_weights`), and the losses are its part of their sum.
    """
    mean = weighted_mean if ranks.count == 1 else weighted_sum
    bounds = kl_bounds(optimizers.policy.module.module.head, config)

    def loss(policy: ActorCritic) -> tuple[Tensor, tuple[MStepLosses, Learnable]]:
        head = policy.head
        params, value = evaluate(policy, batch.obs, batch.recurrent_state, batch.episode_starts)
        raw_log_probs = head.sample_log_prob(params, batch.samples)  # [B]
        # LaTeX[Haarnoja2018, app. C]: \log \pi(a_t|s_t) = \log \pi(u_t|s_t) - \log \left| \frac{\partial a_t}{\partial u_t} \right|
        log_probs = raw_log_probs - batch.log_volume  # [B]
        nll = vmpo.weighted_nll(log_probs, batch.psi)
        noise = torch.zeros_like(nll)
        if config.control_variate:
            cross_entropy = head.cross_entropy(params, batch.old)  # [B]
            noises = vmpo.sampling_noise(raw_log_probs, cross_entropy, head.exactness(batch.old))  # [B]
            # LaTeX: L_n = \mathbb{E}[n_t]
            noise = mean(noises, batch.counted)
        divergences = head.divergences(params, batch.old)  # [B] each
        # LaTeX: D_k = \mathbb{E}[D_{k,t} \mid \bar{w}_t > 0]
        kept_kls = torch.stack([mean(divergence, batch.kept) for divergence in divergences])  # [D]
        # Within the loss: the multipliers need the divergences of this forward pass, the penalty the new multipliers.
        alphas, alpha = minimize(alpha_loss, state.alphas, optimizers.alphas, ranks.total(kept_kls.detach()), bounds)
        with optimizers.alphas.module.at(alphas.parameters) as duals:
            penalties = lagrange.kl_penalty(torch.stack(duals()), kept_kls)  # [D]
        # LaTeX[Song2020, eq. 6]: L_V = \mathbb{E}\left[ \tfrac12 (V - R)^2 \right]
        critic_loss = mean(value_loss(value, batch.returns), batch.counted)
        # LaTeX: L = L_{\mathrm{NLL}} - L_n + \sum_k \alpha_k D_k + L_V
        total = nll - noise + penalties.sum() + critic_loss
        kls = torch.stack([mean(divergence, batch.counted) for divergence in divergences])
        return total, (MStepLosses(total, nll, noise, penalties, critic_loss, alpha, kept_kls, kls), alphas)

    policy, (losses, alphas) = minimize(loss, state.policy, optimizers.policy.scaled(lr_scale))
    return state._replace(policy=policy, alphas=alphas), losses


def alpha_loss(duals: Duals, kls: Tensor, bounds: tuple[Bound, ...]) -> tuple[Tensor, Tensor]:
    """Compute the loss of V-MPO's multipliers: each grows where its bound is broken."""
    parts = zip(duals(), kls.unbind(), bounds, strict=True)
    # LaTeX[Song2020, eq. 5]: L_\alpha = \sum_k \alpha_k (\epsilon_k - D_k)
    loss = torch.stack([lagrange.alpha_loss(alpha, kl, bound.epsilon) for alpha, kl, bound in parts]).sum()
    return loss, loss


def evaluate(policy: ActorCritic, obs: Tensor, state: Tensor, episode_starts: Tensor) -> tuple[DistParams, Tensor]:
    """Evaluate policy and critic on rows ``[B, O]``: distributions of actions, ``[B, ·]`` each, and values ``[B]``."""
    if not policy.state_dim:
        params, value, _ = policy.forward_sequence(obs, state, episode_starts)
        return params, value
    params, value, _ = policy.forward_sequence(obs.view(*episode_starts.shape, -1), state, episode_starts)
    return tuple(part.flatten(0, 1) for part in params), value.flatten()


_ROWS = ("obs", "samples", "log_volume", "returns", "counted", "kept", "psi")


def minibatches(
    batch: WeightedBatch, order: Tensor | None, count: int, real: Tensor, ranks: Ranks = ALONE
) -> Iterator[WeightedBatch]:
    """Split a batch into minibatches; those without a real row are left out.

    Args:
        batch: The whole batch; with several processes, this one's part of it.
        order: Order of its rows, ``[B]`` on the CPU; None for one minibatch, the batch itself.
        count: M, the minibatches.
        real: Which rows count, ``[B]`` on the CPU, so that nothing waits for a GPU. Without any, none is left out.
        ranks: The processes: each contributes as many of its rows to every minibatch.
    """
    if order is None:
        yield batch
        return
    # LaTeX: \psi^{(m)}_t = M \psi_t
    psi = count * batch.psi
    whole = batch._replace(psi=psi)
    has_real = torch.stack([part.any() for part in real[order].chunk(count)])
    left_out = (ranks.total(has_real.float()) == 0).tolist()
    for chosen, skip in zip(order.to(psi.device).chunk(count), left_out, strict=True):
        if skip and not all(left_out):
            continue
        rows = {name: getattr(whole, name)[chosen] for name in _ROWS}
        yield whole._replace(**rows, old=tuple(part[chosen] for part in batch.old))


def shared_weights(batch: WeightedBatch, ranks: Ranks) -> WeightedBatch:
    """Divide the weights of this process's part of a minibatch by the rows that count in all parts."""
    if ranks.count == 1:
        return batch
    counted, kept = ranks.total(torch.stack([batch.counted.sum(), batch.kept.sum()])).clamp(min=1)
    return batch._replace(counted=batch.counted / counted, kept=batch.kept / kept)


def final_metrics(
    optimizers: Optimizers,
    config: VMPOConfig,
    old: Tensor,
    state: TrainState,
    batch: WeightedBatch,
    losses: MStepLosses,
    ranks: Ranks = ALONE,
) -> dict[str, Tensor]:
    """Compute what is logged of a V-MPO update: the last M-step's losses, and policy and critic after it.

    `old` are the parameters of policy and critic before the update.
    """
    if ranks.count > 1:  # each process has its part of all but the multipliers' loss
        losses = MStepLosses(*map(ranks.total, losses))._replace(alpha=losses.alpha)
    metrics = {
        "loss/total": losses.total,
        "loss/value": losses.value,
        "loss/policy": losses.nll - losses.noise + losses.penalties.sum(),
        "loss/policy_weighted_nll": losses.nll,
        "loss/policy_noise": losses.noise,
        "loss/alpha": losses.alpha,
    }
    with optimizers.alphas.module.at(state.alphas.parameters) as duals:
        alphas = duals()
    with optimizers.policy.module.at(state.policy.parameters) as policy:
        params, value = evaluate(policy, batch.obs, batch.recurrent_state, batch.episode_starts)
    returns, counted, kept = map(ranks.whole, (batch.returns, batch.counted, batch.kept))
    entropy, value = map(ranks.whole, (policy.head.entropy(params), value))
    per_bound = (losses.penalties, losses.kls, losses.kept_kls, alphas)
    for bound, penalty, kl, kept_kl, alpha in zip(kl_bounds(policy.head, config), *per_bound, strict=True):
        metrics |= {
            bound.penalty_metric: penalty,
            bound.kl_metric: kl,
            f"{bound.kl_metric}_sel": kept_kl,
            bound.alpha_metric: alpha,
            bound.ratio_metric: kept_kl / bound.epsilon,
        }
    if isinstance(policy.head, GaussianHead):
        sizes = ranks.whole(policy.head.mode(params).abs().mean(-1))
        metrics["train/mean_abs_action"] = weighted_mean(sizes, counted)
    parameters = torch.cat([state.alphas.parameters, state.temperature.parameters])
    return metrics | {
        "train/entropy": weighted_mean(entropy, kept),
        "train/param_delta": (state.policy.parameters - old).norm(),
        "value/explained_var": explained_variance(returns, value, counted),
        "value/pred_mean": weighted_mean(value, counted),
        "value/pred_std": weighted_variance(value, counted).sqrt(),
        "health/dual_saturation": (parameters <= MINIMUM).to(parameters.dtype).mean(),
    }


class Updater:
    """Learn from rollouts with V-MPO; it holds what an update changes, and how updates run.

    Args:
        policy: Policy and critic, on their device; changed in place.
        alphas: The multipliers of the KL bounds.
        temperature: The temperature.
        config: V-MPO's hyperparameters.
    """

    def __init__(self, policy: ActorCritic, alphas: Duals, temperature: Duals, config: VMPOConfig) -> None:
        self._config = config
        self._ranks = ALONE
        self._training_parts = training_parts(policy)
        self._buffers = policy.encoder_buffers()
        modules = FlatModule(policy), FlatModule(alphas), FlatModule(temperature)
        rates = modules[0].fill_by_prefix({"policy_": config.policy_lr, "value_": config.value_lr})
        kind, momentum = config.optimizer_type, config.sgd_momentum
        self.optimizers = Optimizers(
            Optimizer(modules[0], rates, config.max_grad_norm, kind, momentum),
            Optimizer(modules[1], config.alpha_lr, None, kind, momentum, minimum=MINIMUM),
            Optimizer(modules[2], config.temperature_lr, None, kind, momentum, minimum=MINIMUM),
        )
        self.state = TrainState(*(Learnable.start(module.vector) for module in modules))
        self.skipped = 0
        self.warn: Callable[[str], None] | None = None  # what tells the user of it; `warnings.warn` by default
        self.set_acceleration(Acceleration())

    def set_ranks(self, ranks: Ranks) -> None:
        """Learn together with other processes: each has the rollouts of its own environments."""
        self._ranks = ranks
        # The duals are not summed: every process computes the same of the whole batch.
        self.optimizers = self.optimizers._replace(policy=replace(self.optimizers.policy, total=ranks.total))
        self.set_acceleration(Acceleration())

    def set_acceleration(self, acceleration: Acceleration) -> None:
        """Run updates this way from now on; only the M-step is compiled, because an update may take many of them."""

        def prepared(function: Callable[..., Any], chosen: Acceleration, **settings: Any) -> Callable[..., Any]:
            return accelerate(partial(function, self.optimizers, self._config, **settings), chosen)

        self._e_step = prepared(e_step, acceleration._replace(compiled=False))
        self._m_step = prepared(m_step, acceleration, ranks=self._ranks)
        self._final_metrics = prepared(final_metrics, acceleration._replace(compiled=False), ranks=self._ranks)

    @torch.no_grad()
    def update(
        self,
        state: TrainState,
        batch: Batch,
        orders: list[Tensor | None],
        lr_scale: Tensor,
        rollout: RolloutBuffer | None = None,
    ) -> tuple[TrainState, dict[str, Tensor]]:
        """Compute an update; the state that is given stays as it was.

        Args:
            state: What was learned so far.
            batch: The rollout, after `mask_restarts`.
            orders: For each of the `m_steps` passes the order of rows in minibatches, on the CPU; None for one
                minibatch.
            lr_scale: Multiplies the learning rates of policy and critic, ``[1]``.
            rollout: What the batch was made of; needed with `recompute_advantages`.
        """
        new, weighted, metrics = self._weigh(state, batch)
        real = (batch.restarting_weights > 0).cpu() if self._config.minibatches > 1 else batch.restarting_weights
        for m, order in enumerate(orders):
            if m > 0 and self._config.recompute_advantages:
                batch = self._recompute_advantages(batch, rollout, new)
                new, weighted, metrics = self._weigh(new, batch)
            with mode(self._training_parts, training=True):
                for minibatch in minibatches(weighted, order, self._config.minibatches, real, self._ranks):
                    new, losses = self._m_step(new, shared_weights(minibatch, self._ranks), lr_scale)
        return new, metrics | self._final_metrics(state.policy.parameters, new, weighted, losses)

    def _weigh(self, state: TrainState, batch: Batch) -> tuple[TrainState, WeightedBatch, dict[str, Tensor]]:
        """Take the E-step, in every process over the samples of all: it takes no more than a few numbers of each."""
        whole, own = self._ranks.whole, self._ranks.own
        of_all = batch._replace(
            returns=whole(batch.returns),
            advantages=whole(batch.advantages),
            restarting_weights=whole(batch.restarting_weights),
            importance_weights=whole(batch.importance_weights),
        )
        weighted: WeightedBatch
        new, weighted, metrics = self._e_step(state, of_all)
        weighted = weighted._replace(
            returns=batch.returns, counted=own(weighted.counted), kept=own(weighted.kept), psi=own(weighted.psi)
        )
        return new, weighted, metrics

    def learn(
        self,
        batch: Batch,
        lr_scale: float = 1.0,
        generator: torch.Generator | None = None,
        rollout: RolloutBuffer | None = None,
    ) -> dict[str, float] | None:
        """Make an update in place; return its metrics, or None where a number was not finite and it was skipped.

        Args:
            batch: The rollout.
            lr_scale: Multiplies the learning rates of policy and critic.
            generator: Shuffles the minibatches, where there are several (a CPU generator; None for torch's own).
            rollout: What the batch was made of; needed with `recompute_advantages`.

        Raises:
            ValueError: `topk_fraction` keeps no sample, or the rollout is missing.
        """
        config = self._config
        if config.recompute_advantages and rollout is None:
            raise ValueError("recompute_advantages: needs the rollout that a batch was made of; got none.")
        batch = mask_restarts(batch, self.optimizers.policy.module.module.mask_dim)
        counted = (batch.restarting_weights > 0).sum()
        unusable, count = self._ranks.total(
            torch.stack([(~batch_is_finite(batch)).to(counted.dtype), counted])
        ).tolist()
        if unusable:
            self._skip()
            return None
        if config.topk_fraction < 1 and kept_samples(count, config) == 0:
            raise ValueError(
                f"topk_fraction: must keep at least one of the {count} samples that do not cross into a new episode, "
                f"got {config.topk_fraction}; choose a larger one, or longer rollouts."
            )
        device = batch.obs.device
        orders: list[Tensor | None] = [
            torch.randperm(len(batch.obs), generator=generator) if config.minibatches > 1 else None
            for _ in range(config.m_steps)
        ]
        before = [buffer.clone() for buffer in self._buffers]
        new, metrics = self.update(self.state, batch, orders, torch.full((1,), lr_scale, device=device), rollout)
        finite = is_finite(new)
        restore_unless(finite, self._buffers, before)
        values = torch.stack([finite.to(batch.returns.dtype), *metrics.values()])
        applied, *numbers = values.tolist()
        if not applied:
            self._skip()
            return None
        overwrite(self.state, new)
        return dict(zip(metrics, numbers, strict=True))

    def _skip(self) -> None:
        self.skipped += 1
        warn_about_skipped(self.skipped, warn=self.warn)

    def _recompute_advantages(self, batch: Batch, rollout: RolloutBuffer | None, state: TrainState) -> Batch:
        """Estimate advantages and returns with the critic as it is now."""
        assert rollout is not None
        with self.optimizers.policy.module.at(state.policy.parameters) as policy:
            values = policy.get_value(rollout.obs).squeeze(-1)
        advantages, returns = estimate_advantages(rollout, values, self._config)
        again = batch._replace(advantages=advantages.flatten(), returns=returns.flatten())
        return mask_restarts(again, self.optimizers.policy.module.module.mask_dim)
