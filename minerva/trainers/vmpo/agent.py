"""V-MPO's agent: policy, critic and dual variables, how they act, and the batches that they learn from."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from gymnasium import Space, spaces
from torch import Tensor, nn

from minerva.environments.base import box_bounds
from minerva.environments.spaces import category_counts
from minerva.networks.duals import DualVariable, inverse_softplus
from minerva.networks.heads import head_for
from minerva.objectives.returns import (
    Advantages,
    bootstrapped_returns,
    generalized_advantage_estimation,
    temporal_difference,
)
from minerva.storage.rollout import RolloutBuffer
from minerva.trainers.health import warn_of_skipped
from minerva.trainers.vmpo.config import VMPOConfig
from minerva.trainers.vmpo.discrete_policy import DiscretePolicy
from minerva.trainers.vmpo.gaussian_mlp_policy import SquashedGaussianPolicy
from minerva.trainers.vmpo.kinds import ActionKind, ContinuousActions, DiscreteActions
from minerva.trainers.vmpo.update import Experience, Learned, Multipliers, VMPOUpdate
from minerva.utils.running_norm import RunningNorm

Policy = SquashedGaussianPolicy | DiscretePolicy


class VMPOAgent(nn.Module):
    """A policy with a critic, the dual variables, and how they learn.

    The policy is a squashed Gaussian, or for a discrete action space a distribution over its choices. All but `learn`
    and `step` take raw observations. Where there is a memory, `act`, `value` and `choose` begin with an empty one.

    Args:
        obs_dim: O, an action mask at the end of the row included.
        act_dim: A, entries of an action.
        action_low: Lower bounds of actions, ``[A]`` or a number; -1 by default.
        action_high: Upper bounds, likewise; 1 by default.
        device: Where everything is.
        config: V-MPO's hyperparameters; by default their defaults.
        action_space: The environment's, in place of bounds; needed for discrete actions.
        mask_dim: K, entries at the end of a row that say which actions are allowed.
        **fields: Fields of `VMPOConfig`, on top of `config`.

    Attributes:
        policy: Policy and critic.
        obs_normalizer: Of raw observations; the identity where they are not normalized.
        skipped: Updates that were left out because a number was not finite.

    Raises:
        ValueError: A field breaks a rule, a bound is infinite, or the action space does not fit.
    """

    policy: Policy

    def __init__(
        self,
        obs_dim: int,
        act_dim: int,
        action_low: Any = None,
        action_high: Any = None,
        device: str | torch.device = "cpu",
        config: VMPOConfig | None = None,
        action_space: Space[Any] | None = None,
        mask_dim: int = 0,
        **fields: Any,
    ) -> None:
        super().__init__()
        self.config = config = VMPOConfig.from_fields(config, fields)
        self.device = torch.device(device)
        self.obs_normalizer: RunningNorm | nn.Identity = (
            RunningNorm(obs_dim - mask_dim, passed=mask_dim) if config.normalize_obs else nn.Identity()
        )
        self.policy, self._kind = _make_policy(
            config, obs_dim, act_dim, action_low, action_high, action_space, mask_dim
        )
        self.temperature = DualVariable(inverse_softplus(config.temperature_init))
        self.alphas = Multipliers(bound.multiplier for bound in self._kind.bounds)
        self.to(self.device)
        self.obs_normalizer.cpu()  # it takes in observations as they come from the environments
        self.skipped = 0
        self._update = VMPOUpdate(self.policy, self.alphas, self.temperature, self._kind, config)
        self._steps = self._update.steps
        self._learned = self._update.start()

    def use_accelerated(self, compile_it: bool, capture_it: bool) -> None:
        """Compile the M-step from now on, capture all steps, or both; every batch must be as long as the first."""
        if self._steps is self._update.steps:
            self._steps = self._steps.accelerated(compile_it, capture_it)

    @property
    def old_names(self) -> tuple[str, ...]:
        """What a batch calls the parameters of the policy that acted."""
        return self._kind.old_names

    @property
    def log_temperature(self) -> nn.Parameter:
        """The temperature's parameter, before the softplus."""
        return self.temperature.parameter

    @property
    def log_alpha_mu(self) -> nn.Parameter:
        """The parameter of the mean's multiplier, before the softplus; for continuous actions."""
        return self._multiplier("mu")

    @property
    def log_alpha_sigma(self) -> nn.Parameter:
        """The parameter of the standard deviation's multiplier, before the softplus; for continuous actions."""
        return self._multiplier("sigma")

    @property
    def log_alpha(self) -> nn.Parameter:
        """The parameter of the one multiplier, before the softplus; for discrete actions."""
        return self._multiplier("policy")

    def _multiplier(self, name: str) -> nn.Parameter:
        if name not in self.alphas:
            raise AttributeError(name)  # nn.Module then names the property that this agent does not have
        variable = self.alphas[name]
        assert isinstance(variable, DualVariable)
        return variable.parameter

    # Acting

    @property
    def state_dim(self) -> int:
        """S, length of the memory's state; 0 without a memory."""
        return self.policy.state_dim

    def empty_state(self, count: int) -> Tensor:
        """Give the state of a memory that has seen nothing, ``[count, S]``."""
        return torch.zeros(count, self.state_dim, device=self.device)

    @torch.no_grad()
    def act(self, obs: Any, deterministic: bool = False, generator: torch.Generator | None = None) -> tuple[Any, ...]:
        """Act in raw observations ``[O]`` or ``[B, O]``; arrays give arrays, tensors tensors.

        Returns:
            The action on the scale of the environment, the value ``[..., 1]``, and the parameters of the distribution:
            mean and log-standard-deviation of the Gaussian before the tanh, or the logits of discrete actions, -∞ for
            one that a mask forbids.
        """
        *parameters, value = self.policy.forward_all(self._prepared(obs))
        action = self.policy.choose(tuple(parameters), deterministic, generator)
        found = (action, value, *parameters)
        return found if isinstance(obs, Tensor) else tuple(part.cpu().numpy() for part in found)

    @torch.no_grad()
    def value(self, obs: Any) -> Any:
        """Value raw observations ``[O]`` or ``[B, O]``: ``[..., 1]``; arrays give arrays, tensors tensors."""
        value = self.policy.get_value(self._prepared(obs))
        return value if isinstance(obs, Tensor) else value.cpu().numpy()

    def choose(self, x: Tensor, deterministic: bool, generator: torch.Generator | None = None) -> Tensor:
        """Give the likeliest action for raw observations ``[B, O]`` (a mean's), or a sampled one: ``[B, A]``."""
        return self.choose_on(x, self.empty_state(len(x)), deterministic, generator)[0]

    def choose_on(
        self, x: Tensor, state: Tensor, deterministic: bool, generator: torch.Generator | None = None
    ) -> tuple[Tensor, Tensor]:
        """Do so with a memory: from states ``[B, S]`` on, which are returned as they are after."""
        nowhere = torch.zeros(len(x), device=state.device)
        return self.step(self._prepared(x), state, nowhere, generator, deterministic)

    @torch.no_grad()
    def step(
        self,
        obs: Tensor,
        state: Tensor,
        starts: Tensor,
        generator: torch.Generator | None = None,
        deterministic: bool = False,
    ) -> tuple[Tensor, Tensor]:
        """Act in normalized observations ``[B, O]``, with a memory that is emptied where an episode begins."""
        if self.state_dim:
            found, _, state = self.policy.look(obs[None], state, starts[None].to(state.device))
            parameters = tuple(part[0] for part in found)
        else:
            parameters = self.policy(obs)
        return self.policy.choose(parameters, deterministic, generator), state

    def _prepared(self, obs: Any) -> Tensor:
        parameter = self.policy.value_head.weight
        x = torch.as_tensor(obs, dtype=parameter.dtype)
        if isinstance(self.obs_normalizer, RunningNorm):
            x = self.obs_normalizer(x.to(self.obs_normalizer.mean.device))
        return x.to(parameter.device)

    # Learning

    def update(self, batch: Mapping[str, Any]) -> dict[str, float] | None:
        """Improve policy and critic on a rollout of raw observations.

        Args:
            batch: Arrays or tensors: `obs, actions, old_means, old_log_stds` of ``[B, ·]`` (for discrete actions
                `old_logits` in place of the last two), `returns, advantages` of ``[B, 1]``, optionally
                `restarting_weights` (0 for a step that crosses into a new episode, else 1) and `importance_weights`.
                Actions are on the environment's scale, choices counted from 0. With a memory also `state` ``[N, S]``,
                that before the first step, and `starts` ``[T, N]``, 1 where an episode begins; B is T·N then, step by
                step.

        Returns:
            Metrics, or None where a number was not finite: then nothing has changed.

        Raises:
            ValueError: A part is missing or of another length, an action is no choice, or `topk_fraction` keeps no
                sample.
        """
        if "obs" in batch and not isinstance(self.obs_normalizer, nn.Identity):
            obs = torch.as_tensor(batch["obs"])
            normalized = self._prepared(obs)
            # The normalizer would clip what is infinite, and such a batch is to be skipped.
            batch = {**batch, "obs": torch.where(obs.to(normalized.device).isfinite(), normalized, torch.nan)}
        return self.learn(batch)

    def learn(
        self,
        batch: Mapping[str, Any],
        learning_rate_share: float = 1.0,
        generator: torch.Generator | None = None,
        rollout: RolloutBuffer | None = None,
    ) -> dict[str, float] | None:
        """Do what `update` does, with observations that are normalized already, as a rollout stores them.

        Args:
            batch: As for `update`.
            learning_rate_share: What is left of the learning rates of policy and critic, where they fall.
            generator: Shuffles the minibatches, where there are several (a CPU generator; None for torch's own).
            rollout: What the batch was made of; with `recompute_advantages` alone.
        """
        if self.config.recompute_advantages and rollout is None:
            raise ValueError("recompute_advantages: needs the rollout that a batch was made of; got none.")
        rows, old = self._to_rows(batch), self._learned
        share = torch.full((1,), learning_rate_share, device=self.device)
        with torch.no_grad():
            tempered, weighted, sound, metrics = self._steps.e_step(old.tempered, rows)
            finite, counted, to_keep = sound.tolist()
            if not finite:
                self._skip()
                return None
            self._kind.check(weighted.samples)
            self._check_kept(to_keep, counted)
            new, numbers = Learned(old.fitted, tempered), [metrics["vmpo/dual_loss"].view(1).clone()]
            for m_step in range(self.config.m_steps):
                if m_step > 0 and self.config.recompute_advantages:
                    rows = self._estimated_anew(rows, rollout, new.fitted.policy)
                    tempered, weighted, _, metrics = self._steps.e_step(new.tempered, rows)
                    new = new._replace(tempered=tempered)
                    numbers.append(metrics["vmpo/dual_loss"].view(1).clone())
                for part in weighted.parts(self.config.minibatches, generator):
                    fitted, losses = self._steps.m_step(new.fitted, part, share)
                    new = new._replace(fitted=fitted)
                    numbers.append(torch.stack([losses.total, losses.alpha, losses.norms]))
            applicable, closing = self._steps.close(old.fitted.policy, new, weighted, losses, torch.cat(numbers))
            names, values = zip(*(metrics | closing).items(), strict=True)
            applied, *found = torch.stack([applicable.to(values[0].dtype), *values]).tolist()
            if not applied:
                self._skip()
                return None
            for name, tensor in new.tensors().items():
                old.tensors()[name].copy_(tensor)
            return dict(zip(names, found, strict=True))

    def _check_kept(self, to_keep: float, counted: float) -> None:
        if to_keep == 0:
            raise ValueError(
                f"topk_fraction: must keep at least one of the {counted:.0f} samples that do not cross into a new "
                f"episode, got {self.config.topk_fraction}; give a larger one, or longer rollouts."
            )

    def _estimated_anew(self, rows: Experience, rollout: RolloutBuffer | None, vector: Tensor) -> Experience:
        """Put advantages and returns as the critic of `vector` sees them in the place of those before."""
        assert rollout is not None
        advantages, returns = estimate_advantages(rollout, self._update.values(vector, rollout.obs), self.config)
        return rows._replace(advantages=advantages.flatten(), returns=returns.flatten())

    def _to_rows(self, batch: Mapping[str, Any]) -> Experience:
        wide, old = ("obs", "actions", *self._kind.old_names), self._kind.old_names
        needed = (*wide, "returns", "advantages", *(("state", "starts") if self.state_dim else ()))
        missing = [name for name in needed if name not in batch]
        if missing:
            raise ValueError(f"batch: must hold {', '.join(missing)} as well; got {', '.join(batch)}.")
        like = self.policy.value_head.weight

        def tensor(given: Any) -> Tensor:
            return torch.as_tensor(given).detach().to(device=like.device, dtype=like.dtype)

        count = len(batch["obs"])
        parts: dict[str, Tensor] = {}
        for name in (*wide, "returns", "advantages", "restarting_weights", "importance_weights"):
            given = batch.get(name)
            part = tensor(torch.ones(count) if given is None else given)
            if len(part) != count:
                raise ValueError(f"batch: {name} must have as many rows as obs, {count}; got {len(part)}.")
            parts[name] = part if name in wide else part.reshape(count)
        past = self._past(tensor(batch["state"]), tensor(batch["starts"]), count) if self.state_dim else _no_past(like)
        return Experience(
            **{name: part for name, part in parts.items() if name not in old},
            old=tuple(parts[name] for name in old),
            **past,
        )

    def _past(self, state: Tensor, starts: Tensor, count: int) -> dict[str, Tensor]:
        if starts.dim() != 2 or starts.numel() != count or state.shape != (starts.shape[1], self.state_dim):
            raise ValueError(
                f"batch: starts must have the shape (T, N) with T * N = {count} rows, and state (N, {self.state_dim}); "
                f"got {tuple(starts.shape)} and {tuple(state.shape)}."
            )
        return {"state": state, "starts": starts}

    def _skip(self) -> None:
        self.skipped += 1
        warn_of_skipped(self.skipped)

    def optimizer_state(self) -> dict[str, Any]:
        """Give what the optimizers hold, and the counters; parameters are in `state_dict`."""
        own = {"policy", "alphas", "temperature"}
        tensors = {name: tensor.clone() for name, tensor in self._learned.tensors().items() if name not in own}
        return {**tensors, "skipped": self.skipped}

    def load_optimizer_state(self, state: Mapping[str, Any]) -> None:
        """Take it back."""
        self.skipped = state["skipped"]
        for name, tensor in self._learned.tensors().items():
            if name in state:
                tensor.copy_(state[name])


