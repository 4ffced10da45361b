"""What a checkpoint says of its run, checked before anything is built from it."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, NamedTuple, Self

import torch
from gymnasium import Space
from torch.overrides import TorchFunctionMode

from minerva.checkpointing import FORMAT, CheckpointError, unusable
from minerva.environments.spaces import category_counts, flat_size, space_from_plain
from minerva.networks.heads import head_for
from minerva.trainers.config import RunConfig
from minerva.trainers.run import RunState
from minerva.utils.structure import StructureError, anything, check, dict_of, expect, optional, text


def _seconds(value: Any, name: str) -> None:
    """Check that a loaded value is a number of seconds."""
    check(value, 0.0, name)
    expect(0 <= value < math.inf, name, "must be a number of seconds, not negative", value)


_FORM = {
    "format": FORMAT,
    "versions": dict_of(""),
    "algorithm": "",
    "env_id": "",
    "seed": 0,
    "config": dict_of(anything),
    "observation_space": dict_of(anything),
    "action_space": dict_of(anything),
    "mask_dim": 0,
    "run": {
        **RunState().to_plain(),
        "evaluated_at": optional(0),
        "total_steps": optional(0),
        "seconds": _seconds,
        "evaluation_seconds": _seconds,
    },
    "replay": optional(dict_of(anything)),
    "state": dict_of(anything),
}


class SavedRun(NamedTuple):
    """A saved run, read from a checkpoint and checked; only `state` and `replay` are still as they were in the file."""

    path: Path
    env_id: str
    seed: int
    config: RunConfig
    observation_space: Space[Any]
    action_space: Space[Any]
    mask_dim: int
    run: RunState
    device: str  # the type of device that the networks were on
    weights: Mapping[str, torch.Tensor]  # of the agent: a module's `state_dict`
    state: dict[str, Any]  # the trainer's
    replay: dict[str, Any] | None  # where the replay buffer's files are

    @classmethod
    def read(cls, path: Path, checkpoint: dict[str, Any], config_class: type[RunConfig]) -> Self:
        """Check everything that a checkpoint says of its run, besides the trainer's state.

        Raises:
            CheckpointError: A part is missing or is not what it should be.
        """
        with _explained(path):
            check(checkpoint, _FORM, "the checkpoint")
            state = checkpoint["state"]
            for name, form in (("device", text), ("agent", dict_of(_tensor))):
                check(state.get(name), form, f"state.{name}")
            observation_space = space_from_plain(checkpoint["observation_space"], "observation_space")
            action_space = space_from_plain(checkpoint["action_space"], "action_space")
            flat_size(observation_space)
            head_for(action_space)
            mask_dim = checkpoint["mask_dim"]
            if mask_dim not in (0, sum(category_counts(action_space))):
                raise StructureError(f"mask_dim: must be one number per action, or 0, got {mask_dim}")
            return cls(
                path,
                checkpoint["env_id"],
                checkpoint["seed"],
                _config(checkpoint["config"], config_class),
                observation_space,
                action_space,
                mask_dim,
                RunState(**checkpoint["run"], out_dir=path.parent),
                state["device"],
                state["agent"],
                state,
                checkpoint["replay"],
            )

    def explained(self) -> AbstractContextManager[None]:
        """Return a context in which what is wrong with the checkpoint's content becomes a `CheckpointError`."""
        return _explained(self.path)

    @contextmanager
    def limited(self) -> Iterator[None]:
        """Refuse to build networks that are far larger than the weights that the checkpoint holds for them."""
        budget = 8 * sum(weight.numel() for weight in self.weights.values()) + 5_000 * len(self.weights) + 100_000
        with self.explained(), _LimitedSize(budget):
            yield


def _tensor(value: Any, name: str) -> None:
    if not isinstance(value, torch.Tensor):
        raise StructureError(f"{name}: must be a tensor, got a {type(value).__name__}")


def _config(plain: dict[str, Any], config_class: type[RunConfig]) -> RunConfig:
    """Build a config; a setting that an older Minerva did not have has its default."""
    try:
        json.dumps(plain)  # plain values alone: comparing tensors is no yes or no
        config = config_class.from_fields(None, plain)
        again = config.to_plain()
    except Exception as error:  # whatever a value of a wrong type leads to
        raise StructureError(f"config: must hold the settings of a run, got some that are refused ({error})") from error
    check(plain.get("env_kwargs", {}), dict_of(anything), "config.env_kwargs")
    for name, value in plain.items():
        check(value, again[name], f"config.{name}")
        if value != again[name]:
            raise StructureError(f"config.{name}: must be as it was written, got another value")
    return config


@contextmanager
def _explained(path: Path) -> Iterator[None]:
    try:
        yield
    except CheckpointError:
        raise
    except ValueError as error:
        raise unusable(path, error) from error


class _LimitedSize(TorchFunctionMode):
    """Count the numbers of the tensors that are made, and stop before there are too many."""

    _MAKE = frozenset((torch.empty, torch.zeros, torch.ones, torch.full, torch.rand, torch.randn))
    _CALL = 100  # what a tensor costs besides its numbers, counted in numbers

    def __init__(self, budget: int) -> None:
        super().__init__()
        self._left = budget

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in self._MAKE:
            size = kwargs.get("size", args[0] if args and isinstance(args[0], (tuple, list)) else args)
            self._left -= self._CALL + math.prod(part for part in size if isinstance(part, int))
            if self._left < 0:
                raise StructureError("config and spaces: must describe the networks of its weights, got larger ones")
        return func(*args, **kwargs)
