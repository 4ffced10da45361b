"""Thousands of generated bad inputs: each must be refused with one sentence.

Every module of this package covers one kind of input and has a function ``results(count, seed)``, which yields the
result of each of `count` inputs. ``python -m benchmarks.bad_input`` runs all of them.
"""

from __future__ import annotations

from typing import Literal, NamedTuple


class Result(NamedTuple):
    """What became of one bad input."""

    kind: str  # "config", "command_line", "acting", "checkpoints" or "environments"
    case: str  # the input, as a line from which it can be repeated
    verdict: Literal["refused", "accepted", "traceback", "crash", "hang"]
    message: str  # what the user was told
