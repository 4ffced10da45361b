from __future__ import annotations

import math

import pytest
import torch

from minerva.networks import duals
from minerva.networks.duals import Duals, inverse_softplus, positive


@pytest.mark.formula("minerva.networks.duals", r"x = \eta + \log(1 - e^{-\eta})")
@pytest.mark.parametrize("value", [1e-6, 0.01, 1.0, 5.0, 100.0, 1000.0])
def test_the_inverse_of_the_softplus(value: float) -> None:
    x = inverse_softplus(value)
    assert max(x, 0.0) + math.log1p(math.exp(-abs(x))) == pytest.approx(value, rel=1e-9)
    assert positive(torch.tensor(x, dtype=torch.float64)).item() == pytest.approx(value + 1e-8, rel=1e-8)


@pytest.mark.formula("minerva.networks.duals", r"\eta = \log(1 + e^x) + 10^{-8}")
def test_positive_by_hand() -> None:
    found = positive(torch.tensor([0.0, 10.0, 1000.0, -18.0, -1e9], dtype=torch.float64))
    expected = [math.log(2), math.log1p(math.exp(10)), 1000.0, math.log1p(math.exp(-18)), 0.0]
    assert found.tolist() == pytest.approx([x + 1e-8 for x in expected], rel=1e-9)


def test_slope_is_the_sigmoid() -> None:
    x = torch.linspace(-15, 15, 31, dtype=torch.float64, requires_grad=True)
    (slope,) = torch.autograd.grad(positive(x).sum(), x)
    torch.testing.assert_close(slope, torch.sigmoid(x.detach()))


def test_a_variable_for_each_dimension() -> None:
    duals = Duals({"each": 10.0, "one": 1}, {"each": (3,)})
    assert duals.get_parameter("each").tolist() == [10.0] * 3  # the start is the parameter's, before the softplus
    each, scalar = duals()
    assert each.tolist() == pytest.approx([math.log1p(math.exp(10.0))] * 3)
    assert each.requires_grad
    assert scalar.shape == () and scalar.dtype == torch.float32
    assert scalar.item() == pytest.approx(math.log1p(math.e))


def test_the_floor() -> None:
    assert duals.MINIMUM == -18.0
    given = Duals({"low": -30.0, "at": -18.0, "high": 2.0})
    assert [parameter.item() for parameter in given.parameters()] == [-18.0, -18.0, 2.0]
    assert min(given()).item() == pytest.approx(math.exp(-18.0) + 1e-8, rel=1e-4)


def test_variables_by_name() -> None:
    given = Duals({"policy": 1.0, "mean": 10.0}, {"mean": (3,)})
    assert [name for name, _ in given.named_parameters()] == ["policy", "mean"]
    policy, mean = given()
    assert policy.item() == pytest.approx(math.log1p(math.e)) and policy.shape == ()
    assert mean.tolist() == pytest.approx([math.log1p(math.exp(10.0))] * 3)


def test_a_variable_at_its_floor_still_has_a_slope() -> None:
    dual = Duals({"low": -18.0}, {"low": (2,)})
    (slope,) = torch.autograd.grad(dual()[0].sum(), dual.get_parameter("low"))
    assert slope.tolist() == pytest.approx([math.exp(-18.0)] * 2, rel=1e-4)
