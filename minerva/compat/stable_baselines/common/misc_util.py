"""Small helpers of scripts."""

from __future__ import annotations

import argparse
import random
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np


def set_global_seeds(seed: int) -> None:
    """Seed the global random numbers of Python, NumPy and torch.

    Args:
        seed: The seed.
    """
    import torch  # worker processes do without

    random.seed(seed)
    np.random.seed(seed % 2**32)  # noqa: NPY002 - scripts draw from it
    torch.manual_seed(seed)


def zipsame(*seqs: Sequence[Any]) -> Iterator[tuple[Any, ...]]:
    """Zip sequences, which must have equal lengths."""
    if len({len(sequence) for sequence in seqs}) > 1:
        raise AssertionError(f"seqs: must have equal lengths, got {[len(sequence) for sequence in seqs]}.")
    return zip(*seqs, strict=True)


def boolean_flag(
    parser: argparse.ArgumentParser, name: str, default: bool = False, help_msg: str | None = None
) -> None:
    """Add the options ``--name`` and ``--no-name`` to a parser.

    Args:
        parser: The parser.
        name: Name of the option.
        default: Value without either.
        help_msg: What it does.
    """
    destination = name.replace("-", "_")
    parser.add_argument(f"--{name}", action="store_true", default=default, dest=destination, help=help_msg)
    parser.add_argument(f"--no-{name}", action="store_false", dest=destination)


def mpi_rank_or_zero() -> int:
    """Return 0: there is one process."""
    return 0


def flatten_lists(listoflists: Sequence[Sequence[Any]]) -> list[Any]:
    """Return the elements of all lists in one."""
    return [element for inner in listoflists for element in inner]
