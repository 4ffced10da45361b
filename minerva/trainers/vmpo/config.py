"""V-MPO's hyperparameters."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from minerva.trainers.config import LayerSizes, OnPolicyConfig, Repeats, Rows
from minerva.utils.ranges import SMALLEST_FLOAT, PositiveFloat, Range

_LOG_STD = Range(-20, 2, "lie between -20 and 2", "lie between -20 and 2", "; 0 is a deviation of 1")
_SHARE = Range(SMALLEST_FLOAT, 1, "lie in (0, 1]", "lie in (0, 1]", "; 0.5 keeps the better half")


@dataclass(frozen=True, kw_only=True)
class VMPOConfig(OnPolicyConfig):
    """The settings of V-MPO: on-policy maximum a posteriori policy optimization."""

    # Networks

    policy_layer_sizes: LayerSizes = (256, 256)
    """Units of the policy's hidden layers."""
    value_layer_sizes: LayerSizes = (256, 256)
    """Units of the critic's hidden layers; not used with shared_encoder."""
    ppo_like_backbone: bool = False
    """Orthogonal layers and tanh, and for continuous actions a standard deviation that does not depend on the state, as
    in PPO."""
    log_std_init: Annotated[float, _LOG_STD] = 0.0
    """Initial logarithm of that standard deviation; not used without ppo_like_backbone."""

    # Collecting

    advantage_estimator: Literal["returns", "dae", "gae"] = "returns"
    """Bootstrapped returns minus values, one-step temporal differences, or generalized advantage estimation."""

    # Expectation

    normalize_advantages: bool = True
    """Normalize advantages over the rollout."""
    topk_fraction: Annotated[float, _SHARE] = 0.5
    """Share of the samples that is kept: those with the largest advantages."""
    epsilon_eta: PositiveFloat = 0.1
    """Bound on the KL divergence of the weights from equal ones."""
    temperature_init: PositiveFloat = 1.0
    """Initial temperature."""
    temperature_lr: PositiveFloat = 1e-4
    """Learning rate of the temperature."""

    # Maximization

    m_steps: Repeats = 1
    """Passes over the rollout per update."""
    minibatches: Rows = 1
    """Minibatches per pass, shuffled again each time, with one gradient step for each."""
    recompute_advantages: bool = False
    """Estimate advantages and weigh the samples again before each pass."""
    policy_lr: PositiveFloat = 5e-4
    """Learning rate of the policy."""
    value_lr: PositiveFloat = 1e-3
    """Learning rate of the critic."""
    anneal_lr: bool = False
    """Let both learning rates fall linearly to 0 over the run."""
    epsilon_mu: PositiveFloat = 0.01
    """Bound on the KL divergence that the change of the mean makes; for discrete actions on the whole divergence."""
    epsilon_sigma: PositiveFloat = 0.01
    """Bound on the KL divergence that the change of the standard deviation makes; not used for discrete actions."""
    alpha_lr: PositiveFloat = 1e-4
    """Learning rate of the Lagrange multipliers of these bounds, which start at 1."""
    control_variate: bool = False
    """Subtract the sampling noise from the weighted likelihood: 0 on average, and a good part of the variance."""
    max_grad_norm: PositiveFloat | None = 10.0
    """Larger gradients of policy and critic are scaled down to this norm; None for no limit."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.lstm_units and self.minibatches > 1:
            raise ValueError(
                f"minibatches: must be 1 for a recurrent policy (lstm_units), whose sequences stay whole; got "
                f"{self.minibatches}."
            )
        if self.lstm_units and self.recompute_advantages:
            raise ValueError("recompute_advantages: must be False for a recurrent policy (lstm_units), got True.")
        if self.batch_size % self.minibatches:
            raise ValueError(
                f"minibatches: must divide rollout_steps * num_envs = {self.rollout_steps} * {self.num_envs} = "
                f"{self.batch_size}, got {self.minibatches}."
            )
        # Half of the steps cross into a new episode where every episode is one step long.
        fewest = max(1, self.batch_size // 2)
        if self.topk_fraction * fewest < 1 - 1e-9:
            raise ValueError(
                f"topk_fraction: must keep at least one of {fewest} samples, half of rollout_steps * num_envs = "
                f"{self.rollout_steps} * {self.num_envs} (the others may cross into new episodes); got "
                f"{self.topk_fraction}, give more of either."
            )

    def check_ranks(self, count: int) -> None:
        super().check_ranks(count)
        rows = self.batch_size // count
        if rows % self.minibatches:
            raise ValueError(
                f"minibatches: must divide the {rows} rows of a rollout that each of {count} processes has, got "
                f"{self.minibatches}."
            )

    @property
    def passes(self) -> int:
        return self.m_steps

    @property
    def minibatch_rows(self) -> int:
        return self.batch_size // self.minibatches
