"""Action masks: which environments have them, and how they come to stand at the end of a row."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
from numpy.typing import NDArray

from minerva.environments.spaces import category_counts

MaskSource = Callable[[dict[str, Any]], Any]
"""From the info of a reset or step to the mask, in whatever form the environment gives it."""


class MaskError(ValueError):
    """An environment gave a mask that no policy can act with, or none where it gave one before."""


def find_masks(env: gymnasium.Env[Any, Any]) -> bool:
    """Whether an environment gives action masks: a method ``action_masks()``, or ``info["action_mask"]``.

    The latter is found by a reset. Only spaces of categories (`Discrete`, `MultiDiscrete`) can have masks.
    """
    if not category_counts(env.action_space):
        return False
    return env.has_wrapper_attr("action_masks") or "action_mask" in env.reset(seed=0)[1]


def mask_source(env: gymnasium.Env[Any, Any]) -> MaskSource:
    """Make the function that asks one environment, which gives masks, for the newest."""
    if env.has_wrapper_attr("action_masks"):
        method = env.get_wrapper_attr("action_masks")
        return lambda info: method()
    return _from_info


def _from_info(info: dict[str, Any]) -> Any:
    if "action_mask" not in info:
        raise MaskError('it gave no info["action_mask"], but did so after its first reset: it must always give one')
    return info["action_mask"]


def write_mask(mask: Any, counts: tuple[int, ...], row: NDArray[Any], ended: bool) -> None:
    """Write a mask (one array, or one for each entry of the action) as zeros and ones.

    Args:
        mask: As the environment gave it.
        counts: Categories of each entry of the action.
        row: Where to, ``[K]``.
        ended: Whether the episode is over. No action follows, so a mask that allows nothing says nothing: it becomes
            one that allows everything, and a policy that is asked for a value there has its probabilities.

    Raises:
        MaskError: The mask has another length, or leaves no choice for some entry of the action.
    """
    parts = [np.ravel(part) for part in mask] if isinstance(mask, (tuple, list)) else [np.ravel(mask)]
    flat = np.concatenate(parts) if parts else np.zeros(0)
    if flat.size != row.size:
        raise MaskError(f"its action mask must have {row.size} entries, one for each category, got {flat.size}")
    row[:] = flat != 0
    start = 0
    for i, count in enumerate(counts):
        part = row[start : start + count]
        start += count
        if not part.any():
            if not ended:
                where = f" (entry {i} of the action)" if len(counts) > 1 else ""
                raise MaskError(f"its action mask allows nothing{where}: every state but the last needs an action")
            part[:] = 1
