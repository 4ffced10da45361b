"""V-MPO's agent and its update."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.func import grad_and_value

from minerva.networks.duals import MINIMUM, DualVariable, floored, inverse_softplus
from minerva.networks.numpy_mlp import NumpyMLP
from minerva.objectives import mpo, vmpo
from minerva.objectives.gaussian import gaussian_cross_entropy, gaussian_entropy, gaussian_log_prob
from minerva.objectives.kl import kl_of_means, kl_of_stds
from minerva.objectives.ppo import value_loss
from minerva.objectives.returns import (
    Advantages,
    bootstrapped_returns,
    explained_variance,
    generalized_advantage_estimation,
    temporal_difference,
)
from minerva.objectives.weighted import weighted_mean, weighted_variance
from minerva.storage.rollout import Rollout
from minerva.trainers.accelerate import compiled
from minerva.trainers.flat import FlatModule, FlatOptimizer
from minerva.trainers.health import warn_of_skipped
from minerva.trainers.vmpo.config import VMPOConfig
from minerva.trainers.vmpo.gaussian_mlp_policy import LOG_STD_RANGE, SquashedGaussianPolicy
from minerva.utils.running_norm import RunningNorm

# What an update works with


class Multipliers(nn.Module):
    """The Lagrange multipliers of the M-step's two bounds; both start at 1."""

    def __init__(self) -> None:
        super().__init__()
        self.mu = DualVariable(inverse_softplus(1.0))
        self.sigma = DualVariable(inverse_softplus(1.0))

    def forward(self) -> tuple[Tensor, Tensor]:
        """Give α_μ and α_σ."""
        return self.mu(), self.sigma()


