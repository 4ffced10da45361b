"""Fit a preset to what the user sets besides: other numbers of environments need rollouts of another length."""

from __future__ import annotations

import math
from collections.abc import Mapping
from numbers import Integral
from typing import Any

SHORTEST_ROLLOUT = 16
"""Steps per environment, below which a rollout is not cut; a preset with shorter ones keeps its own."""

SIZES = ("num_envs", "rollout_steps", "minibatch_size", "minibatches")


def fit(preset: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings that have to change so that a preset fits what the user gave.

    - With another number of environments, `rollout_steps` changes so that a rollout has about as many samples as the
      preset's, but not below `SHORTEST_ROLLOUT`.
    - PPO's `minibatch_size` is never above a rollout; with an LSTM it consists of whole environments.
    - V-MPO's `minibatches` divide a rollout; with an LSTM it is one, and advantages are not recomputed.

    What the user gave never changes: where it contradicts itself, the config says so.

    Args:
        preset: All settings without what the user gave: the preset's, on top of the algorithm's defaults.
        given: What the user gave.
    """
    whole = {**preset, **given}
    if "rollout_steps" not in whole:
        return {}  # MPO learns from single transitions
    if not all(map(_is_count, [whole["lstm_units"] or 1, *(whole[name] for name in SIZES if name in whole)])):
        return {}  # the config refuses it
    changes: dict[str, Any] = {}

    def change(name: str, value: Any) -> None:
        if name in whole and name not in given and whole[name] != value:
            changes[name] = whole[name] = value

    recurrent = bool(whole["lstm_units"])
    if recurrent and "minibatches" in whole:
        change("minibatches", 1)
        change("recompute_advantages", False)
    if whole["num_envs"] != preset["num_envs"]:
        change("rollout_steps", _rollout_steps(preset, whole))
    steps, envs = whole["rollout_steps"], whole["num_envs"]
    if "minibatch_size" in whole and recurrent:
        wanted = whole["minibatch_size"] / steps
        change("minibatch_size", steps * min(_divisors(envs), key=lambda count: abs(count - wanted)))
    elif "minibatch_size" in whole:
        change("minibatch_size", min(whole["minibatch_size"], steps * envs))
    if "minibatches" in whole and "minibatches" not in given:
        change("minibatches", next(n for n in range(whole["minibatches"], 0, -1) if steps * envs % n == 0))
    return changes


def fit_note(preset: Mapping[str, Any], given: Mapping[str, Any], changes: Mapping[str, Any]) -> str | None:
    """Return a sentence about the settings that `fit` changed; None if it changed none."""
    if not changes:
        return None
    whole = {**preset, **given, **changes}
    changed = ", ".join(f"{name} = {value} in place of {preset[name]}" for name, value in changes.items())
    causes = [name for name in ("num_envs", "rollout_steps", "lstm_units") if name in given]
    samples = whole["num_envs"] * whole["rollout_steps"]
    cause = " and ".join(f"{name} = {given[name]}" for name in causes)
    return f"To fit {cause}: {changed} (rollouts of {samples:,} samples)."


def _rollout_steps(preset: Mapping[str, Any], whole: Mapping[str, Any]) -> int:
    samples = max(preset["num_envs"] * preset["rollout_steps"], whole.get("minibatch_size", 0))
    steps = max(math.ceil(samples / whole["num_envs"]), min(SHORTEST_ROLLOUT, preset["rollout_steps"]))
    minibatches = whole.get("minibatches", 1)
    unit = minibatches // math.gcd(minibatches, whole["num_envs"])  # so that the minibatches divide the rollout
    rounded: int = math.ceil(steps / unit) * unit
    return rounded


def _divisors(number: int) -> list[int]:
    small = [k for k in range(1, math.isqrt(number) + 1) if number % k == 0]
    return sorted({*small, *(number // k for k in small)})


def _is_count(value: Any) -> bool:
    return isinstance(value, Integral) and 1 <= int(value) < 2**31
