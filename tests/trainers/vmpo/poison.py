"""Losses and gradients of V-MPO's update that are not finite at a chosen step."""

from __future__ import annotations

import math
from typing import Any

import pytest
from torch import Tensor

from minerva.trainers.vmpo import update

POISONS = {
    "temperature": "temperature_loss",
    "temperature's gradient": "temperature_loss",
    "multipliers": "alpha_loss",
    "loss": "value_loss",
    "gradient": "value_loss",
}
"""What is poisoned, and the function that computes it."""


def poison(what: str, at: int, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Poison one call of many; the list that is returned grows with each of them."""
    honest, calls = getattr(update, POISONS[what]), []

    def poisoned(*arguments: Any) -> Any:
        calls.append(arguments)
        result = honest(*arguments)
        if len(calls) != at:
            return result
        if isinstance(result, Tensor):
            value = arguments[0]
            # The root's value is 0, and its slope is not a number.
            return result + math.nan if what == "loss" else result + (0 * value).sqrt()
        loss, aux = result
        if what == "temperature's gradient":
            return loss + (0 * arguments[0]()[0].sum()).sqrt(), aux
        # The loss alone: its gradient stays finite.
        return loss + math.nan, aux

    monkeypatch.setattr(update, POISONS[what], poisoned)
    return calls