class _PolicyAndValue(nn.Module):
    """The policy as a function of observations that gives all it knows of them."""

    def __init__(self, policy: SquashedGaussianPolicy) -> None:
        super().__init__()
        self.policy = policy

    def forward(self, obs: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return self.policy.forward_all(obs)


class Experience(NamedTuple):
    """A rollout as an update takes it, flattened to B rows; all that a row without weight held is 0."""

    obs: Tensor  # [B, O], as the policy saw them
    actions: Tensor  # [B, A], on the scale of the environment
    old_means: Tensor  # [B, A], of the policy that acted
    old_log_stds: Tensor  # [B, A]
    returns: Tensor  # [B]
    advantages: Tensor  # [B]
    restarting_weights: Tensor  # [B], 0 for a step that crosses into a new episode, else 1
    importance_weights: Tensor  # [B]


class Weighted(NamedTuple):
    """What the E-step makes of it for the M-step."""

    obs: Tensor  # [B, O]
    raw_actions: Tensor  # [B, A], before the tanh
    log_volume: Tensor  # [B], the squashing's part of the density, which no parameter changes
    old_means: Tensor  # [B, A]
    old_log_stds: Tensor  # [B, A]
    returns: Tensor  # [B]
    counted: Tensor  # [B], 1 for rows with w > 0
    kept: Tensor  # [B], 1 for rows that the E-step keeps
    psi: Tensor  # [B]


class Fitted(NamedTuple):
    """All that an M-step changes, as vectors."""

    policy: Tensor  # policy and critic
    policy_moments: Tensor
    alphas: Tensor  # [2]
    alphas_moments: Tensor
    steps: Tensor  # [1], float64: M-steps taken


class Learned(NamedTuple):
    """All that an update changes."""

    fitted: Fitted
    temperature: Tensor  # [1]
    temperature_moments: Tensor
    updates: Tensor  # [1], float64: updates made

    def tensors(self) -> dict[str, Tensor]:
        """Give them under their names."""
        return {**self.fitted._asdict(), **{name: x for name, x in self._asdict().items() if name != "fitted"}}


class MStepLosses(NamedTuple):
    """What an M-step's forward pass gave, each a scalar."""

    total: Tensor
    nll: Tensor
    noise: Tensor  # 0 without the control variate
    mean_penalty: Tensor
    std_penalty: Tensor
    value: Tensor
    alpha: Tensor  # with the multipliers from before their step
    kept_kl_mean: Tensor
    kept_kl_std: Tensor
    kl_mean: Tensor
    kl_std: Tensor
    norms: Tensor  # of the gradients before clipping, added up


class VMPOUpdate:
    """E-step and M-step as functions of what was learned and a rollout: they change nothing and draw nothing.

    Args:
        policy: Policy and critic; their parameters are given anew with each call.
        alphas: The Lagrange multipliers, likewise.
        temperature: The temperature, likewise.
        config: V-MPO's hyperparameters.
    """

    def __init__(
        self, policy: SquashedGaussianPolicy, alphas: Multipliers, temperature: DualVariable, config: VMPOConfig
    ) -> None:
        self._squash = policy
        self._policy = FlatModule(_PolicyAndValue(policy))
        self._alphas = FlatModule(alphas)
        self._temperature = FlatModule(temperature)
        self._config = config
        kind, momentum, unclipped = config.optimizer_type, config.sgd_momentum, float("inf")
        rates = self._policy.expanded({"policy.policy_": config.policy_lr, "policy.value_": config.value_lr})
        self._policy_optimizer = FlatOptimizer(kind, rates, config.max_grad_norm, momentum)
        self._alpha_optimizer = FlatOptimizer(kind, config.alpha_lr, unclipped, momentum)
        self._temperature_optimizer = FlatOptimizer(kind, config.temperature_lr, unclipped, momentum)

    def start(self) -> Learned:
        """Give what is learned before the first update; its vectors are the modules' own memory."""
        vectors = [module.vector for module in (self._policy, self._alphas, self._temperature)]
        policy_moments, alphas_moments, temperature_moments = map(FlatOptimizer.first_moments, vectors)
        none = torch.zeros(1, dtype=torch.float64, device=vectors[0].device)
        fitted = Fitted(vectors[0], policy_moments, vectors[1], alphas_moments, none)
        return Learned(fitted, vectors[2], temperature_moments, none.clone())

    # E-step

    def e_step(self, old: Learned, rows: Experience) -> tuple[Learned, Weighted, dict[str, Tensor]]:
        """Weigh the samples, and take one step on the temperature.

        Returns:
            What is learned then, what the M-step works on, and what is logged.
        """
        config, w = self._config, rows.restarting_weights
        counted = (w > 0).to(w.dtype)
        advantages = rows.advantages
        if config.normalize_advantages:
            advantages = vmpo.normalize_advantages(advantages, counted)
        gradient, (loss, (threshold, selected, psi)) = grad_and_value(self._temperature_loss, has_aux=True)(
            old.temperature, advantages, w, rows.importance_weights
        )
        stepped = self._temperature_optimizer(old.temperature, old.temperature_moments, gradient, old.updates)
        temperature = floored(stepped.vector)
        new = Learned(old.fitted, temperature, stepped.moments, old.updates + 1)
        kept = (selected > 0).to(w.dtype)
        raw_actions = self._squash.unsquash(rows.actions)
        weighted = Weighted(
            rows.obs,
            raw_actions,
            self._squash.log_volume(raw_actions),
            rows.old_means,
            rows.old_log_stds,
            rows.returns,
            counted,
            kept,
            psi,
        )
        eta = self._temperature(temperature)
        logged = {
            "vmpo/dual_loss": loss,
            "vmpo/epsilon_eta": torch.full_like(loss, config.epsilon_eta),
            "vmpo/temperature_raw": eta,
            # LaTeX: \frac{\sqrt{\mathrm{Var}[\hat{A}]}}{\eta}
            "vmpo/adv_std_over_temperature": weighted_variance(advantages, counted).sqrt() / eta,
            "vmpo/selected_frac": kept.sum() / counted.sum().clamp(min=1),
            "vmpo/threshold": threshold,
            "vmpo/ess": mpo.effective_sample_size(psi),
            "vmpo/restarting_frac": 1 - counted.mean(),
            "vmpo/importance_mean": weighted_mean(rows.importance_weights, counted),
            "adv/raw_mean": weighted_mean(rows.advantages, counted),
            "adv/raw_std": weighted_variance(rows.advantages, counted).sqrt(),
            "returns/raw_mean": weighted_mean(rows.returns, counted),
            "returns/raw_std": weighted_variance(rows.returns, counted).sqrt(),
        }
        return new, weighted, logged

    def _temperature_loss(
        self, vector: Tensor, advantages: Tensor, restarting_weights: Tensor, importance_weights: Tensor
    ) -> tuple[Tensor, tuple[Tensor, Tensor, Tensor]]:
        """Give L_η; beside it the threshold, the weights of the kept samples and those of the M-step."""
        eta = self._temperature(vector)
        scaled = vmpo.scale_advantages(advantages, restarting_weights, eta)
        selected = vmpo.select_top(scaled, restarting_weights, self._config.topk_fraction)
        result = vmpo.e_step(scaled, selected.weights, importance_weights, eta, self._config.epsilon_eta)
        return result.temperature_loss, (selected.threshold, selected.weights, result.weights)

    # M-step

    def m_step(self, old: Fitted, batch: Weighted, share: Tensor) -> tuple[Fitted, MStepLosses]:
        """Take one step on the multipliers, and with the new ones a step on policy and critic.

        Args:
            old: What was learned so far.
            batch: What the E-step made of the rollout.
            share: Of the learning rates of policy and critic, ``[1]``.
        """
        gradient, (_, (losses, alphas, alphas_moments)) = grad_and_value(self._loss, has_aux=True)(
            old.policy, old, batch
        )
        policy = self._policy_optimizer(old.policy, old.policy_moments, gradient, old.steps, share)
        new = Fitted(policy.vector, policy.moments, alphas, alphas_moments, old.steps + 1)
        return new, losses._replace(norms=losses.norms + policy.norm)

    def _loss(self, vector: Tensor, old: Fitted, batch: Weighted) -> tuple[Tensor, tuple[MStepLosses, Tensor, Tensor]]:
        """Give the loss of policy and critic; beside it its parts, and the multipliers that it was made with."""
        mean, log_std, value = self._policy(vector, batch.obs)
        raw_log_probs = gaussian_log_prob(mean, log_std, batch.raw_actions)  # [B]
        # LaTeX[Haarnoja2018, app. C]: \log \pi(a_t|s_t) = \log \mathcal{N}(u_t; \mu_t, \sigma_t) - \log \left| \frac{\partial a_t}{\partial u_t} \right|
        log_probs = raw_log_probs - batch.log_volume  # [B]
        nll = vmpo.weighted_nll(log_probs, batch.psi)
        noise = torch.zeros_like(nll)
        if self._config.control_variate:
            cross_entropy = gaussian_cross_entropy(mean, log_std, batch.old_means, batch.old_log_stds)  # [B]
            # LaTeX: L_n = \mathbb{E}[n_t]
            noise = weighted_mean(vmpo.sampling_noise(raw_log_probs, cross_entropy), batch.counted)
        # LaTeX[Song2020, app. C]: D_{\mu,t} = \sum_j D_{\mu,t,j}
        kl_mean = kl_of_means(mean, batch.old_means, batch.old_log_stds).sum(-1)  # [B]
        # LaTeX[Song2020, app. C]: D_{\sigma,t} = \sum_j D_{\sigma,t,j}
        kl_std = kl_of_stds(log_std, batch.old_log_stds).sum(-1)  # [B]
        # LaTeX: D_\mu = \mathbb{E}[D_{\mu,t} \mid \bar{w}_t > 0], \quad D_\sigma = \mathbb{E}[D_{\sigma,t} \mid \bar{w}_t > 0]
        kept_kl_mean, kept_kl_std = weighted_mean(kl_mean, batch.kept), weighted_mean(kl_std, batch.kept)

        alpha_gradient, alpha_loss = grad_and_value(self._alpha_loss)(old.alphas, kept_kl_mean, kept_kl_std)
        stepped = self._alpha_optimizer(old.alphas, old.alphas_moments, alpha_gradient, old.steps)
        alphas = floored(stepped.vector)

        alpha_mu, alpha_sigma = self._alphas(alphas)
        mean_penalty = mpo.kl_penalty(alpha_mu, kept_kl_mean)
        std_penalty = mpo.kl_penalty(alpha_sigma, kept_kl_std)
        # LaTeX[Song2020, eq. 6]: L_V = \mathbb{E}\left[ \tfrac12 (V - R)^2 \right]
        critic_loss = weighted_mean(value_loss(value.squeeze(-1), batch.returns), batch.counted)
        # LaTeX: L = L_{\mathrm{NLL}} - L_n + \alpha_\mu D_\mu + \alpha_\sigma D_\sigma + L_V
        total = nll - noise + mean_penalty + std_penalty + critic_loss
        losses = MStepLosses(
            total,
            nll,
            noise,
            mean_penalty,
            std_penalty,
            critic_loss,
            alpha_loss,
            kept_kl_mean,
            kept_kl_std,
            weighted_mean(kl_mean, batch.counted),
            weighted_mean(kl_std, batch.counted),
            stepped.norm,
        )
        aside = MStepLosses(*(part.detach() for part in losses))
        return total, (aside, alphas.detach(), stepped.moments.detach())

    def _alpha_loss(self, vector: Tensor, kl_mean: Tensor, kl_std: Tensor) -> Tensor:
        config = self._config
        alpha_mu, alpha_sigma = self._alphas(vector)
        # LaTeX[Song2020, eq. 5]: L_\alpha = \alpha_\mu (\epsilon_\mu - D_\mu) + \alpha_\sigma (\epsilon_\sigma - D_\sigma)
        return mpo.alpha_loss(alpha_mu, kl_mean, config.epsilon_mu) + mpo.alpha_loss(
            alpha_sigma, kl_std, config.epsilon_sigma
        )

    # What is logged

    def m_step_metrics(self, new: Fitted, losses: MStepLosses) -> dict[str, Tensor]:
        """Name the losses and divergences of the last M-step's forward pass, and the multipliers after it."""
        config = self._config
        alpha_mu, alpha_sigma = self._alphas(new.alphas)
        return {
            "loss/total": losses.total,
            "loss/value": losses.value,
            "loss/policy": losses.nll - losses.noise + losses.mean_penalty + losses.std_penalty,
            "loss/policy_weighted_nll": losses.nll,
            "loss/policy_noise": losses.noise,
            "loss/policy_kl_mean_pen": losses.mean_penalty,
            "loss/policy_kl_std_pen": losses.std_penalty,
            "loss/alpha": losses.alpha,
            "kl/mean": losses.kl_mean,
            "kl/std": losses.kl_std,
            "kl/mean_sel": losses.kept_kl_mean,
            "kl/std_sel": losses.kept_kl_std,
            "vmpo/alpha_mu": alpha_mu,
            "vmpo/alpha_sigma": alpha_sigma,
            "health/kl_mean_ratio": losses.kept_kl_mean / config.epsilon_mu,
            "health/kl_std_ratio": losses.kept_kl_std / config.epsilon_sigma,
        }

    def final_metrics(self, old: Learned, new: Learned, batch: Weighted) -> dict[str, Tensor]:
        """Look at policy and critic after an update."""
        mean, log_std, value = self._policy(new.fitted.policy, batch.obs)
        predicted = value.squeeze(-1)
        duals = torch.cat([new.fitted.alphas, new.temperature])
        return {
            "train/entropy": weighted_mean(gaussian_entropy(log_std), batch.kept),
            "train/param_delta": (new.fitted.policy - old.fitted.policy).norm(),
            "train/mean_abs_action": weighted_mean(self._squash.squash(mean).abs().mean(-1), batch.counted),
            "value/explained_var": explained_variance(batch.returns, predicted, batch.counted),
            "value/pred_mean": weighted_mean(predicted, batch.counted),
            "value/pred_std": weighted_variance(predicted, batch.counted).sqrt(),
            "health/dual_saturation": (duals <= MINIMUM).to(duals.dtype).mean(),
        }


class VMPOAgent(nn.Module):
    """A squashed Gaussian policy with a critic, the dual variables, and how they learn.

    All but `learn` take raw observations.

    Args:
        obs_dim: O.
        act_dim: A.
        action_low: Lower bounds of actions, ``[A]`` or a number.
        action_high: Upper bounds, likewise.
        device: Where everything is.
        config: V-MPO's hyperparameters; by default their defaults.
        **fields: Fields of `VMPOConfig`, on top of `config`.

    Attributes:
        policy: Policy and critic.
        obs_normalizer: Of raw observations; the identity where they are not normalised.
        skipped: Updates that were left out because a number was not finite.

    Raises:
        ValueError: A field breaks a rule, or a bound is infinite.
    """

    def __init__(
        self,
        obs_dim: int,
        act_dim: int,
        action_low: Any,
        action_high: Any,
        device: str | torch.device = "cpu",
        config: VMPOConfig | None = None,
        **fields: Any,
    ) -> None:
        super().__init__()
        self.config = config = VMPOConfig.from_fields(config, fields)
        self.device = torch.device(device)
        self.obs_normalizer: RunningNorm | nn.Identity = RunningNorm(obs_dim) if config.normalize_obs else nn.Identity()
        self.policy = SquashedGaussianPolicy(
            obs_dim,
            act_dim,
            config.policy_layer_sizes,
            config.value_layer_sizes,
            action_low,
            action_high,
            config.shared_encoder,
            config.ppo_like_backbone,
            config.log_std_init,
        )
        self.temperature = DualVariable(inverse_softplus(config.temperature_init))
        self.alphas = Multipliers()
        self.to(self.device)
        self.skipped = 0
        self._update = VMPOUpdate(self.policy, self.alphas, self.temperature, config)
        self._m_step = self._update.m_step
        self._learned = self._update.start()

    def use_compiled(self) -> None:
        """Compile the M-step from now on; a batch with another number of rows is compiled for anew."""
        if self._m_step == self._update.m_step:
            self._m_step = compiled(self._update.m_step)

    @property
    def log_temperature(self) -> nn.Parameter:
        """The temperature's parameter, before the softplus."""
        return self.temperature.parameter

    @property
    def log_alpha_mu(self) -> nn.Parameter:
        """The parameter of the mean's multiplier, before the softplus."""
        return self.alphas.mu.parameter

    @property
    def log_alpha_sigma(self) -> nn.Parameter:
        """The parameter of the standard deviation's multiplier, before the softplus."""
        return self.alphas.sigma.parameter

    # Acting

    @torch.no_grad()
    def act(
        self, obs: Any, deterministic: bool = False, generator: torch.Generator | None = None
    ) -> tuple[Any, Any, Any, Any]:
        """Act in raw observations ``[O]`` or ``[B, O]``; arrays give arrays, tensors tensors.

        Returns:
            The action on the scale of the environment, the value ``[..., 1]``, and mean and log-standard-deviation of
            the Gaussian before the tanh.
        """
        mean, log_std, value = self.policy.forward_all(self._prepared(obs))
        action, _ = self.policy.sample_action(mean, log_std, deterministic, generator)
        if isinstance(obs, Tensor):
            return action, value, mean, log_std
        return action.cpu().numpy(), value.cpu().numpy(), mean.cpu().numpy(), log_std.cpu().numpy()

    @torch.no_grad()
    def value(self, obs: Any) -> Any:
        """Value raw observations ``[O]`` or ``[B, O]``: ``[..., 1]``; arrays give arrays, tensors tensors."""
        value = self.policy.get_value(self._prepared(obs))
        return value if isinstance(obs, Tensor) else value.cpu().numpy()

    @torch.no_grad()
    def choose(self, x: Tensor, deterministic: bool, generator: torch.Generator | None = None) -> Tensor:
        """Give the mean's action for raw observations ``[B, O]``, or a sampled one: ``[B, A]``."""
        mean, log_std = self.policy(self.obs_normalizer(x))
        return self.policy.sample_action(mean, log_std, deterministic, generator)[0]

    def _prepared(self, obs: Any) -> Tensor:
        parameter = self.policy.policy_mean.weight
        x = torch.as_tensor(obs, dtype=parameter.dtype, device=parameter.device)
        normalised: Tensor = self.obs_normalizer(x)
        return normalised

    # Learning

    def update(self, batch: Mapping[str, Any]) -> dict[str, float] | None:
        """Improve policy and critic on a rollout of raw observations.

        Args:
            batch: Arrays or tensors: `obs, actions, old_means, old_log_stds` of ``[B, ·]``, `returns, advantages` of
                ``[B, 1]``, optionally `restarting_weights` (0 for a step that crosses into a new episode, else 1) and
                `importance_weights`. Actions are on the environment's scale.

        Returns:
            Metrics, or None where a number was not finite: then nothing has changed.

        Raises:
            ValueError: A part is missing or of another length, or `topk_fraction` keeps no sample.
        """
        if "obs" in batch and not isinstance(self.obs_normalizer, nn.Identity):
            obs = torch.as_tensor(batch["obs"])
            normalised = self._prepared(obs)
            # The normaliser would clip what is infinite, and such a batch is to be skipped.
            batch = {**batch, "obs": torch.where(obs.to(normalised.device).isfinite(), normalised, torch.nan)}
        return self.learn(batch)

    def learn(self, batch: Mapping[str, Any], learning_rate_share: float = 1.0) -> dict[str, float] | None:
        """Do what `update` does, with observations that are normalised already, as a rollout stores them.

        Args:
            batch: As for `update`.
            learning_rate_share: What is left of the learning rates of policy and critic, where they fall.
        """
        rows = self._to_rows(batch)
        if not all(part.isfinite().all() for part in rows):
            self._skip()
            return None
        old = self._learned
        share = torch.full((1,), learning_rate_share, device=self.device)
        with torch.no_grad():
            new, weighted, metrics = self._update.e_step(old, rows)
            numbers = [metrics["vmpo/dual_loss"]]
            for _ in range(self.config.m_steps):
                fitted, losses = self._m_step(new.fitted, weighted, share)
                new = new._replace(fitted=fitted)
                numbers += [losses.total, losses.alpha, losses.norms]
            if not all(part.isfinite().all() for part in (torch.stack(numbers), *new.tensors().values())):
                self._skip()
                return None
            metrics |= self._update.m_step_metrics(new.fitted, losses)
            metrics |= self._update.final_metrics(old, new, weighted)
            for name, tensor in new.tensors().items():
                old.tensors()[name].copy_(tensor)
            return dict(zip(metrics, torch.stack(list(metrics.values())).tolist(), strict=True))

    def _to_rows(self, batch: Mapping[str, Any]) -> Experience:
        optional = ("restarting_weights", "importance_weights")
        missing = [name for name in Experience._fields if name not in batch and name not in optional]
        if missing:
            raise ValueError(f"batch: must hold {', '.join(missing)} as well; got {', '.join(batch)}.")
        like = self.policy.policy_mean.weight
        count = len(batch["obs"])
        parts: dict[str, Tensor] = {}
        for name in Experience._fields:
            given = batch.get(name)
            part = torch.ones(count) if given is None else torch.as_tensor(given)
            if len(part) != count:
                raise ValueError(f"batch: {name} must have as many rows as obs, {count}; got {len(part)}.")
            part = part.detach().to(device=like.device, dtype=like.dtype)
            parts[name] = part if name in ("obs", "actions", "old_means", "old_log_stds") else part.reshape(count)
        w = parts["restarting_weights"]
        if (w > 0).any():  # where all of them restart, all are used
            void = ~((w > 0) | w.isnan())
            for name, part in parts.items():
                parts[name] = part.masked_fill(void if part.dim() == 1 else void.unsqueeze(-1), 0.0)
        return Experience(**parts)

    def _skip(self) -> None:
        self.skipped += 1
        warn_of_skipped(self.skipped)

    def optimizer_state(self) -> dict[str, Any]:
        """Give what the optimisers hold, and the counters; parameters are in `state_dict`."""
        own = {"policy", "alphas", "temperature"}
        tensors = {name: tensor.clone() for name, tensor in self._learned.tensors().items() if name not in own}
        return {**tensors, "skipped": self.skipped}

    def load_optimizer_state(self, state: Mapping[str, Any]) -> None:
        """Take it back."""
        self.skipped = state["skipped"]
        for name, tensor in self._learned.tensors().items():
            if name in state:
                tensor.copy_(state[name])


# Between rollout and agent


def make_actor(agent: VMPOAgent, generator: torch.Generator) -> Callable[[Tensor], Tensor]:
    """Make the function that acts while experience is collected, in normalised observations; on a CPU run on NumPy.

    Args:
        agent: Its memory is shared, so the function acts with whatever an update or `load_state_dict` wrote there.
        generator: Draws the noise.
    """
    policy = agent.policy
    if policy.action_low.device.type != "cpu":

        @torch.no_grad()
        def act(obs: Tensor) -> Tensor:
            mean, log_std = policy(obs)
            return policy.sample_action(mean, log_std, generator=generator)[0]

        return act

    encoder, mean_head = NumpyMLP(policy.policy_encoder), NumpyMLP(nn.Sequential(policy.policy_mean))
    head = policy.policy_logstd
    log_stds: Callable[[NDArray[np.float32]], NDArray[np.float32]]
    if isinstance(head, nn.Linear):
        log_stds = NumpyMLP(nn.Sequential(head))
    else:
        free = head.detach().numpy()
        log_stds = lambda features: free  # noqa: E731
    low, high = policy.action_low.numpy(), policy.action_high.numpy()

    def act_on_numpy(obs: Tensor) -> Tensor:
        features = encoder(obs.numpy())
        mean = mean_head(features)
        noise = torch.randn(mean.shape, generator=generator).numpy()
        # LaTeX: u = \mu + \sigma \xi, \quad \xi \sim \mathcal{N}(0, I)
        raw = mean + np.exp(np.clip(log_stds(features), *LOG_STD_RANGE)) * noise
        # LaTeX: a_j = c_j + h_j \tanh(u_j)
        actions = (high + low) / 2 + (high - low) / 2 * np.tanh(raw)
        return torch.from_numpy(np.clip(actions, low, high))

    return act_on_numpy


def estimate_advantages(rollout: Rollout, values: Tensor, config: VMPOConfig) -> Advantages:
    """Estimate advantages and returns of a rollout with the estimator that the config names (values: ``[T+1, N]``)."""
    episode = (rollout.rewards, values, rollout.terminated, rollout.truncated)
    if config.advantage_estimator == "gae":
        return generalized_advantage_estimation(*episode, config.gamma, config.gae_lambda)
    if config.advantage_estimator == "returns":
        return bootstrapped_returns(*episode, config.gamma)
    # LaTeX[Schulman2016, eq. 17]: A_t = \delta_t
    advantages = temporal_difference(rollout.rewards, values, rollout.terminated, config.gamma)
    # LaTeX: R_t = A_t + V(s_t)
    return Advantages(advantages, advantages + values[:-1])


@torch.no_grad()
def make_batch(agent: VMPOAgent, rollout: Rollout) -> dict[str, Tensor]:
    """Describe a full rollout with the policy and critic that collected it, in one pass, as `update` takes it."""
    means, log_stds, values = agent.policy.forward_all(rollout.obs)  # [T+1, N, ·]
    advantages, returns = estimate_advantages(rollout, values.squeeze(-1), agent.config)
    parts = {
        "obs": rollout.obs[:-1],
        "actions": rollout.actions,
        "old_means": means[:-1],
        "old_log_stds": log_stds[:-1],
        "returns": returns.unsqueeze(-1),
        "advantages": advantages.unsqueeze(-1),
        "restarting_weights": 1 - rollout.restarting.unsqueeze(-1),
    }
    return {name: part.flatten(0, 1) for name, part in parts.items()}
