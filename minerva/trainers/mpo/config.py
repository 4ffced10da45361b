"""MPO's hyperparameters."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from minerva.trainers.config import LayerSizes, OffPolicyConfig, Repeats, Rows
from minerva.utils.ranges import SMALLEST_FLOAT, FiniteFloat, PositiveFloat, PositiveInt, Range, UnitInterval

_SHARE = Range(SMALLEST_FLOAT, 1, "lie in (0, 1], or be None", "lie in (0, 1], or be None")


@dataclass(frozen=True, kw_only=True)
class MPOConfig(OffPolicyConfig):
    """The settings of MPO: off-policy maximum a posteriori policy optimization, for continuous actions."""

    # Networks

    policy_layer_sizes: LayerSizes = (256, 256)
    """Units of the policy's hidden layers."""
    critic_layer_sizes: LayerSizes = (256, 256)
    """Units of the critic's hidden layers."""

    # Critic

    q_lr: PositiveFloat = 3e-4
    """Learning rate of the critic."""
    target_networks_update_period: PositiveInt = 100
    """Updates after which the target networks become copies of the online ones."""
    target_tau: Annotated[float, _SHARE] | None = None
    """Instead, let the target networks follow as a moving average, by this share per update."""
    use_retrace: bool = False
    """Fit the critic to Retrace targets on sequences."""
    retrace_steps: Rows = 2
    """Length of these sequences."""
    retrace_mc_actions: Repeats = 8
    """Actions that the value of a state is averaged over, in Retrace."""
    retrace_lambda: UnitInterval = 0.95
    """Decay of Retrace's traces."""

    # Expectation

    action_samples: Repeats = 20
    """Actions sampled in each state."""
    shared_critic_pass: bool = False
    """Improve the policy in the states that the critic's targets look at, with the same actions, as Acme does: half of
    the work, and another algorithm."""
    kl_epsilon: PositiveFloat = 0.1
    """Bound on the KL divergence of the improved policy from the target policy."""
    temperature_init: FiniteFloat = 1.0
    """Initial parameter of the temperature, before the softplus."""
    temperature_lr: PositiveFloat = 3e-4
    """Learning rate of the temperature."""
    action_penalization: bool = False
    """Let the improved policy avoid actions outside the bounds as well."""
    epsilon_penalty: PositiveFloat = 0.001
    """Bound on the KL divergence of that."""

    # Maximization

    policy_lr: PositiveFloat = 3e-4
    """Learning rate of the policy; divided by m_steps."""
    m_steps: Repeats = 1
    """Policy steps per update, with the same actions and weights."""
    mstep_kl_epsilon: PositiveFloat = 0.1
    """Bound on the KL divergence of the policy from the target policy, per action dimension."""
    mstep_kl_epsilon_stddev: PositiveFloat | None = None
    """The bound for the standard deviation. By default the same."""
    lambda_init: PositiveFloat = 1.0
    """Initial value of the Lagrange multipliers, where the two settings below are None."""
    lambda_lr: PositiveFloat = 3e-4
    """Learning rate of the Lagrange multipliers."""
    init_log_alpha_mean: FiniteFloat | None = 10.0
    """Initial parameters of the mean's multipliers, before the softplus."""
    init_log_alpha_stddev: FiniteFloat | None = 1000.0
    """Initial parameters of the standard deviation's multipliers, before the softplus."""

    # Optimizer

    max_grad_norm: PositiveFloat | None = 1.0
    """Larger gradients are scaled down to this norm: the critic's, the policy's, and that of all multipliers; None
    for no limit."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.use_retrace and self.n_step > 1:
            raise ValueError(
                f"n_step: must be 1 together with use_retrace, which sums rewards itself; got {self.n_step}. "
                "Set retrace_steps instead."
            )
        if self.use_retrace and self.shared_critic_pass:
            raise ValueError("shared_critic_pass: must be False together with use_retrace, got True; choose one.")
        held = self.replay_size // self.num_envs
        name = "retrace_steps" if self.use_retrace else "n_step"
        if getattr(self, name) > held:
            raise ValueError(
                f"{name}: must be at most replay_size / num_envs = {held}, the consecutive steps that the buffer "
                f"holds per environment; got {getattr(self, name)}."
            )

    @property
    def epsilon_stddev(self) -> float:
        """The bound on the KL divergence of the standard deviation."""
        return self.mstep_kl_epsilon if self.mstep_kl_epsilon_stddev is None else self.mstep_kl_epsilon_stddev

    @property
    def sequences(self) -> bool:
        """Whether updates are made on sequences."""
        return self.use_retrace and self.retrace_steps > 1
