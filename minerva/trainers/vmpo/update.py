"""V-MPO's update: E-step and M-step, for whatever kind of actions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.func import grad_and_value

from minerva.networks.duals import MINIMUM, DualVariable, floored, inverse_softplus
from minerva.networks.heads import Parameters
from minerva.objectives import lagrange, vmpo
from minerva.objectives.returns import explained_variance, value_loss
from minerva.objectives.weighted import effective_sample_size, weighted_mean, weighted_variance
from minerva.trainers.accelerate import Captured, Compiled
from minerva.trainers.flat import FlatModule, FlatOptimizer
from minerva.trainers.vmpo.actor_critic import ActorCritic
from minerva.trainers.vmpo.config import VMPOConfig
from minerva.trainers.vmpo.kinds import ActionKind

# What an update works with


class Multipliers(nn.ModuleDict):
    """The Lagrange multipliers of the M-step's bounds; all start at 1.

    Args:
        names: One for each bound.
    """

    def __init__(self, names: Iterable[str]) -> None:
        super().__init__({name: DualVariable(inverse_softplus(1.0)) for name in names})

    def forward(self) -> tuple[Tensor, ...]:
        """Give the multipliers, scalars."""
        return tuple(multiplier() for multiplier in self.values())


class _PolicyAndValue(nn.Module):
    """The policy as a function of rows that gives all it knows of them."""

    def __init__(self, policy: ActorCritic) -> None:
        super().__init__()
        self.policy = policy

    def forward(self, obs: Tensor, state: Tensor, starts: Tensor) -> tuple[Parameters, Tensor]:
        """Give the parameters of the distributions of actions, ``[B, ·]`` each, and values ``[B]``."""
        if not self.policy.state_dim:
            *rows, value = self.policy.forward_all(obs)
            return tuple(rows), value.squeeze(-1)
        parameters, value, _ = self.policy.look(obs.view(*starts.shape, -1), state, starts)
        return tuple(part.flatten(0, 1) for part in parameters), value.flatten()


class Experience(NamedTuple):
    """A rollout as an update takes it, flattened to B rows, step by step."""

    obs: Tensor  # [B, O], as the policy saw them
    actions: Tensor  # [B, A], on the scale of the environment
    old: Parameters  # [B, ·] each, of the policy that acted
    returns: Tensor  # [B]
    advantages: Tensor  # [B]
    restarting_weights: Tensor  # [B], 0 for a step that crosses into a new episode, else 1
    importance_weights: Tensor  # [B]
    state: Tensor  # [N, S], of the memory before the first step; without a memory [0]
    starts: Tensor  # [T, N], 1 where an episode begins; without a memory [0]

    def without_void(self, mask_dim: int) -> Experience:
        """Put 0 for all that a row without weight holds; its action mask, of K entries, allows everything.

        Where all of them are without weight, all are used as they are.
        """
        w = self.restarting_weights
        void = ~((w > 0) | w.isnan()) & (w > 0).any()  # [B]

        def cleared(part: Tensor, value: float = 0.0) -> Tensor:
            return part.masked_fill(void if part.dim() == 1 else void.unsqueeze(-1), value)

        obs = cleared(self.obs)
        if mask_dim:  # else nothing were left to choose from
            obs = torch.cat([obs[:, :-mask_dim], cleared(self.obs[:, -mask_dim:], 1.0)], dim=-1)
        rest = ("actions", "returns", "advantages", "restarting_weights", "importance_weights")
        return self._replace(
            obs=obs, old=tuple(map(cleared, self.old)), **{name: cleared(getattr(self, name)) for name in rest}
        )

    def finite(self) -> Tensor:
        """Whether all of them are numbers; a logit of the policy that acted may be -∞, a probability of 0."""
        parts = [part.isfinite().all() for part in self if isinstance(part, Tensor)]
        return torch.stack([*parts, *((x < torch.inf).all() for x in self.old)]).all()


class Weighted(NamedTuple):
    """What the E-step makes of it for the M-step."""

    obs: Tensor  # [B, O]
    samples: Tensor  # [B, A], before the tanh
    log_volume: Tensor  # [B], the squashing's part of the density, which no parameter changes
    old: Parameters  # [B, ·] each
    returns: Tensor  # [B]
    counted: Tensor  # [B], 1 for rows with w > 0
    kept: Tensor  # [B], 1 for rows that the E-step keeps
    psi: Tensor  # [B]
    state: Tensor  # [N, S]
    starts: Tensor  # [T, N]

    def parts(self, count: int, generator: torch.Generator | None) -> Iterator[Weighted]:
        """Cut the rows up into minibatches, in an order that a CPU generator draws; one is all of them as they are.

        Each stands for the whole: its weights ψ are scaled up so that they add up to 1 on average.
        """
        if count == 1:
            yield self
            return
        order = torch.randperm(len(self.psi), generator=generator).to(self.psi.device)
        # LaTeX: \psi^{(m)}_t = M \psi_t
        psi = count * self.psi
        rows = self._replace(psi=psi)
        for chosen in order.chunk(count):
            old = tuple(part[chosen] for part in self.old)
            cut = {name: getattr(rows, name)[chosen] for name in _ROWS}
            yield rows._replace(old=old, **cut)


_ROWS = ("obs", "samples", "log_volume", "returns", "counted", "kept", "psi")


class Fitted(NamedTuple):
    """All that an M-step changes, as vectors."""

    policy: Tensor  # policy and critic
    policy_moments: Tensor
    alphas: Tensor  # [D]
    alphas_moments: Tensor
    steps: Tensor  # [1], float64: M-steps taken


class Tempered(NamedTuple):
    """All that an E-step changes."""

    temperature: Tensor  # [1]
    temperature_moments: Tensor
    updates: Tensor  # [1], float64: E-steps taken


class Learned(NamedTuple):
    """All that an update changes."""

    fitted: Fitted
    tempered: Tempered

    def tensors(self) -> dict[str, Tensor]:
        """Give them under their names."""
        return {**self.fitted._asdict(), **self.tempered._asdict()}


class EStepResult(NamedTuple):
    """What an E-step gives."""

    tempered: Tempered
    weighted: Weighted
    sound: Tensor  # [3]: whether all that it was given is finite, how many rows count, and how many of them to keep
    metrics: dict[str, Tensor]


class MStepLosses(NamedTuple):
    """What an M-step's forward pass gave, scalars or one entry for each of the D divergences."""

    total: Tensor
    nll: Tensor
    noise: Tensor  # 0 without the control variate
    penalties: Tensor  # [D]
    value: Tensor
    alpha: Tensor  # with the multipliers from before their step
    kept_kls: Tensor  # [D]
    kls: Tensor  # [D]
    norms: Tensor  # of the gradients before clipping, added up