def _no_past(like: Tensor) -> dict[str, Tensor]:
    return {"state": like.new_zeros(0), "starts": like.new_zeros(0)}


def _make_policy(
    config: VMPOConfig,
    obs_dim: int,
    act_dim: int,
    action_low: Any,
    action_high: Any,
    space: Space[Any] | None,
    mask_dim: int,
) -> tuple[Policy, ActionKind]:
    """Make the policy for the actions that bounds or a space name, and their maths (arguments as for `VMPOAgent`)."""
    if space is not None:
        if action_low is not None or action_high is not None:
            raise ValueError("action_space: stands in place of action_low and action_high; give one or the other.")
        head = head_for(space)
        if act_dim != head.action_dim:
            raise ValueError(f"act_dim: must be {head.action_dim} for {space}, got {act_dim}.")
        if mask_dim not in (0, head.mask_dim):
            allowed = f"0 or {head.mask_dim}" if head.mask_dim else "0"
            raise ValueError(f"mask_dim: must be {allowed} for {space}, got {mask_dim}.")
        if not isinstance(space, spaces.Box):
            discrete = DiscretePolicy(
                obs_dim,
                head,
                config.policy_layer_sizes,
                config.value_layer_sizes,
                config.shared_encoder,
                config.ppo_like_backbone,
                config.lstm_units,
                config.lstm_layer_norm,
                mask_dim,
            )
            return discrete, DiscreteActions(head, category_counts(space) or (2,) * act_dim, config)
        action_low, action_high = box_bounds(space)
    elif mask_dim:
        raise ValueError(f"mask_dim: needs a discrete action_space, got {mask_dim} without one.")
    policy = SquashedGaussianPolicy(
        obs_dim,
        act_dim,
        config.policy_layer_sizes,
        config.value_layer_sizes,
        action_low,
        action_high,
        config.shared_encoder,
        config.ppo_like_backbone,
        config.log_std_init,
        config.lstm_units,
        config.lstm_layer_norm,
    )
    return policy, ContinuousActions(policy, config)


# Between rollout and agent


def estimate_advantages(rollout: RolloutBuffer, values: Tensor, config: VMPOConfig) -> Advantages:
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
def make_batch(agent: VMPOAgent, rollout: RolloutBuffer) -> dict[str, Tensor]:
    """Describe a full rollout with the policy and critic that collected it, in one pass, as `update` takes it."""
    rollout = rollout.on(agent.device)
    parameters, values, _ = agent.policy.look(rollout.obs, rollout.first_state, rollout.starts)  # [T+1, N, ·]
    advantages, returns = estimate_advantages(rollout, values.squeeze(-1), agent.config)
    parts = {
        "obs": rollout.obs[:-1],
        "actions": rollout.actions,
        **{name: part[:-1] for name, part in zip(agent.old_names, parameters, strict=True)},
        "returns": returns.unsqueeze(-1),
        "advantages": advantages.unsqueeze(-1),
        "restarting_weights": 1 - rollout.restarting.unsqueeze(-1),
    }
    past = {"state": rollout.first_state, "starts": rollout.starts[:-1]} if agent.state_dim else {}
    return {name: part.flatten(0, 1) for name, part in parts.items()} | past
