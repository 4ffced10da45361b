from __future__ import annotations

import pytest
import torch

from minerva.objectives.weighted import weighted_mean, weighted_sum, weighted_variance


def t64(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


@pytest.mark.formula("minerva.objectives.weighted", r"\mathbb{E}[x] = \frac{\sum_b w_b x_b}{\sum_b w_b}")
def test_mean_by_hand() -> None:
    assert weighted_mean(t64(1, 2, 30), t64(1, 1, 0)).item() == 1.5
    assert weighted_mean(t64(1, 2, 3), t64(1, 1, 1)).item() == 2.0
    assert weighted_mean(t64(1, 2), t64(0, 1)).item() == 2.0
    assert weighted_mean(t64(1, 2), t64(0, 0)).item() == 0.0
    x = t64(1, 2, 30).requires_grad_()
    (gradient,) = torch.autograd.grad(weighted_mean(x, t64(1, 1, 0)), x)
    assert gradient.tolist() == [0.5, 0.5, 0.0]


@pytest.mark.formula("minerva.objectives.weighted", r"\mathrm{Var}[x] = \mathbb{E}\left[(x - \mathbb{E}[x])^2\right]")
def test_variance_by_hand() -> None:
    # Mean 3; squares 4, 0, 4 over three samples, not two; the last sample does not count.
    assert weighted_variance(t64(1, 3, 5, 100), t64(1, 1, 1, 0)).item() == pytest.approx(8 / 3)
    assert weighted_variance(t64(7, 1), t64(1, 0)).item() == 0.0
    assert weighted_variance(t64(7, 1), t64(0, 0)).item() == 0.0


def test_rows_without_weight_have_no_influence() -> None:
    x, w = t64(1, 2, 4, 5), t64(1, 0, 1, 1)
    for function in (weighted_mean, weighted_variance):
        other = x.clone()
        other[1] = 1e9
        assert function(x, w) == function(other, w)


def test_the_parts_of_a_mean_sum_to_it() -> None:
    assert weighted_sum(t64(1, 2, 30), t64(0.5, 0.25, 0)).item() == 1.0
    x, w = t64(1, 2, 30, 4), t64(1, 0, 1, 1)
    parts = [weighted_sum(x[part], w[part] / 3) for part in (slice(0, 2), slice(2, 4))]
    assert sum(parts).item() == pytest.approx(weighted_mean(x, w).item())  # type: ignore[union-attr]
