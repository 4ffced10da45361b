"""MPO's hyperparameters."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from minerva.trainers.config import RunConfig


@dataclass(frozen=True, kw_only=True)
class MPOConfig(RunConfig):
    """Maximum a posteriori policy optimization for continuous actions, off-policy."""

    # Networks

    policy_layer_sizes: tuple[int, ...] = (256, 256)
    """Units of the policy's hidden layers."""
    critic_layer_sizes: tuple[int, ...] = (256, 256)
    """Units of the critic's hidden layers."""
    normalize_obs: bool = False
    """Normalize observations by their running mean and variance."""

    # Replay

    replay_size: int = 1_000_000
    """Transitions that are remembered."""
    update_after: int = 1_000
    """Transitions that are collected before the first update."""
    batch_size: int = 256
    """Transitions, or sequences, an update."""
    updates_per_step: float = 1.0
    """Updates for each transition collected."""
    update_interval: int = 1
    """Transitions collected between rounds of updates; a round makes update_interval * updates_per_step of them."""
    overlap: bool = False
    """Choose the next action before a round of updates, not after it: a GPU then learns while the environments are
    stepped. The policy that acts is a round older."""
    n_step: int = 1
    """Rewards that a target sums before it bootstraps."""

    # Critic

    gamma: float = 0.99
    """Discount."""
    q_lr: float = 3e-4
    """Learning rate of the critic."""
    target_networks_update_period: int = 100
    """Updates after which the target networks become copies of the online ones."""
    target_tau: float | None = None
    """Instead, let the target networks follow as a moving average, by this share an update."""
    use_retrace: bool = False
    """Fit the critic to Retrace targets on sequences."""
    retrace_steps: int = 2
    """Length of these sequences."""
    retrace_mc_actions: int = 8
    """Actions that the value of a state is averaged over, in Retrace."""
    retrace_lambda: float = 0.95
    """Decay of Retrace's traces."""

    # Expectation

    action_samples: int = 20
    """Actions sampled in each state."""
    shared_critic_pass: bool = False
    """Improve the policy in the states that the critic's targets look at, with the same actions, as Acme does: half of
    the work, and another algorithm."""
    kl_epsilon: float = 0.1
    """Bound on the KL divergence of the improved policy from the target policy."""
    temperature_init: float = 1.0
    """Where the temperature's parameter starts, before the softplus."""
    temperature_lr: float = 3e-4
    """Learning rate of the temperature."""
    action_penalization: bool = False
    """Let the improved policy avoid actions outside the bounds as well."""
    epsilon_penalty: float = 0.001
    """Bound on the KL divergence of that."""

    # Maximization

    policy_lr: float = 3e-4
    """Learning rate of the policy; divided by m_steps."""
    m_steps: int = 1
    """Policy steps an update, with the same actions and weights."""
    mstep_kl_epsilon: float = 0.1
    """Bound on the KL divergence of the policy from the target policy, an action dimension."""
    mstep_kl_epsilon_stddev: float | None = None
    """Its own bound for the standard deviation; None for the same."""
    lambda_init: float = 1.0
    """Where the Lagrange multipliers start, where the two settings below are None."""
    lambda_lr: float = 3e-4
    """Learning rate of the Lagrange multipliers."""
    init_log_alpha_mean: float | None = 10.0
    """Where the parameters of the mean's multipliers start, before the softplus."""
    init_log_alpha_stddev: float | None = 1000.0
    """Where the parameters of the standard deviation's multipliers start, before the softplus."""

    # Optimizer

    max_grad_norm: float = 1.0
    """Gradients are scaled down to this norm: the critic's, the policy's, and those of all multipliers together."""
    optimizer_type: Literal["adam", "sgd"] = "adam"
    """Adam (eps 1e-5) or stochastic gradient descent with momentum."""
    sgd_momentum: float = 0.9
    """Momentum with optimizer_type "sgd"."""
    compile: Literal["auto", True, False] = "auto"
    """Compile the update, which takes a minute; "auto" does so for a long run, where a C++ compiler is installed. On a
    GPU the update is captured as a graph besides, unless this is False."""

    # Logging

    log_interval: int = 1_000
    """Environment steps between two lines of the log; each holds the newest update's metrics."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self._layers("policy_layer_sizes", "critic_layer_sizes")
        self._at_least(1, "replay_size", "batch_size", "update_interval", "n_step", "target_networks_update_period")
        self._at_least(1, "retrace_steps", "retrace_mc_actions", "action_samples", "m_steps", "log_interval")
        self._at_least(0, "update_after")
        self._positive("updates_per_step", "q_lr", "policy_lr", "temperature_lr", "lambda_lr", "max_grad_norm")
        self._positive("kl_epsilon", "epsilon_penalty", "mstep_kl_epsilon", "lambda_init")
        if self.mstep_kl_epsilon_stddev is not None:
            self._positive("mstep_kl_epsilon_stddev")
        self._in_unit_interval("gamma", "retrace_lambda", "sgd_momentum")
        if self.target_tau is not None and not 0 < self.target_tau <= 1:
            raise ValueError(f"target_tau: must lie in (0, 1], or be None, got {self.target_tau}.")
        self._one_of("optimizer_type", "adam", "sgd")
        if self.compile not in ("auto", True, False):
            raise ValueError(f"compile: must be 'auto', True or False, got {self.compile!r}.")
        held = self.replay_size // self.num_envs
        if held < 1:
            raise ValueError(
                f"replay_size: must be at least num_envs = {self.num_envs}, one transition of each environment; "
                f"got {self.replay_size}."
            )
        if self.batch_size > held * self.num_envs:
            raise ValueError(
                f"batch_size: must be at most replay_size = {self.replay_size}, of which the replay will ever hold "
                f"{held * self.num_envs} (as many of each environment); got {self.batch_size}."
            )
        if self.use_retrace and self.n_step > 1:
            raise ValueError(
                f"n_step: must be 1 together with use_retrace, which sums rewards itself; got {self.n_step}. "
                "Set retrace_steps instead."
            )
        if self.use_retrace and self.shared_critic_pass:
            raise ValueError("shared_critic_pass: must be False together with use_retrace, got True; choose one.")
        name = "retrace_steps" if self.use_retrace else "n_step"
        if getattr(self, name) > held:
            raise ValueError(
                f"{name}: must be at most replay_size / num_envs = {held}, the steps in a row that the replay holds of "
                f"an environment; got {getattr(self, name)}."
            )

    @property
    def epsilon_stddev(self) -> float:
        """The bound on the KL divergence of the standard deviation."""
        return self.mstep_kl_epsilon if self.mstep_kl_epsilon_stddev is None else self.mstep_kl_epsilon_stddev

    @property
    def sequences(self) -> bool:
        """Whether updates are made on sequences."""
        return self.use_retrace and self.retrace_steps > 1
