"""V-MPO's agent: policy, critic and dual variables, how they act, and the batches that they learn from."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from gymnasium import Space, spaces
from torch import Tensor, nn

from minerva.environments.base import box_bounds
from minerva.networks.actor_critic import ActorCritic
from minerva.networks.duals import Duals, inverse_softplus
from minerva.networks.encoders import MakeEncoder, encoder_kind
from minerva.networks.heads import head_for
from minerva.networks.squashed_gaussian import SquashedGaussianPolicy, vmpo_architecture
from minerva.trainers.actor import BaseAgent
from minerva.trainers.vmpo.batch import Batch
from minerva.trainers.vmpo.config import VMPOConfig
from minerva.trainers.vmpo.update import Updater, kl_bounds
from minerva.utils.running_norm import RunningNorm


class VMPOAgent(BaseAgent):
    """V-MPO's agent: a policy with a critic, the dual variables, and how they learn.

    The policy is a squashed Gaussian, or for a discrete action space a distribution over its choices. Its methods take
    raw observations; a recurrent policy begins with an empty state in `act` and `value`.

    Args:
        obs_dim: O, an action mask at the end of the row included.
        act_dim: A, entries of an action.
        action_low: Lower bounds of actions, ``[A]`` or a number; -1 by default.
        action_high: Upper bounds of actions, ``[A]`` or a number; 1 by default.
        device: Where everything is.
        config: V-MPO's hyperparameters; by default their defaults.
        action_space: The environment's, in place of bounds; needed for discrete actions.
        mask_dim: K, entries at the end of a row that say which actions are allowed.
        observation_space: Before flattening; needed for images.
        make_encoder: Builds a user's own encoder, with `encoder` "custom".
        **overrides: Fields of `VMPOConfig`, on top of `config`.

    Attributes:
        policy: Policy and critic.
        obs_normalizer: Of raw observations; the identity where they are not normalized.

    Raises:
        ValueError: A field breaks a rule, a bound is infinite, or the action space does not fit.
    """

    policy: ActorCritic

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
        observation_space: Space[Any] | None = None,
        make_encoder: MakeEncoder | None = None,
        **overrides: Any,
    ) -> None:
        super().__init__()
        self.config = config = VMPOConfig.from_fields(config, overrides)
        self.device = torch.device(device)
        kind = encoder_kind(config.encoder, observation_space or spaces.Box(-1, 1, (obs_dim,)))
        self.obs_normalizer: RunningNorm | nn.Identity = nn.Identity()
        if config.normalize_obs and kind == "mlp":
            self.obs_normalizer = RunningNorm(obs_dim - mask_dim, config.obs_clip, passed=mask_dim)
        fields = ("policy_layer_sizes", "value_layer_sizes", "shared_encoder", "ppo_like_backbone", "log_std_init",
                  "lstm_units", "lstm_layer_norm")  # fmt: skip
        settings = {name: getattr(config, name) for name in fields} | {"encoder": kind, "make_encoder": make_encoder}
        if action_space is not None:
            _check_action_space(action_space, act_dim, mask_dim, (action_low, action_high))
        elif mask_dim:
            raise ValueError(f"mask_dim: needs a discrete action_space, got {mask_dim} without one.")
        if action_space is None or isinstance(action_space, spaces.Box):
            low, high = (action_low, action_high) if action_space is None else box_bounds(action_space)
            self.policy = SquashedGaussianPolicy(
                obs_dim, act_dim, action_low=low, action_high=high, observation_space=observation_space, **settings
            )
        else:
            architecture = vmpo_architecture(**settings)
            self.policy = ActorCritic(head_for(action_space), architecture, obs_dim, mask_dim, observation_space)
        self.temperature = Duals({"temperature": inverse_softplus(config.temperature_init)})
        bounded = kl_bounds(self.policy.head, config)
        self.alphas = Duals({bound.multiplier: inverse_softplus(1.0) for bound in bounded})
        self.to(self.device)
        self.obs_normalizer.cpu()  # it takes in observations as they come from the environments
        self.updater = Updater(self.policy, self.alphas, self.temperature, config)

    @property
    def skipped(self) -> int:
        """Updates that were skipped because a number was not finite."""
        return self.updater.skipped

    @property
    def log_temperature(self) -> nn.Parameter:
        """The temperature's parameter, before the softplus."""
        return self.temperature.get_parameter("temperature")

    @property
    def log_alpha_mu(self) -> nn.Parameter:
        """The parameter of the mean's multiplier, before the softplus; for continuous actions."""
        return self.alphas.get_parameter("mu")

    @property
    def log_alpha_sigma(self) -> nn.Parameter:
        """The parameter of the standard deviation's multiplier, before the softplus; for continuous actions."""
        return self.alphas.get_parameter("sigma")

    @property
    def log_alpha(self) -> nn.Parameter:
        """The parameter of the one multiplier, before the softplus; for discrete actions."""
        return self.alphas.get_parameter("policy")

    # Acting

    @torch.no_grad()
    def act(self, obs: Any, deterministic: bool = False, generator: torch.Generator | None = None) -> tuple[Any, ...]:
        """Choose actions for raw observations ``[O]`` or ``[B, O]``; arrays give arrays, tensors tensors.

        Returns:
            The action on the environment's scale, the value ``[..., 1]``, and the parameters of the distribution:
            mean and log-standard-deviation of the Gaussian before the tanh, or the logits of discrete actions, -∞ for
            one that a mask forbids.
        """
        *given, value = self.policy.forward_all(self.prepare(torch.as_tensor(obs)))
        head, params = self.policy.head, tuple(given)
        noise = None if deterministic else head.draw_noise(value.shape[:-1], generator, value)
        action = head.mode(params) if noise is None else head.sample(params, noise)
        found = (action, value, *params)
        return found if isinstance(obs, Tensor) else tuple(part.cpu().numpy() for part in found)

    @torch.no_grad()
    def value(self, obs: Any) -> Any:
        """Return the values of raw observations ``[O]`` or ``[B, O]``: ``[..., 1]``; arrays give arrays."""
        value = self.policy.get_value(self.prepare(torch.as_tensor(obs)))
        return value if isinstance(obs, Tensor) else value.cpu().numpy()

    # Learning

    def update(self, batch: Mapping[str, Any]) -> dict[str, float] | None:
        """Improve policy and critic on a rollout of raw observations.

        Args:
            batch: Arrays or tensors: `obs, actions, old_means, old_log_stds` of ``[B, ·]`` (for discrete actions
                `old_logits` in place of the last two), `returns, advantages` of ``[B, 1]``, optionally
                `restarting_weights` (0 for a step that crosses into a new episode, else 1) and `importance_weights`.
                Actions are on the environment's scale, choices counted from 0. For a recurrent policy also `state`
                ``[N, S]``, that before the first step, and `starts` ``[T, N]``, 1 where an episode begins; B is T·N
                then, step by step.

        Returns:
            Metrics, or None where a number was not finite: then nothing has changed.

        Raises:
            ValueError: A part is missing or of another length, an action is no choice, or `topk_fraction` keeps no
                sample.
        """
        rows = self._to_batch(batch)
        # The normalizer would clip what is infinite, and such a batch is to be skipped.
        obs = torch.where(rows.obs.isfinite(), self.prepare(rows.obs), torch.nan)
        return self.updater.learn(rows._replace(obs=obs))

    def _to_batch(self, batch: Mapping[str, Any]) -> Batch:
        old = self.policy.head.param_names
        wide, scalars = ("obs", "actions", *old), ("returns", "advantages")
        needed = (*wide, *scalars, *(("state", "starts") if self.state_dim else ()))
        missing = [name for name in needed if name not in batch]
        if missing:
            raise ValueError(f"batch: must hold {', '.join(missing)} as well; got {', '.join(batch)}.")
        like = next(self.policy.parameters())

        def tensor(given: Any) -> Tensor:
            return torch.as_tensor(given).detach().to(device=like.device, dtype=like.dtype)

        count = len(batch["obs"])
        parts: dict[str, Tensor] = {}
        for name in (*wide, *scalars, "restarting_weights", "importance_weights"):
            given = batch.get(name)
            part = tensor(torch.ones(count) if given is None else given)
            if len(part) != count:
                raise ValueError(f"batch: {name} must have as many rows as obs, {count}; got {len(part)}.")
            parts[name] = part if name in wide else part.reshape(count)
        self.policy.head.check_actions(parts["actions"][parts["restarting_weights"] > 0])
        state, starts = (tensor(batch[name]) if self.state_dim else like.new_zeros(0) for name in ("state", "starts"))
        fits = starts.dim() == 2 and starts.numel() == count and state.shape == (starts.shape[1], self.state_dim)
        if self.state_dim and not fits:
            raise ValueError(
                f"batch: starts must have the shape (T, N) with T * N = {count} rows, and state (N, {self.state_dim}); "
                f"got {tuple(starts.shape)} and {tuple(state.shape)}."
            )
        given_params = tuple(parts.pop(name) for name in old)
        return Batch(**parts, old=given_params, recurrent_state=state, episode_starts=starts)


def _check_action_space(space: Space[Any], act_dim: int, mask_dim: int, bounds: tuple[Any, Any]) -> None:
    if any(bound is not None for bound in bounds):
        raise ValueError("action_space: stands in place of action_low and action_high; give one or the other.")
    head = head_for(space)
    if act_dim != head.action_dim:
        raise ValueError(f"act_dim: must be {head.action_dim} for {space}, got {act_dim}.")
    if mask_dim not in (0, head.mask_dim):
        allowed = f"0 or {head.mask_dim}" if head.mask_dim else "0"
        raise ValueError(f"mask_dim: must be {allowed} for {space}, got {mask_dim}.")
