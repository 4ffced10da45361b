"""The settings that algorithms share, and the checks that turn a mistake into a sentence."""

from __future__ import annotations

import copy
import dataclasses
import difflib
from dataclasses import dataclass, field
from numbers import Integral, Real
from typing import Any, Literal, Self

from minerva.utils.schedules import FUNCTION, as_schedule, plain_schedule

DEFAULT_TOTAL_STEPS = 1_000_000
"""Length of a run if neither a preset nor the user names one."""


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """What every algorithm has: environments, evaluation, checkpoints, tracking, the optimizer."""

    # Environments

    num_envs: int = 1
    """Environments that are stepped together."""
    backend: Literal["auto", "gymnasium", "envpool"] = "gymnasium"
    """What steps them: Gymnasium, EnvPool (threads in C++), or auto for the faster one. With Gymnasium a resumed run
    continues bit for bit, with EnvPool it starts fresh episodes."""
    pool_threads: int | None = None
    """Threads of EnvPool. By default one per core, and never more than environments."""
    vectorization: Literal["sync", "subprocess"] = "sync"
    """With Gymnasium: step them one after the other in this process, or in worker processes."""
    num_workers: int | None = None
    """Worker processes with vectorization "subprocess". By default one per core."""
    env_kwargs: dict[str, Any] = field(default_factory=dict)
    """Arguments for the environment's constructor."""
    obs_clip: float = 10.0
    """Observations that are normalized (normalize_obs) are clipped to this many standard deviations."""

    # Evaluation

    eval_episodes: int = 15
    """Deterministic episodes per evaluation; 0 for no evaluation at all."""
    eval_interval: int | None = None
    """Environment steps between evaluations. By default there are about 30 of them in a run."""
    eval_max_steps: int = 100_000
    """Evaluation episodes are cut after this many steps, for environments without a time limit."""

    # Checkpoints

    checkpoint_interval: int | None = None
    """Environment steps between checkpoints, besides those after each evaluation. By default there are no others."""
    checkpoint_minutes: float = 5.0
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
    sgd_momentum: float = 0.9
    """Momentum with optimizer_type "sgd"."""
    compile: Literal["auto", True, False] = "auto"
    """Compile updates: several times as fast, after up to a minute of compiling. "auto" does so for a long run where a
    C++ compiler is installed. On a GPU updates are captured as CUDA graphs, unless this is False."""

    # Machine

    torch_threads: int | None = None
    """Threads of torch on the CPU. By default one per 256 rows of a gradient step (sampled actions are rows too), for
    images all, and never more than cores."""

    def __post_init__(self) -> None:
        self._make_plain()
        self._at_least(1, "num_envs", "num_workers", "eval_interval", "eval_max_steps", "checkpoint_interval")
        self._at_least(0, "eval_episodes", "checkpoint_minutes")
        self._at_least(1, "torch_threads")
        self._positive("obs_clip")
        self._at_least(1, "pool_threads")
        self._one_of("backend", "auto", "gymnasium", "envpool")
        self._one_of("vectorization", "sync", "subprocess")
        if self.backend == "envpool" and self.vectorization == "subprocess":
            raise ValueError(
                "vectorization: must be 'sync' with backend 'envpool', which has threads in place of worker processes; "
                "got 'subprocess'. Leave it out, or use backend 'gymnasium'."
            )
        self._one_of("wandb", "off", "offline", "online")
        self._one_of("optimizer_type", "adam", "sgd")
        self._in_unit_interval("sgd_momentum")
        if self.compile not in ("auto", True, False):
            raise ValueError(f"compile: must be 'auto', True or False, got {self.compile!r}.")
        if self.full_tensorboard_log and not self.tensorboard:
            raise ValueError("full_tensorboard_log: needs tensorboard, got True without it; switch both on.")

    @classmethod
    def from_fields(cls, base: Self | None, fields: dict[str, Any]) -> Self:
        """Build a config from keyword arguments, on top of another config where one is given.

        Raises:
            ValueError: A name is not a field, or a value breaks a rule.
        """
        known = [f.name for f in dataclasses.fields(cls)]
        for name in fields:
            if name not in known:
                near = difflib.get_close_matches(name, known, n=3)
                hint = f"Did you mean {', '.join(near)}?" if near else f"The fields are {', '.join(known)}."
                raise ValueError(f"{name}: not a setting of {cls.__name__}. {hint}")
        return dataclasses.replace(base, **fields) if base is not None else cls(**fields)

    def to_plain(self) -> dict[str, Any]:
        """Return the fields as plain values (tuples as lists, functions by a word), for checkpoints and JSON."""
        plain: dict[str, Any] = {}
        for f in dataclasses.fields(self):
            value = getattr(self, f.name)
            if value is not None and _holds_schedule(f):
                plain[f.name] = plain_schedule(value)
            else:
                plain[f.name] = list(value) if isinstance(value, tuple) else copy.deepcopy(value)
        return plain

    def _at_least(self, minimum: float, *names: str) -> None:
        for name in names:
            value = getattr(self, name)
            if value is not None and not value >= minimum:
                raise ValueError(f"{name}: must be at least {minimum}, got {value}.")

    def _positive(self, *names: str) -> None:
        for name in names:
            value = getattr(self, name)
            if not value > 0:
                raise ValueError(f"{name}: must be greater than 0, got {value}.")

    def _in_unit_interval(self, *names: str) -> None:
        for name in names:
            value = getattr(self, name)
            if not 0 <= value <= 1:
                raise ValueError(f"{name}: must lie in [0, 1], got {value}.")

    def _one_of(self, name: str, *choices: str) -> None:
        value = getattr(self, name)
        if value not in choices:
            raise ValueError(f"{name}: must be {' or '.join(repr(choice) for choice in choices)}, got {value!r}.")

    def _schedules(self, *names: str, positive: bool = True) -> None:
        optional = {f.name for f in dataclasses.fields(self) if "None" in str(f.type)}
        for name in names:
            value = getattr(self, name)
            # A config that was saved with a function can still be acted with; training asks for the function again.
            was_function = isinstance(value, str) and value == FUNCTION
            if not was_function and not (value is None and name in optional):
                as_schedule(name, value, positive=positive)(1.0)

    def _layers(self, *names: str) -> None:
        for name in names:
            value = getattr(self, name)
            sizes = tuple(value) if isinstance(value, (list, tuple)) else ()
            if not sizes or not all(_is_whole(size) and size > 0 for size in sizes):
                raise ValueError(
                    f"{name}: must name at least one layer of at least one unit, such as (64, 64); got {value!r}."
                )
            object.__setattr__(self, name, tuple(int(size) for size in sizes))

    def _make_plain(self) -> None:
        # A string or a float where a whole number belongs would surface much later, far from its cause. NumPy's numbers
        # are taken for what they are, and turned into Python's: a checkpoint holds plain values alone.
        for f in dataclasses.fields(self):
            value, annotation = getattr(self, f.name), str(f.type)
            if value is None and "None" in annotation:
                continue
            if annotation.startswith("int"):
                if not _is_whole(value):
                    raise ValueError(f"{f.name}: must be a whole number, got {value!r}.")
                object.__setattr__(self, f.name, int(value))
            elif annotation.startswith("float"):
                if isinstance(value, bool) or not isinstance(value, Real):
                    raise ValueError(f"{f.name}: must be a number, got {value!r}.")
                object.__setattr__(self, f.name, float(value))
            elif _holds_schedule(f):
                if not isinstance(value, bool) and isinstance(value, Real):  # `_schedules` looks at the others
                    object.__setattr__(self, f.name, float(value))
            elif annotation == "bool" and not isinstance(value, bool):
                raise ValueError(f"{f.name}: must be True or False, got {value!r}.")
        object.__setattr__(self, "env_kwargs", _plain(self.env_kwargs, "env_kwargs"))


