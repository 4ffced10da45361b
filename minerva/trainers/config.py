"""The settings that every algorithm shares, and the checks that turn a mistake into a sentence."""

from __future__ import annotations

import copy
import dataclasses
import difflib
from dataclasses import dataclass, field
from numbers import Integral, Real
from typing import Any, Literal, Self

from minerva.utils.schedules import FUNCTION, as_schedule, plain_schedule

DEFAULT_TOTAL_STEPS = 1_000_000
"""Length of a run for which neither a preset nor the user names one."""


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """What surrounds the learning: environments, evaluation, checkpoints, tracking."""

    # Environments

    num_envs: int = 1
    """Environments that are stepped together."""
    backend: Literal["auto", "gymnasium", "envpool"] = "gymnasium"
    """What steps them: Gymnasium, EnvPool (threads in C++), or auto for the faster one. With Gymnasium a resumed run
    goes on bit for bit, with EnvPool it starts fresh episodes."""
    pool_threads: int | None = None
    """Threads of EnvPool; None for one a core, and never more than environments."""
    vectorization: Literal["sync", "subprocess"] = "sync"
    """With Gymnasium: step them one after the other in this process, or in worker processes."""
    num_workers: int | None = None
    """Worker processes with vectorization "subprocess"; None for one a core."""
    env_kwargs: dict[str, Any] = field(default_factory=dict)
    """Arguments for the environment's constructor."""

    # Evaluation

    eval_episodes: int = 15
    """Deterministic episodes an evaluation; 0 for no evaluation at all."""
    eval_interval: int | None = None
    """Environment steps between evaluations; None for about 30 of them in a run."""
    eval_max_steps: int = 100_000
    """An evaluation episode is cut here, for environments without a time limit."""

    # Checkpoints

    checkpoint_interval: int | None = None
    """Environment steps between checkpoints beside those after each evaluation; None for none."""
    checkpoint_minutes: float = 5.0
    """Minutes after which a checkpoint is due in any case; 0 for never."""

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

    # Machine

    torch_threads: int | None = None
    """Threads of torch on the CPU; None for one for every 256 rows that a gradient step works on (sampled actions are
    rows as well), for images all, and never more than cores."""

    def __post_init__(self) -> None:
        self._make_plain()
        self._at_least(1, "num_envs", "num_workers", "eval_interval", "eval_max_steps", "checkpoint_interval")
        self._at_least(0, "eval_episodes", "checkpoint_minutes")
        self._at_least(1, "torch_threads")
        self._at_least(1, "pool_threads")
        self._one_of("backend", "auto", "gymnasium", "envpool")
        self._one_of("vectorization", "sync", "subprocess")
        if self.backend == "envpool" and self.vectorization == "subprocess":
            raise ValueError(
                "vectorization: must be 'sync' with backend 'envpool', which has threads in place of worker processes; "
                "got 'subprocess'. Leave it out, or use backend 'gymnasium'."
            )
        self._one_of("wandb", "off", "offline", "online")
        if self.full_tensorboard_log and not self.tensorboard:
            raise ValueError("full_tensorboard_log: needs tensorboard, got True without it; switch both on.")

    @classmethod
    def from_fields(cls, base: Self | None, fields: dict[str, Any]) -> Self:
        """Make a config of keyword arguments, on top of another config where one is given.

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
        """Give the fields as plain values (tuples as lists, functions by a word), for checkpoints and JSON."""
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
        "Give a function that makes the environment in place of its id for anything else."
    )
