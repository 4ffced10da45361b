"""Seeds as they are written: ``1-5``, or ``1,3,7-9``."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from minerva.utils.ranges import LARGEST_INT, shown

MAX_SEEDS = 100_000
_PART = re.compile(r"\s*(\d+)\s*(?:-\s*(\d+)\s*)?", re.ASCII)


def parse_seeds(seeds: str | Sequence[int]) -> tuple[int, ...]:
    """Return the seeds that a text or a list names, in its order.

    Args:
        seeds: Numbers and ranges with commas between them, such as "1-5" or "1,3,7-9"; or whole numbers.

    Raises:
        ValueError: It names no seeds, one twice, or too many.
    """
    rule = "seeds: must be numbers and ranges such as 1-5 or 1,3,7-9"
    found: list[int] = []
    if isinstance(seeds, str):
        for part in seeds.split(","):
            match = _PART.fullmatch(part)
            if match is None:
                raise ValueError(f"{rule}, got {shown(seeds)}.")
            first, last = int(match[1]), int(match[2] or match[1])
            if last < first:
                raise ValueError(f"{rule}, each range from the smaller number to the larger one, got {shown(seeds)}.")
            if len(found) + last - first >= MAX_SEEDS:
                raise ValueError(f"seeds: must be at most {MAX_SEEDS:,}, got {shown(seeds)}.")
            found += range(first, last + 1)
    else:
        if not isinstance(seeds, (list, tuple, range)) or not seeds or len(seeds) > MAX_SEEDS:
            raise ValueError(f"{rule}, or a list of 1 to {MAX_SEEDS:,} whole numbers, got {shown(seeds)}.")
        found += seeds
    for seed in found:
        if isinstance(seed, bool) or not isinstance(seed, int) or not 0 <= seed <= LARGEST_INT:
            raise ValueError(f"seeds: each must be a whole number from 0 to {LARGEST_INT}, got {shown(seed)}.")
    if len(set(found)) < len(found):
        twice = next(seed for k, seed in enumerate(found) if seed in found[:k])
        raise ValueError(f"seeds: each must be given once, got {twice} twice; leave one out.")
    return tuple(found)


def seeds_as_text(seeds: Iterable[int]) -> str:
    """Write seeds as "1-4,11"."""
    runs: list[list[int]] = []
    for seed in sorted(seeds):
        if runs and seed == runs[-1][-1] + 1:
            runs[-1].append(seed)
        else:
            runs.append([seed])
    return ",".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)