@dataclass(frozen=True, kw_only=True)
class OnPolicyConfig(RunConfig):
    """What PPO and V-MPO have in common: an actor-critic, and rollouts."""

    # Networks

    encoder: Literal["auto", "mlp", "cnn", "custom"] = "auto"
    """What turns observations into features: the hidden layers, convolutions in their place (Mnih et al. 2015: 512
    features, images scaled to [0, 1] and not normalized), or your own (make_encoder). "auto" takes convolutions for
    images."""
    shared_encoder: bool = False
    """Let the critic use the policy's encoder, and its recurrent core."""
    lstm_units: int | None = None
    """Units of a recurrent (LSTM) core over the encoder. By default there is none."""
    lstm_layer_norm: bool = False
    """Apply layer normalization inside the LSTM's cells."""

    # Collecting

    rollout_steps: int = 2048
    """Steps per environment between updates."""
    normalize_obs: bool = True
    """Normalize observations by their running mean and variance."""
    normalize_reward: bool = False
    """Divide rewards by the running standard deviation of the discounted return."""
    advantage_estimator: Literal["returns", "dae", "gae"] = "gae"
    """Bootstrapped returns minus values, one-step temporal differences, or generalized advantage estimation."""
    gamma: float = 0.99
    """Discount."""
    gae_lambda: float = 0.95
    """Decay of the trace in generalized advantage estimation."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self._at_least(1, "rollout_steps", "lstm_units")
        self._in_unit_interval("gamma", "gae_lambda")
        self._one_of("encoder", "auto", "mlp", "cnn", "custom")
        if self.lstm_layer_norm and not self.lstm_units:
            raise ValueError("lstm_layer_norm: needs lstm_units, got True without them; give both.")
        if self.lstm_units and self.compile is True:
            raise ValueError("compile: True is not for recurrent policies (lstm_units); use 'auto' or False.")

    @property
    def batch_size(self) -> int:
        """Samples per rollout."""
        return self.rollout_steps * self.num_envs

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
    """What an algorithm that learns from a replay buffer has."""

    # Replay

    replay_size: int = 1_000_000
    """Transitions that the replay buffer holds."""
    update_after: int = 1_000
    """Transitions that are collected before the first update."""
    batch_size: int = 256
    """Transitions, or sequences, per update."""
    updates_per_step: float = 1.0
    """Updates for each transition collected."""
    update_interval: int = 1
    """Transitions collected between rounds of updates; a round makes update_interval * updates_per_step of them."""
    overlap: bool = False
    """Choose the next action before a round of updates, not after it: a GPU then learns while the environments are
    stepped. The policy that acts is one round older."""
    n_step: int = 1
    """Rewards that a target sums before it bootstraps."""
    normalize_obs: bool = False
    """Normalize observations by their running mean and variance."""
    gamma: float = 0.99
    """Discount."""

    # Logging

    log_interval: int = 1_000
    """Environment steps between two lines of the log; each holds the newest update's metrics."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self._at_least(1, "replay_size", "batch_size", "update_interval", "n_step", "log_interval")
        self._at_least(0, "update_after")
        self._positive("updates_per_step")
        self._in_unit_interval("gamma")
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


def _holds_schedule(f: dataclasses.Field[Any]) -> bool:
    return str(f.type).startswith("Schedule")


def _is_whole(value: Any) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool)


def _plain(value: Any, name: str) -> Any:
    """Turn a value into one of Python's plain ones, as a checkpoint can hold them."""
    if value is None or isinstance(value, (bool, str)):
        return value
    if isinstance(value, Integral):
        return int(value)
    if isinstance(value, Real):
        return float(value)
    if isinstance(value, (list, tuple)):
        return type(value)(_plain(item, f"{name}[{i}]") for i, item in enumerate(value))
    if isinstance(value, dict) and all(isinstance(key, str) for key in value):
        return {key: _plain(item, f"{name}[{key!r}]") for key, item in value.items()}
    raise ValueError(
        f"{name}: must be a plain value (numbers, text, lists, dicts), got {value!r}. "
        "For anything else, pass a function that makes the environment in place of its id."
    )
