from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from minerva.environments.tasks.arrays import clip, concatenate, norm, tolerance
from tests.environments.optional import needs

CASES: list[dict[str, Any]] = [
    {},
    {"low": -0.5, "high": 0.25},
    {"low": 0.5, "high": float("inf"), "margin": 2.0},
    {"margin": 1.5, "value_at_margin": 0.3},
    {"low": 1.0, "high": float("inf"), "margin": 1.0, "sigmoid": "linear", "value_at_margin": 0.5},
    {"margin": 1.0, "sigmoid": "linear", "value_at_margin": 0.0},
    {"margin": 1.0, "sigmoid": "quadratic", "value_at_margin": 0.0},
    {"low": -1.0, "high": -0.5, "margin": 0.3, "sigmoid": "quadratic", "value_at_margin": 0.2},
]


@needs("dm_control")
@pytest.mark.parametrize("case", CASES)
def test_tolerance_is_dm_controls(case: dict[str, Any]) -> None:
    from dm_control.utils import rewards

    x = np.linspace(-3, 3, 241)
    theirs = dict(case)
    bounds = theirs.pop("low", 0.0), theirs.pop("high", 0.0)
    expected = rewards.tolerance(x, bounds=bounds, **theirs)
    np.testing.assert_allclose(tolerance(x, **case), expected, rtol=1e-15, atol=1e-15)
    np.testing.assert_allclose(tolerance(torch.from_numpy(x), **case).numpy(), expected, rtol=1e-15, atol=1e-15)


def test_functions_take_arrays_and_tensors() -> None:
    numbers = np.array([[3.0, 4.0], [0.0, -2.0]])
    for array in (numbers, torch.from_numpy(numbers)):
        assert norm(array).tolist() == [5.0, 2.0]
        assert clip(array, -1.0, 3.5).tolist() == [[3.0, 3.5], [0.0, -1.0]]
        assert concatenate(array[:, 0], array.reshape(2, 1, 2)).tolist() == [[3.0, 3.0, 4.0], [0.0, 0.0, -2.0]]
