"""V-MPO's hyperparameters."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from minerva.trainers.config import RunConfig


@dataclass(frozen=True, kw_only=True)
class VMPOConfig(RunConfig):
    """On-policy maximum a posteriori policy optimization."""

    # Networks

    policy_layer_sizes: tuple[int, ...] = (256, 256)
    """Units of the policy's hidden layers."""
    value_layer_sizes: tuple[int, ...] = (256, 256)
    """Units of the critic's hidden layers; not used with shared_encoder."""
    shared_encoder: bool = False
    """Let the critic use the policy's hidden layers, and its memory."""
    ppo_like_backbone: bool = False
    """Orthogonal layers and tanh, and for continuous actions a standard deviation that does not depend on the state, as
    in PPO."""
    log_std_init: float = 0.0
    """Where the logarithm of that standard deviation starts; not used without ppo_like_backbone."""
    lstm_units: int | None = None
    """Units of a memory (LSTM) over the hidden layers; None for no memory."""
    lstm_layer_norm: bool = False
    """Normalize inside the memory's cell, layer by layer."""

    # Collecting

    rollout_steps: int = 2048
    """Steps of each environment between updates."""
    normalize_obs: bool = True
    """Normalize observations by their running mean and variance."""
    normalize_reward: bool = False
    """Divide rewards by the running standard deviation of the discounted return."""
    advantage_estimator: Literal["returns", "dae", "gae"] = "returns"
    """Bootstrapped returns minus values, one-step temporal differences, or generalized advantage estimation."""
    gamma: float = 0.99
    """Discount."""
    gae_lambda: float = 0.95
    """Decay of the trace in generalized advantage estimation."""

    # Expectation

    normalize_advantages: bool = True
    """Normalize advantages over the rollout."""
    topk_fraction: float = 0.5
    """Share of the samples that is kept: those with the largest advantages."""
    epsilon_eta: float = 0.1
    """Bound on the KL divergence of the weights from equal ones."""
    temperature_init: float = 1.0
    """Where the temperature starts."""
    temperature_lr: float = 1e-4
    """Learning rate of the temperature."""

    # Maximization

    m_steps: int = 1
    """Times an update goes over the rollout."""
    minibatches: int = 1
    """Parts that the rollout is cut into each time, in a new order, with a gradient step for each."""
    recompute_advantages: bool = False
    """Estimate advantages anew, and weigh the samples anew, each time an update goes over the rollout."""
    policy_lr: float = 5e-4
    """Learning rate of the policy."""
    value_lr: float = 1e-3
    """Learning rate of the critic."""
    anneal_lr: bool = False
    """Let both learning rates fall linearly to 0 over the run."""
    epsilon_mu: float = 0.01
    """Bound on the KL divergence that the change of the mean makes; for discrete actions on the whole divergence."""
    epsilon_sigma: float = 0.01
    """Bound on the KL divergence that the change of the standard deviation makes; not used for discrete actions."""
    alpha_lr: float = 1e-4
    """Learning rate of the Lagrange multipliers of these bounds, which start at 1."""
    control_variate: bool = False
    """Take off from the fit what the luck of the draw adds to it: 0 on average, and a good part of the variance."""
    max_grad_norm: float = 10.0
    """Gradients of policy and critic are scaled down to this norm."""

    # Optimizer

    optimizer_type: Literal["adam", "sgd"] = "adam"
    """Adam (eps 1e-5) or stochastic gradient descent with momentum."""
    sgd_momentum: float = 0.9
    """Momentum with optimizer_type "sgd"."""
    compile: Literal["auto", True, False] = "auto"
    """Compile the gradient step, which takes half a minute or so the first time. "auto" does so for a long run on a
    CPU, where a C++ compiler is installed."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self._layers("policy_layer_sizes", "value_layer_sizes")
        self._at_least(1, "rollout_steps", "m_steps", "minibatches", "lstm_units")
        self._positive("epsilon_eta", "epsilon_mu", "epsilon_sigma", "temperature_init", "max_grad_norm")
        self._positive("policy_lr", "value_lr", "temperature_lr", "alpha_lr")
        self._in_unit_interval("gamma", "gae_lambda", "sgd_momentum")
        self._one_of("advantage_estimator", "returns", "dae", "gae")
        if not -20 <= self.log_std_init <= 2:
            raise ValueError(
                f"log_std_init: must lie between -20 and 2, got {self.log_std_init}; 0 is a deviation of 1."
            )
        self._one_of("optimizer_type", "adam", "sgd")
        if self.compile not in ("auto", True, False):
            raise ValueError(f"compile: must be 'auto', True or False, got {self.compile!r}.")
        if self.lstm_layer_norm and not self.lstm_units:
            raise ValueError("lstm_layer_norm: needs lstm_units, got True without them; give both.")
        if self.lstm_units and self.compile is True:
            raise ValueError("compile: True is not for policies with a memory (lstm_units); use 'auto' or False.")
        if not 0 < self.topk_fraction <= 1:
            raise ValueError(f"topk_fraction: must lie in (0, 1], got {self.topk_fraction}; 0.5 keeps the better half.")
        if self.lstm_units and self.minibatches > 1:
            raise ValueError(
                f"minibatches: must be 1 for a policy with a memory (lstm_units), got {self.minibatches}, whose "
                "sequences stay whole."
            )
        if self.lstm_units and self.recompute_advantages:
            raise ValueError("recompute_advantages: must be False for a policy with a memory (lstm_units), got True.")
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

    def gradient_steps(self, total_steps: int) -> int:
        """Count the gradient steps of a run."""
        return total_steps // self.batch_size * self.m_steps * self.minibatches

    @property
    def batch_size(self) -> int:
        """Samples a rollout holds."""
        return self.rollout_steps * self.num_envs
