"""Action masks: find out whether an environment has them, and write them to the end of a row."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
from numpy.typing import NDArray

from minerva.environments.checks import WrongValueError, check_reset
from minerva.environments.spaces import category_counts

MaskSource = Callable[[dict[str, Any]], Any]
"""A function from the info of a reset or step to the mask, in the environment's own form."""


class MaskError(WrongValueError):
    """An environment returned a mask that no policy can act with, or no mask after it returned one before."""


def find_masks(env: gymnasium.Env[Any, Any]) -> bool:
    """Return whether an environment has action masks: a method ``action_masks()`` or ``info["action_mask"]``.

    A reset shows the latter. Only `Discrete` and `MultiDiscrete` action spaces can have masks.
    """
    if not category_counts(env.action_space):
        return False
    return env.has_wrapper_attr("action_masks") or "action_mask" in check_reset(env.reset(seed=0))[1]


def mask_source(env: gymnasium.Env[Any, Any]) -> MaskSource:
    """Return a function that reads the newest action mask of an environment that has masks."""
    if env.has_wrapper_attr("action_masks"):
        method = env.get_wrapper_attr("action_masks")
        return lambda info: method()
    return _from_info


def _from_info(info: dict[str, Any]) -> Any:
    if "action_mask" not in info:
        raise MaskError('it returned no info["action_mask"], but did so at its first reset; always return one')
    return info["action_mask"]


def write_mask(mask: Any, counts: tuple[int, ...], row: NDArray[Any], ended: bool) -> None:
    """Write an action mask (one array, or one array per entry of the action) as zeros and ones.

    Args:
        mask: The mask that the environment returned.
        counts: Number of categories of each entry of the action.
        row: Destination, ``[K]``.
        ended: Whether the episode is over. No action follows then, so a mask that allows nothing is replaced by one
            that allows everything: a policy evaluated there needs finite probabilities.

    Raises:
        MaskError: The mask has the wrong length, or allows no category for some entry of the action.
    """
    parts = [np.ravel(part) for part in mask] if isinstance(mask, (tuple, list)) else [np.ravel(mask)]
    flat = np.concatenate(parts) if parts else np.zeros(0)
    if flat.size != row.size:
        raise MaskError(f"its action mask must have {row.size} entries, one per category, got {flat.size}")
    row[:] = flat != 0
    start = 0
    for i, count in enumerate(counts):
        part = row[start : start + count]
        start += count
        if not part.any():
            if not ended:
                where = f" (entry {i} of the action)" if len(counts) > 1 else ""
                raise MaskError(f"its action mask allows nothing{where}; every state but the last needs an action")
            part[:] = 1
