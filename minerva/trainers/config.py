"""The settings that algorithms share. `check_fields` reads type and range of a field from its annotation."""

from __future__ import annotations

import copy
import dataclasses
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, Self

from minerva.utils.fields import check_fields
from minerva.utils.ranges import NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt, Range, UnitInterval
from minerva.utils.schedules import plain_schedule
from minerva.utils.suggestions import suggest

_ARGUMENTS = ("seed", "device", "make_encoder")
"""Arguments of trainers besides the settings, which are suggested where they were meant."""
_ARGUMENTS_OF_TRAIN = ("total_steps", "out_dir", "callbacks")
DEFAULT_TOTAL_STEPS = 1_000_000
"""Length of a run if neither a preset nor the user names one."""

# Bounds on what is allocated or repeated: far larger numbers would end in a crash or never end.
MAX_ENVS = 2**16
"""Environments are Python objects of 50 kB and more, made one after the other."""
MAX_THREADS = 1024
"""OpenMP ends the process where the operating system refuses it a thread."""
MAX_ROLLOUT_STEPS = 10**7
"""Each step of a rollout has a view of its own in Python."""
MAX_ROWS = 2**31 - 1
"""Rows of eight bytes would take 16 GiB."""
MAX_UNITS = 2**14
"""The weights between two such layers take 1 GiB."""
MAX_REPEATS = 100_000
"""How often an update may use the same data."""

FREE_FIELDS = frozenset(
    {
        "checkpoint_interval", "checkpoint_minutes", "console", "full_tensorboard_log", "num_workers", "tensorboard",
        "vectorization", "wandb", "wandb_project",
    }
)  # fmt: skip
"""Fields that may differ when a run is started or resumed again: they change neither weights nor logged values."""

