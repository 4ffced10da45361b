from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from stable_baselines3.common.utils import explained_variance as sb3_explained_variance

from minerva.objectives import critic
from tests.objectives import oracle_ppo as oracle


def tensors(*arrays: Any) -> list[torch.Tensor]:
    return [torch.tensor(np.asarray(array), dtype=torch.float64) for array in arrays]


@pytest.mark.formula("minerva.objectives.critic", r"\mathrm{EV} = 1 - \frac{\mathrm{Var}[R - V]}{\mathrm{Var}[R]}")
def test_explained_variance_by_hand() -> None:
    # R = 0, 2, 4, 6 (variance 5); R - V = 0, 2, 0, 2 (variance 1).
    targets, values = tensors([0.0, 2.0, 4.0, 6.0], [0.0, 0.0, 4.0, 4.0])
    assert critic.explained_variance(targets, values, torch.ones(4).double()).item() == pytest.approx(1 - 1 / 5)


@pytest.mark.formula("minerva.objectives.critic", r"\mathrm{EV} = 1 - \frac{\mathrm{Var}[R - V]}{\mathrm{Var}[R]}")
def test_explained_variance_against_the_oracle_and_stable_baselines3() -> None:
    rng = np.random.default_rng(1)
    targets, noise = rng.normal(size=(30, 4)), rng.normal(size=(30, 4)) + 5
    values = targets + 0.6 * noise
    weights = (rng.random((30, 4)) < 0.8).astype(np.float64)
    found = critic.explained_variance(*tensors(targets, values, weights)).item()
    assert found == pytest.approx(oracle.explained_variance(targets, values, weights), rel=1e-12)
    every = critic.explained_variance(*tensors(targets, values, np.ones((30, 4)))).item()
    assert every == pytest.approx(sb3_explained_variance(values.ravel(), targets.ravel()), rel=1e-12)


def test_explained_variance_of_known_values() -> None:
    targets, weights = torch.randn(50, dtype=torch.float64), torch.ones(50).double()
    assert critic.explained_variance(targets, targets, weights).item() == 1.0
    assert critic.explained_variance(targets, targets + 7, weights).item() == pytest.approx(1.0)  # offset ignored
    assert critic.explained_variance(targets, torch.zeros(50).double(), weights).item() == pytest.approx(0.0)
    assert critic.explained_variance(targets, 2 * targets, weights).item() == pytest.approx(0.0)
    assert critic.explained_variance(targets, -targets, weights).item() == pytest.approx(-3.0)


def test_explained_variance_is_nan_where_returns_do_not_vary() -> None:
    values = torch.randn(6, dtype=torch.float64)
    assert math.isnan(critic.explained_variance(torch.full((6,), 2.0).double(), values, torch.ones(6).double()).item())
    assert math.isnan(critic.explained_variance(torch.full((6,), 2.0).double(), torch.full((6,), 2.0), torch.ones(6)))
    # They vary only in a row that does not count.
    targets, weights = tensors([2.0, 2.0, 9.0], [1.0, 1.0, 0.0])
    assert math.isnan(critic.explained_variance(targets, values[:3], weights).item())
