"""The settings that every algorithm shares, and the checks that turn a mistake into a sentence."""

from __future__ import annotations

import dataclasses
import difflib
from dataclasses import dataclass, field
from numbers import Integral, Real
from typing import Any, Literal, Self

DEFAULT_TOTAL_STEPS = 1_000_000
"""Length of a run for which neither a preset nor the user names one."""


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """What surrounds the learning: environments, evaluation, checkpoints, tracking."""

    # Environments

    num_envs: int = 1
    """Environments that are stepped together."""
    vectorization: Literal["sync", "subprocess"] = "sync"
    """Step them one after the other in this process, or in worker processes."""
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
    wandb: Literal["off", "offline", "online"] = "off"
    """Weights & Biases."""
    wandb_project: str = "minerva"
    """Project name in Weights & Biases."""

    # Machine

    torch_threads: int | None = 1
    """Threads of torch on the CPU: one is fastest for small networks; None leaves torch's own setting."""

    def __post_init__(self) -> None:
        self._make_plain()
        self._at_least(1, "num_envs", "num_workers", "eval_interval", "eval_max_steps", "checkpoint_interval")
        self._at_least(0, "eval_episodes", "checkpoint_minutes")
        self._at_least(1, "torch_threads")
        self._one_of("vectorization", "sync", "subprocess")
        self._one_of("wandb", "off", "offline", "online")

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
        """Give the fields as plain values (tuples as lists), for checkpoints and JSON."""
        plain = dataclasses.asdict(self)
        return {name: list(value) if isinstance(value, tuple) else value for name, value in plain.items()}

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
            elif annotation == "bool" and not isinstance(value, bool):
                raise ValueError(f"{f.name}: must be True or False, got {value!r}.")
        object.__setattr__(self, "env_kwargs", _plain(self.env_kwargs, "env_kwargs"))


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