Threads = Annotated[int, Range(1, MAX_THREADS)]
Rows = Annotated[int, Range(1, MAX_ROWS)]
Repeats = Annotated[int, Range(1, MAX_REPEATS)]
LayerSizes = Annotated[tuple[int, ...], Range(1, MAX_UNITS)]


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """The settings of every algorithm: environments, evaluation, checkpoints, tracking, the optimizer."""

    # Environments

    num_envs: Annotated[int, Range(1, MAX_ENVS)] = 1
    """Environments that are stepped together."""
    backend: Literal["auto", "gymnasium", "mujoco", "envpool"] = "gymnasium"
    """What steps them: Gymnasium; MuJoCo, for tasks that it has (threads); EnvPool (threads in C++); or auto: MuJoCo
    where it has the task, EnvPool for Atari where that is faster, else Gymnasium. A resumed run continues bit for bit,
    but with EnvPool it starts fresh episodes."""
    pool_threads: Threads | None = None
    """Threads of MuJoCo or EnvPool. By default one per core, and never more than environments."""
    vectorization: Literal["sync", "subprocess"] = "sync"
    """With Gymnasium: step them one after the other in this process, or in worker processes."""
    num_workers: Threads | None = None
    """Worker processes with vectorization "subprocess". By default one per core."""
    env_kwargs: dict[str, Any] = field(default_factory=dict)
    """Arguments for the environment's constructor."""
    obs_clip: PositiveFloat = 10.0
    """Observations that are normalized (normalize_obs) are clipped to this many standard deviations."""

    # Evaluation

    eval_episodes: Annotated[int, Range(0, MAX_ENVS)] = 15
    """Deterministic episodes per evaluation; 0 for no evaluation at all."""
    eval_interval: PositiveInt | None = None
    """Environment steps between evaluations. By default there are about 30 of them in a run."""
    eval_max_steps: PositiveInt = 100_000
    """Evaluation episodes are cut after this many steps, for environments without a time limit."""

    # Checkpoints

    checkpoint_interval: PositiveInt | None = None
    """Environment steps between checkpoints, besides those after each evaluation. By default there are no others."""
    checkpoint_minutes: NonNegativeFloat = 5.0
    """Minutes after which a checkpoint is written in any case; 0 for never."""

    # Tracking

    console: bool = True
    """Show progress: a bar in a terminal, plain lines elsewhere."""
    tensorboard: bool = False
    """Write TensorBoard event files into the run's folder."""
    full_tensorboard_log: bool = False
    """Add histograms of weights and inputs and images of observations to TensorBoard, where the algorithm has them."""
    wandb: Literal["off", "offline", "online"] = "off"
    """Weights & Biases."""
    wandb_project: str = "minerva"
    """Project name in Weights & Biases."""

    # Optimizer

    optimizer_type: Literal["adam", "sgd"] = "adam"
    """Adam (eps 1e-5) or stochastic gradient descent with momentum."""
    sgd_momentum: UnitInterval = 0.9
    """Momentum with optimizer_type "sgd"."""
    compile: Literal["auto", True, False] = "auto"
    """Compile updates: several times as fast, after up to a minute of compiling. "auto" does so for a long run where a
    C++ compiler is installed. On a GPU updates are captured as CUDA graphs, unless this is False."""

    # Machine

    torch_threads: Threads | None = None
    """Threads of torch on the CPU. By default one per 256 rows of a gradient step (sampled actions are rows too), for
    images all, and never more than cores."""

    def __post_init__(self) -> None:
        check_fields(self)
        if self.backend in ("mujoco", "envpool") and self.vectorization == "subprocess":
            raise ValueError(
                f"vectorization: must be 'sync' with backend '{self.backend}', which has threads in place of worker "
                "processes; got 'subprocess'. Leave it out, or use backend 'gymnasium'."
            )
        if self.full_tensorboard_log and not self.tensorboard:
            raise ValueError("full_tensorboard_log: needs tensorboard, got True without it; switch both on.")

    def check_ranks(self, count: int) -> None:
        """Raise a `ValueError` if a run with these settings cannot be trained by so many processes together."""
        raise ValueError(
            f"ranks: this algorithm is trained by one process, got {count} of them (torchrun); start one, or use ppo "
            "or vmpo."
        )

    @classmethod
    def from_fields(cls, base: Self | None, fields: dict[str, Any]) -> Self:
        """Build a config from keyword arguments, on top of another config where one is given.

        Raises:
            ValueError: A name is not a field, or a value breaks a rule.
        """
        known = [f.name for f in dataclasses.fields(cls)]
        for name in fields:
            if name not in known:
                near = suggest(name, [*known, *_ARGUMENTS, *_ARGUMENTS_OF_TRAIN])
                hint = f"Did you mean {' or '.join(near)}?" if near else f"The fields are {', '.join(known)}."
                if name in _ARGUMENTS_OF_TRAIN:
                    hint = f"It is an argument of train: trainer.train({name}=…)."
                raise ValueError(f"{name}: not a setting of {cls.__name__}. {hint}")
        return dataclasses.replace(base, **fields) if base is not None else cls(**fields)

    def check_length(self, total_steps: int) -> None:
        """Raise a `ValueError` if a run of so many steps would learn nothing."""
        raise NotImplementedError

    def final_step(self, total_steps: int) -> int:
        """Return the environment step at which a run of so many steps ends."""
        raise NotImplementedError

    def to_plain(self) -> dict[str, Any]:
        """Return the fields as plain values (tuples as lists, functions by a word), for checkpoints and JSON."""
        plain: dict[str, Any] = {}
        for f in dataclasses.fields(self):
            value = getattr(self, f.name)
            if callable(value):
                plain[f.name] = plain_schedule(value)
            else:
                plain[f.name] = list(value) if isinstance(value, tuple) else copy.deepcopy(value)
        return plain


