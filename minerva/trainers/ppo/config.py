"""PPO's hyperparameters."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from minerva.trainers.config import LayerSizes, OnPolicyConfig, Repeats, Rows
from minerva.utils.ranges import FiniteFloat, NonNegativeFloat, PositiveFloat, Range
from minerva.utils.schedules import NonNegativeSchedule, PositiveSchedule, as_schedule, linear


@dataclass(frozen=True, kw_only=True)
class PPOConfig(OnPolicyConfig):
    """The settings of PPO: proximal policy optimization."""

    # Networks

    policy_layer_sizes: LayerSizes = (64, 64)
    """Units of the policy's hidden layers."""
    critic_layer_sizes: LayerSizes = (64, 64)
    """Units of the critic's hidden layers."""
    log_std_init: Annotated[float, Range(-20, 20)] = 0.0
    """Initial logarithm of the policy's standard deviation, for continuous actions."""

    # Collecting

    normalize_reward: bool = True
    """Divide rewards by the running standard deviation of the discounted return."""
    advantage_estimator: Literal["gae", "returns"] = "gae"
    """Generalized advantage estimation, or bootstrapped returns minus values."""

    # Updating

    update_epochs: Repeats = 10
    """Passes over a rollout."""
    minibatch_size: Rows = 64
    """Samples per gradient step."""
    clip_ratio: PositiveSchedule = 0.2
    """How far the probability ratio may move before its gradient is cut. A number, or a schedule (see policy_lr)."""
    clip_vloss: bool = True
    """Clip the value loss in the same way."""
    clip_ratio_vf: PositiveSchedule | None = None
    """How far values may move with clip_vloss, on the scale of the returns. By default as far as clip_ratio."""
    norm_adv: bool = True
    """Normalize advantages in each minibatch."""
    unbiased_std: bool = True
    """Use the unbiased standard deviation for that; otherwise that of the samples themselves."""
    recompute_advantages: bool = False
    """Estimate advantages and returns again before each epoch, with the critic as it is then."""
    ent_coef: NonNegativeSchedule = 0.0
    """Weight of the entropy bonus. A number, or a schedule (see policy_lr)."""
    vf_coef: NonNegativeFloat = 0.5
    """Weight of the value loss."""
    max_grad_norm: PositiveFloat | None = 0.5
    """Larger gradients are scaled down to this norm; None for no limit."""
    target_kl: FiniteFloat | None = 0.02
    """Stop an update early, after the epoch in which the KL divergence passes this; None or 0 for no early stop."""

    # Optimizer

    policy_lr: PositiveSchedule = 3e-4
    """Learning rate of policy and critic. A number, or a schedule: "lin_2.5e-4" falls to 0 in a line, "cos_2.5e-4"
    along a cosine, "exp_2.5e-4" to a hundredth, "const_2.5e-4" stays; from Python also a function of the share of
    training that remains."""
    anneal_lr: bool = True
    """Let a learning rate that is a number fall linearly to 0 over the run."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.lstm_units:
            self._check_sequences()
        if self.minibatch_size > self.batch_size:
            raise ValueError(
                f"minibatch_size: must be at most rollout_steps * num_envs = {self.rollout_steps} * {self.num_envs} = "
                f"{self.batch_size}, got {self.minibatch_size}."
            )

    def _check_sequences(self) -> None:
        environments, rest = divmod(self.minibatch_size, self.rollout_steps)
        if rest or not environments or self.num_envs % environments:
            raise ValueError(
                "minibatch_size: a recurrent policy (lstm_units) learns from whole environments, so it must be "
                f"rollout_steps = {self.rollout_steps} times a number that num_envs = {self.num_envs} is divisible by; "
                f"got {self.minibatch_size}, try {self.rollout_steps * self._near_divisor(environments)}."
            )

    def _near_divisor(self, wanted: int) -> int:
        divisors = [k for k in range(1, self.num_envs + 1) if self.num_envs % k == 0]
        return min(divisors, key=lambda k: abs(k - wanted))

    def check_ranks(self, count: int) -> None:
        super().check_ranks(count)
        unit = self.rollout_steps if self.lstm_units else 1  # a recurrent policy learns from whole environments
        if self.minibatch_size % (unit * count):
            of = f"rollout_steps = {unit} times " if self.lstm_units else ""
            raise ValueError(
                f"minibatch_size: must be divisible by {of}the number of processes that contribute to each minibatch, "
                f"{count}, got {self.minibatch_size}; try {-(-self.minibatch_size // (unit * count)) * unit * count}."
            )

    def policy_lr_at(self, remaining: float) -> float:
        """Return the learning rate when this share of training remains."""
        if self.anneal_lr and isinstance(self.policy_lr, float):
            return linear(self.policy_lr, remaining)
        return as_schedule("policy_lr", self.policy_lr)(remaining)

    def clip_ratio_at(self, remaining: float) -> float:
        """Return the clip range of the policy."""
        return as_schedule("clip_ratio", self.clip_ratio)(remaining)

    def clip_ratio_vf_at(self, remaining: float) -> float:
        """Return the clip range of the critic."""
        if self.clip_ratio_vf is None:
            return self.clip_ratio_at(remaining)
        return as_schedule("clip_ratio_vf", self.clip_ratio_vf)(remaining)

    def ent_coef_at(self, remaining: float) -> float:
        """Return the weight of the entropy bonus."""
        return as_schedule("ent_coef", self.ent_coef)(remaining)

    @property
    def passes(self) -> int:
        return self.update_epochs

    @property
    def minibatch_rows(self) -> int:
        return self.minibatch_size
