"""PPO's hyperparameters."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from minerva.trainers.config import RunConfig


@dataclass(frozen=True, kw_only=True)
class PPOConfig(RunConfig):
    """Proximal policy optimisation for continuous actions."""

    # Networks

    policy_layer_sizes: tuple[int, ...] = (64, 64)
    """Units of the policy's hidden layers."""
    critic_layer_sizes: tuple[int, ...] = (64, 64)
    """Units of the critic's hidden layers."""
    log_std_init: float = 0.0
    """Where the logarithm of the policy's standard deviation starts."""

    # Collecting

    rollout_steps: int = 2048
    """Steps of each environment between updates."""
    normalize_obs: bool = True
    """Normalise observations by their running mean and variance."""
    normalize_reward: bool = True
    """Divide rewards by the running standard deviation of the discounted return."""
    advantage_estimator: Literal["gae", "returns"] = "gae"
    """Generalised advantage estimation, or bootstrapped returns minus values."""
    gamma: float = 0.99
    """Discount."""
    gae_lambda: float = 0.95
    """Decay of the trace in generalised advantage estimation."""

    # Updating

    update_epochs: int = 10
    """Passes over a rollout."""
    minibatch_size: int = 64
    """Samples a gradient step."""
    clip_ratio: float = 0.2
    """How far the probability ratio may move before its gradient is cut."""
    clip_vloss: bool = True
    """Clip the value loss alike."""
    norm_adv: bool = True
    """Normalise advantages in each minibatch."""
    recompute_advantages: bool = False
    """Estimate advantages and returns anew before each epoch, with the critic as it is then."""
    ent_coef: float = 0.0
    """Weight of the entropy bonus."""
    vf_coef: float = 0.5
    """Weight of the value loss."""
    max_grad_norm: float = 0.5
    """Gradients are scaled down to this norm."""
    target_kl: float | None = 0.02
    """No further epoch once the KL divergence has passed this; None or 0 for no early stop."""

    compile: Literal["auto", True, False] = "auto"
    """Compile the gradient step: several times as fast, after half a minute or so of compiling the first time. "auto"
    does so for a long run with Adam, where a C++ compiler is installed."""

    # Optimiser

    policy_lr: float = 3e-4
    """Learning rate of policy and critic."""
    anneal_lr: bool = True
    """Let the learning rate fall linearly to 0 over the run."""
    optimizer_type: Literal["adam", "sgd"] = "adam"
    """Adam (eps 1e-5) or stochastic gradient descent with momentum."""
    sgd_momentum: float = 0.9
    """Momentum with optimizer_type "sgd"."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self._layers("policy_layer_sizes", "critic_layer_sizes")
        self._at_least(1, "rollout_steps", "update_epochs", "minibatch_size")
        self._at_least(0, "ent_coef", "vf_coef")
        self._positive("clip_ratio", "max_grad_norm", "policy_lr")
        self._in_unit_interval("gamma", "gae_lambda", "sgd_momentum")
        self._one_of("advantage_estimator", "gae", "returns")
        self._one_of("optimizer_type", "adam", "sgd")
        if self.compile not in ("auto", True, False):
            raise ValueError(f"compile: must be 'auto', True or False, got {self.compile!r}.")
        if self.compile is True and self.optimizer_type != "adam":
            raise ValueError(f"compile: True needs optimizer_type 'adam', got {self.optimizer_type!r}; use 'auto'.")
        if self.minibatch_size > self.batch_size:
            raise ValueError(
                f"minibatch_size: must be at most rollout_steps * num_envs = {self.rollout_steps} * {self.num_envs} = "
                f"{self.batch_size}, got {self.minibatch_size}."
            )

    def gradient_steps(self, total_steps: int) -> int:
        """Count the gradient steps of a run that no epoch is left out of."""
        return total_steps // self.batch_size * self.update_epochs * -(-self.batch_size // self.minibatch_size)

    @property
    def batch_size(self) -> int:
        """Samples a rollout holds."""
        return self.rollout_steps * self.num_envs