@dataclass(frozen=True, kw_only=True)
class OnPolicyConfig(RunConfig):
    """The settings that PPO and V-MPO share: an actor-critic, and rollouts."""

    # Networks

    encoder: Literal["auto", "mlp", "cnn", "custom"] = "auto"
    """What turns observations into features: the hidden layers, convolutions in their place (Mnih et al. 2015: 512
    features, images scaled to [0, 1] and not normalized), or your own (make_encoder). "auto" takes convolutions for
    images."""
    shared_encoder: bool = False
    """Let the critic use the policy's encoder, and its recurrent core."""
    lstm_units: Annotated[int, Range(1, MAX_UNITS)] | None = None
    """Units of a recurrent (LSTM) core over the encoder. By default there is none."""
    lstm_layer_norm: bool = False
    """Apply layer normalization inside the LSTM's cells."""

    # Collecting

    rollout_steps: Annotated[int, Range(1, MAX_ROLLOUT_STEPS)] = 2048
    """Steps per environment between updates."""
    normalize_obs: bool = True
    """Normalize observations by their running mean and variance."""
    normalize_reward: bool = False
    """Divide rewards by the running standard deviation of the discounted return."""
    advantage_estimator: Literal["returns", "dae", "gae"] = "gae"
    """Bootstrapped returns minus values, one-step temporal differences, or generalized advantage estimation."""
    gamma: UnitInterval = 0.99
    """Discount."""
    gae_lambda: UnitInterval = 0.95
    """Decay of the trace in generalized advantage estimation."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.batch_size > MAX_ROWS:
            raise ValueError(
                f"rollout_steps: must be at most {MAX_ROWS // self.num_envs:,} with num_envs = {self.num_envs}, got "
                f"{self.rollout_steps}."
            )
        if self.lstm_layer_norm and not self.lstm_units:
            raise ValueError("lstm_layer_norm: needs lstm_units, got True without them; give both.")
        if self.lstm_units and self.compile is True:
            raise ValueError("compile: True is not for recurrent policies (lstm_units); use 'auto' or False.")

    def check_ranks(self, count: int) -> None:
        if self.num_envs % count:
            raise ValueError(
                f"num_envs: must be divisible by the number of processes that share them, {count}, got "
                f"{self.num_envs}; try {-(-self.num_envs // count) * count}."
            )

    @property
    def batch_size(self) -> int:
        """Samples per rollout."""
        return self.rollout_steps * self.num_envs

    def check_length(self, total_steps: int) -> None:
        if total_steps < self.batch_size:
            raise ValueError(
                f"total_steps: must be at least rollout_steps * num_envs = {self.batch_size:,}, one rollout, got "
                f"{total_steps:,}: nothing would be learned."
            )

    def final_step(self, total_steps: int) -> int:
        return total_steps // self.batch_size * self.batch_size

    @property
    def passes(self) -> int:
        """Passes over a rollout per update."""
        raise NotImplementedError

    @property
    def minibatch_rows(self) -> int:
        """Samples per gradient step."""
        raise NotImplementedError

    def gradient_steps(self, total_steps: int) -> int:
        """Return the gradient steps of a run without early stops."""
        return total_steps // self.batch_size * self.passes * -(-self.batch_size // self.minibatch_rows)


@dataclass(frozen=True, kw_only=True)
class OffPolicyConfig(RunConfig):
    """The settings of an algorithm that learns from a replay buffer."""

    # Replay

    replay_size: Rows = 1_000_000
    """Transitions that the replay buffer holds."""
    update_after: NonNegativeInt = 1_000
    """Transitions that are collected before the first update."""
    batch_size: Rows = 256
    """Transitions, or sequences, per update."""
    updates_per_step: PositiveFloat = 1.0
    """Updates for each transition collected."""
    update_interval: PositiveInt = 1
    """Transitions collected between rounds of updates; a round makes update_interval * updates_per_step of them."""
    overlap: bool = False
    """Choose the next action before a round of updates, not after it: a GPU then learns while the environments are
    stepped. The policy that acts is one round older."""
    n_step: Rows = 1
    """Rewards that a target sums before it bootstraps."""
    normalize_obs: bool = False
    """Normalize observations by their running mean and variance."""
    gamma: UnitInterval = 0.99
    """Discount."""

    # Logging

    log_interval: PositiveInt = 1_000
    """Environment steps between two lines of the log; each holds the newest update's metrics."""

    def __post_init__(self) -> None:
        super().__post_init__()
        held = self.replay_size // self.num_envs
        if held < 1:
            raise ValueError(
                f"replay_size: must be at least num_envs = {self.num_envs}, one transition of each environment; "
                f"got {self.replay_size}."
            )
        if self.batch_size > held * self.num_envs:
            raise ValueError(
                f"batch_size: must be at most replay_size = {self.replay_size}, of which the replay buffer "
                f"will hold {held * self.num_envs} (as many of each environment); got {self.batch_size}."
            )

    def check_length(self, total_steps: int) -> None:
        if total_steps <= self.update_after:
            raise ValueError(
                f"total_steps: must be more than update_after = {self.update_after:,}, the steps before an update, got "
                f"{total_steps:,}: nothing would be learned."
            )

    def final_step(self, total_steps: int) -> int:
        return -(-total_steps // self.num_envs) * self.num_envs