class Steps(NamedTuple):
    """The steps of an update: those of `VMPOUpdate`, as they are or accelerated."""

    e_step: Callable[[Tempered, Experience], EStepResult]
    m_step: Callable[[Fitted, Weighted, Tensor], tuple[Fitted, MStepLosses]]
    close: Callable[[Tensor, Learned, Weighted, MStepLosses, Tensor], tuple[Tensor, dict[str, Tensor]]]

    def accelerated(self, compile_it: bool, capture_it: bool) -> Steps:
        """Compile the M-step, which is taken most often; capture each of them as a graph.

        What a captured step returns is overwritten when it is taken again.
        """
        steps = self._replace(m_step=Compiled(self.m_step)) if compile_it else self
        return Steps(*(Captured(step, ()) for step in steps)) if capture_it else steps


class VMPOUpdate:
    """E-step and M-step as functions of what was learned and a rollout: they change nothing and draw nothing.

    Args:
        policy: Policy and critic; their parameters are given anew with each call.
        alphas: The Lagrange multipliers, likewise.
        temperature: The temperature, likewise.
        kind: The maths of the actions.
        config: V-MPO's hyperparameters.
    """

    def __init__(
        self,
        policy: ActorCritic,
        alphas: Multipliers,
        temperature: DualVariable,
        kind: ActionKind,
        config: VMPOConfig,
    ) -> None:
        self._kind = kind
        self._policy = FlatModule(_PolicyAndValue(policy))
        self._alphas = FlatModule(alphas)
        self._temperature = FlatModule(temperature)
        self._config = config
        self._recurrent = policy.state_dim > 0
        self._mask_dim = policy.mask_dim
        optimizer, momentum, unclipped = config.optimizer_type, config.sgd_momentum, float("inf")
        rates = self._policy.expanded({"policy.policy_": config.policy_lr, "policy.value_": config.value_lr})
        self._policy_optimizer = FlatOptimizer(optimizer, rates, config.max_grad_norm, momentum)
        self._alpha_optimizer = FlatOptimizer(optimizer, config.alpha_lr, unclipped, momentum)
        self._temperature_optimizer = FlatOptimizer(optimizer, config.temperature_lr, unclipped, momentum)
        self.steps = Steps(self.e_step, self.m_step, self.close)

    def start(self) -> Learned:
        """Give what is learned before the first update; its vectors are the modules' own memory."""
        vectors = [module.vector for module in (self._policy, self._alphas, self._temperature)]
        policy_moments, alphas_moments, temperature_moments = map(FlatOptimizer.first_moments, vectors)
        none = torch.zeros(1, dtype=torch.float64, device=vectors[0].device)
        fitted = Fitted(vectors[0], policy_moments, vectors[1], alphas_moments, none)
        return Learned(fitted, Tempered(vectors[2], temperature_moments, none.clone()))

    def values(self, vector: Tensor, obs: Tensor) -> Tensor:
        """Value observations of any batch shape with the critic of `vector`; without a memory."""
        nothing = obs.new_zeros(0)
        values: Tensor = self._policy(vector, obs.flatten(0, -2), nothing, nothing)[1]
        return values.view(obs.shape[:-1])

    # E-step

    def e_step(self, old: Tempered, given: Experience) -> EStepResult:
        """Weigh the samples, and take one step on the temperature."""
        config, rows = self._config, given.without_void(self._mask_dim)
        w, advantages = rows.restarting_weights, rows.advantages
        counted = (w > 0).to(w.dtype)
        if config.normalize_advantages:
            advantages = vmpo.normalize_advantages(advantages, counted)
        gradient, (loss, (selection, psi)) = grad_and_value(self._temperature_loss, has_aux=True)(
            old.temperature, advantages, w, rows.importance_weights
        )
        stepped = self._temperature_optimizer(old.temperature, old.temperature_moments, gradient, old.updates)
        temperature = floored(stepped.vector)
        new = Tempered(temperature, stepped.moments, old.updates + 1)
        kept = (selection.weights > 0).to(w.dtype)
        samples, log_volume = self._kind.unsquash(rows.actions)
        weighted = Weighted(
            rows.obs, samples, log_volume, rows.old, rows.returns, counted, kept, psi, rows.state, rows.starts
        )
        eta = self._temperature(temperature)
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
            "vmpo/importance_mean": weighted_mean(rows.importance_weights, counted),
            "adv/raw_mean": weighted_mean(rows.advantages, counted),
            "adv/raw_std": weighted_variance(rows.advantages, counted).sqrt(),
            "returns/raw_mean": weighted_mean(rows.returns, counted),
            "returns/raw_std": weighted_variance(rows.returns, counted).sqrt(),
        }
        sound = torch.stack([rows.finite().to(w.dtype), counted.sum(), selection.k.to(w.dtype)])
        return EStepResult(new, weighted, sound, metrics)

    def _temperature_loss(
        self, vector: Tensor, advantages: Tensor, restarting_weights: Tensor, importance_weights: Tensor
    ) -> tuple[Tensor, tuple[vmpo.Selection, Tensor]]:
        """Give L_η; beside it what is kept, and the weights of the M-step."""
        eta = self._temperature(vector)
        scaled = vmpo.scale_advantages(advantages, restarting_weights, eta)
        selection = vmpo.select_top(scaled, restarting_weights, self._config.topk_fraction)
        result = vmpo.e_step(scaled, selection.weights, importance_weights, eta, self._config.epsilon_eta)
        return result.temperature_loss, (selection, result.weights)

    # M-step

    def m_step(self, old: Fitted, batch: Weighted, share: Tensor) -> tuple[Fitted, MStepLosses]:
        """Take one step on the multipliers, and with the new ones a step on policy and critic.

        Args:
            old: What was learned so far.
            batch: What the E-step made of the rollout.
            share: Of the learning rates of policy and critic, ``[1]``.
        """
        differentiate = grad_and_value_on_tape if self._recurrent else grad_and_value
        gradient, (_, (losses, alphas, alphas_moments)) = differentiate(self._loss, has_aux=True)(
            old.policy, old, batch
        )
        policy = self._policy_optimizer(old.policy, old.policy_moments, gradient, old.steps, share)
        new = Fitted(policy.vector, policy.moments, alphas, alphas_moments, old.steps + 1)
        return new, losses._replace(norms=losses.norms + policy.norm)

    def _loss(self, vector: Tensor, old: Fitted, batch: Weighted) -> tuple[Tensor, tuple[MStepLosses, Tensor, Tensor]]:
        """Give the loss of policy and critic; beside it its parts, and the multipliers that it was made with."""
        kind = self._kind
        parameters, value = self._policy(vector, batch.obs, batch.state, batch.starts)
        raw_log_probs = kind.log_prob(parameters, batch.samples)  # [B]
        # LaTeX[Haarnoja2018, app. C]: \log \pi(a_t|s_t) = \log \pi(u_t|s_t) - \log \left| \frac{\partial a_t}{\partial u_t} \right|
        log_probs = raw_log_probs - batch.log_volume  # [B]
        nll = vmpo.weighted_nll(log_probs, batch.psi)
        noise = torch.zeros_like(nll)
        if self._config.control_variate:
            cross_entropy = kind.cross_entropy(parameters, batch.old)  # [B]
            # LaTeX: L_n = \mathbb{E}[n_t]
            noise = weighted_mean(vmpo.sampling_noise(raw_log_probs, cross_entropy), batch.counted)
        divergences = kind.divergences(parameters, batch.old)  # [B] each
        # LaTeX: D_k = \mathbb{E}[D_{k,t} \mid \bar{w}_t > 0]
        kept_kls = [weighted_mean(divergence, batch.kept) for divergence in divergences]

        alpha_gradient, alpha_loss = grad_and_value(self._alpha_loss)(old.alphas, kept_kls)
        stepped = self._alpha_optimizer(old.alphas, old.alphas_moments, alpha_gradient, old.steps)
        alphas = floored(stepped.vector)

        penalties = [lagrange.kl_penalty(*pair) for pair in zip(self._alphas(alphas), kept_kls, strict=True)]
        # LaTeX[Song2020, eq. 6]: L_V = \mathbb{E}\left[ \tfrac12 (V - R)^2 \right]
        critic_loss = weighted_mean(value_loss(value, batch.returns), batch.counted)
        # LaTeX: L = L_{\mathrm{NLL}} - L_n + \sum_k \alpha_k D_k + L_V
        total = sum(penalties, nll - noise) + critic_loss
        losses = MStepLosses(
            total,
            nll,
            noise,
            torch.stack(penalties),
            critic_loss,
            alpha_loss,
            torch.stack(kept_kls),
            torch.stack([weighted_mean(divergence, batch.counted) for divergence in divergences]),
            stepped.norm,
        )
        aside = MStepLosses(*(part.detach() for part in losses))
        return total, (aside, alphas.detach(), stepped.moments.detach())

    def _alpha_loss(self, vector: Tensor, kls: list[Tensor]) -> Tensor:
        parts = zip(self._alphas(vector), kls, self._kind.bounds, strict=True)
        # LaTeX[Song2020, eq. 5]: L_\alpha = \sum_k \alpha_k (\epsilon_k - D_k)
        return torch.stack([lagrange.alpha_loss(alpha, kl, bound.epsilon) for alpha, kl, bound in parts]).sum()

    # What is logged

    def close(
        self, old: Tensor, new: Learned, batch: Weighted, losses: MStepLosses, numbers: Tensor
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Look at an update that was made.

        Args:
            old: Policy and critic before it.
            new: What is learned after it.
            batch: What the last E-step made of the rollout.
            losses: Of the last M-step.
            numbers: All losses on the way.

        Returns:
            Whether all numbers are finite, a scalar, and what is logged.
        """
        parts = (numbers, *new.tensors().values())
        finite = torch.stack([part.isfinite().all() for part in parts]).all()
        return finite, {**self._m_step_metrics(new.fitted, losses), **self._final_metrics(old, new, batch)}

    def _m_step_metrics(self, new: Fitted, losses: MStepLosses) -> dict[str, Tensor]:
        """Name the losses and divergences of the last M-step's forward pass, and the multipliers after it."""
        metrics = {
            "loss/total": losses.total,
            "loss/value": losses.value,
            "loss/policy": sum(losses.penalties, losses.nll - losses.noise),
            "loss/policy_weighted_nll": losses.nll,
            "loss/policy_noise": losses.noise,
            "loss/alpha": losses.alpha,
        }
        of_bounds = (losses.penalties, losses.kls, losses.kept_kls, self._alphas(new.alphas))
        for bound, penalty, kl, kept_kl, alpha in zip(self._kind.bounds, *of_bounds, strict=True):
            metrics |= {
                bound.penalty: penalty,
                bound.kl: kl,
                f"{bound.kl}_sel": kept_kl,
                bound.alpha: alpha,
                bound.ratio: kept_kl / bound.epsilon,
            }
        return metrics

    def _final_metrics(self, old: Tensor, new: Learned, batch: Weighted) -> dict[str, Tensor]:
        """Look at policy and critic after an update."""
        parameters, value = self._policy(new.fitted.policy, batch.obs, batch.state, batch.starts)
        duals = torch.cat([new.fitted.alphas, new.tempered.temperature])
        return {
            "train/entropy": weighted_mean(self._kind.entropy(parameters), batch.kept),
            "train/param_delta": (new.fitted.policy - old).norm(),
            **self._kind.metrics(parameters, batch.counted),
            "value/explained_var": explained_variance(batch.returns, value, batch.counted),
            "value/pred_mean": weighted_mean(value, batch.counted),
            "value/pred_std": weighted_variance(value, batch.counted).sqrt(),
            "health/dual_saturation": (duals <= MINIMUM).to(duals.dtype).mean(),
        }


def grad_and_value_on_tape(function: Callable[..., Any], has_aux: Literal[True]) -> Callable[..., Any]:
    """Do what torch's `grad_and_value` does for a function that gives something beside its value, by plain autograd.

    Under torch's function transforms an LSTM falls apart into operations on single steps, several times as slow.
    """

    def call(vector: Tensor, *arguments: Any) -> tuple[Tensor, tuple[Tensor, Any]]:
        with torch.enable_grad():
            leaf = vector.detach().requires_grad_()
            value, aside = function(leaf, *arguments)
            (gradient,) = torch.autograd.grad(value, leaf)
        return gradient, (value.detach(), aside)

    return call
