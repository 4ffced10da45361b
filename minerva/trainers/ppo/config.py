"""PPO's hyperparameters."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from minerva.trainers.config import RunConfig
from minerva.utils.schedules import Schedule, as_schedule, linear


@dataclass(frozen=True, kw_only=True)
class PPOConfig(RunConfig):
    """Proximal policy optimization."""

    # Networks

    policy_layer_sizes: tuple[int, ...] = (64, 64)
    """Units of the policy's hidden layers."""
    critic_layer_sizes: tuple[int, ...] = (64, 64)
    """Units of the critic's hidden layers."""
    log_std_init: float = 0.0
    """Where the logarithm of the policy's standard deviation starts, for continuous actions."""
    encoder: Literal["auto", "mlp", "cnn", "custom"] = "auto"
    """What turns observations into features: the hidden layers named above, convolutions in their place (Mnih et al.
    2015: 512 features, images scaled to [0, 1] and not normalized), or your own (make_encoder). "auto" takes
    convolutions for images."""
    shared_encoder: bool = False
    """Let the critic use the policy's encoder, and its memory."""
    lstm_units: int | None = None
    """Units of a memory (LSTM) over the encoder; None for no memory."""
    lstm_layer_norm: bool = False
    """Normalize inside the memory's cell, layer by layer."""

    # Collecting

    rollout_steps: int = 2048
    """Steps of each environment between updates."""
    normalize_obs: bool = True
    """Normalize observations by their running mean and variance."""
    normalize_reward: bool = True
    """Divide rewards by the running standard deviation of the discounted return."""
    advantage_estimator: Literal["gae", "returns"] = "gae"
    """Generalized advantage estimation, or bootstrapped returns minus values."""
    gamma: float = 0.99
    """Discount."""
    gae_lambda: float = 0.95
    """Decay of the trace in generalized advantage estimation."""

    # Updating

    update_epochs: int = 10
    """Passes over a rollout."""
    minibatch_size: int = 64
    """Samples a gradient step."""
    clip_ratio: Schedule = 0.2
    """How far the probability ratio may move before its gradient is cut. A number, or a schedule (see policy_lr)."""
    clip_vloss: bool = True
    """Clip the value loss alike."""
    clip_ratio_vf: Schedule | None = None
    """How far values may move with clip_vloss, on the scale of the returns; None for as far as clip_ratio says."""
    norm_adv: bool = True
    """Normalize advantages in each minibatch."""
    unbiased_std: bool = True
    """Take the unbiased standard deviation for that; else that of the samples themselves."""
    recompute_advantages: bool = False
    """Estimate advantages and returns anew before each epoch, with the critic as it is then."""
    ent_coef: Schedule = 0.0
    """Weight of the entropy bonus. A number, or a schedule (see policy_lr)."""
    vf_coef: float = 0.5
    """Weight of the value loss."""
    max_grad_norm: float | None = 0.5
    """Gradients are scaled down to this norm; None to leave them as they are."""
    target_kl: float | None = 0.02
    """No further epoch once the KL divergence has passed this; None or 0 for no early stop."""

    compile: Literal["auto", True, False] = "auto"
    """Compile the gradient step: several times as fast, after half a minute or so of compiling the first time. "auto"
    does so for a long run with Adam, where a C++ compiler is installed."""

    # Optimizer

    policy_lr: Schedule = 3e-4
    """Learning rate of policy and critic. A number, or a schedule: "lin_2.5e-4" falls to 0 in a line, "cos_2.5e-4"
    along a cosine, "exp_2.5e-4" to a hundredth, "const_2.5e-4" stays; from Python also a function of the share of
    training that remains."""
    anneal_lr: bool = True
    """Let a learning rate that is a number fall linearly to 0 over the run."""
    optimizer_type: Literal["adam", "sgd"] = "adam"
    """Adam (eps 1e-5) or stochastic gradient descent with momentum."""
    sgd_momentum: float = 0.9
    """Momentum with optimizer_type "sgd"."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self._layers("policy_layer_sizes", "critic_layer_sizes")
        self._at_least(1, "rollout_steps", "update_epochs", "minibatch_size")
        self._at_least(1, "lstm_units")
        self._at_least(0, "vf_coef")
        self._schedules("clip_ratio", "clip_ratio_vf", "policy_lr")
        self._schedules("ent_coef", positive=False)
        if self.max_grad_norm is not None:
            self._positive("max_grad_norm")
        self._one_of("encoder", "auto", "mlp", "cnn", "custom")
        self._in_unit_interval("gamma", "gae_lambda", "sgd_momentum")
        self._one_of("advantage_estimator", "gae", "returns")
        self._one_of("optimizer_type", "adam", "sgd")
        if self.compile not in ("auto", True, False):
            raise ValueError(f"compile: must be 'auto', True or False, got {self.compile!r}.")
        if self.compile is True and self.optimizer_type != "adam":
            raise ValueError(f"compile: True needs optimizer_type 'adam', got {self.optimizer_type!r}; use 'auto'.")
        if self.lstm_layer_norm and not self.lstm_units:
            raise ValueError("lstm_layer_norm: needs lstm_units, got True without them; give both.")
        if self.lstm_units:
            self._check_sequences()
        if self.minibatch_size > self.batch_size:
            raise ValueError(
                f"minibatch_size: must be at most rollout_steps * num_envs = {self.rollout_steps} * {self.num_envs} = "
                f"{self.batch_size}, got {self.minibatch_size}."
            )

    def _check_sequences(self) -> None:
        if self.compile is True:
            raise ValueError("compile: True is not for policies with a memory (lstm_units); use 'auto' or False.")
        environments, rest = divmod(self.minibatch_size, self.rollout_steps)
        if rest or not environments or self.num_envs % environments:
            raise ValueError(
                "minibatch_size: a policy with a memory (lstm_units) learns from whole environments, so it must be "
                f"rollout_steps = {self.rollout_steps} times a number that num_envs = {self.num_envs} is divisible by; "
                f"got {self.minibatch_size}, try {self.rollout_steps * self._near_divisor(environments)}."
            )

    def _near_divisor(self, wanted: int) -> int:
        divisors = [k for k in range(1, self.num_envs + 1) if self.num_envs % k == 0]
        return min(divisors, key=lambda k: abs(k - wanted))

    def policy_lr_at(self, remaining: float) -> float:
        """Give the learning rate where that share of training remains."""
        if self.anneal_lr and isinstance(self.policy_lr, float):
            return linear(self.policy_lr, remaining)
        return as_schedule("policy_lr", self.policy_lr)(remaining)

    def clip_ratio_at(self, remaining: float) -> float:
        """Give the clip range of the policy."""
        return as_schedule("clip_ratio", self.clip_ratio)(remaining)

    def clip_ratio_vf_at(self, remaining: float) -> float:
        """Give the clip range of the critic."""
        if self.clip_ratio_vf is None:
            return self.clip_ratio_at(remaining)
        return as_schedule("clip_ratio_vf", self.clip_ratio_vf)(remaining)

    def ent_coef_at(self, remaining: float) -> float:
        """Give the weight of the entropy bonus."""
        return as_schedule("ent_coef", self.ent_coef)(remaining)

    def gradient_steps(self, total_steps: int) -> int:
        """Count the gradient steps of a run that no epoch is left out of."""
        return total_steps // self.batch_size * self.update_epochs * -(-self.batch_size // self.minibatch_size)

    @property
    def batch_size(self) -> int:
        """Samples a rollout holds."""
        return self.rollout_steps * self.num_envs
