from __future__ import annotations

import math

import pytest
import torch

from minerva.networks import duals
from minerva.networks.duals import Duals, DualVariable, inverse_softplus, positive


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
    dual = DualVariable(10.0, (3,))
    assert isinstance(dual.parameter, torch.nn.Parameter)
    assert dual.parameter.tolist() == [10.0] * 3  # the start is the parameter's, before the softplus
    assert dual().tolist() == pytest.approx([math.log1p(math.exp(10.0))] * 3)
    assert dual().requires_grad
    assert [name for name, _ in dual.named_parameters()] == ["parameter"]
    scalar = DualVariable(1)
    assert scalar.parameter.shape == () and scalar.parameter.dtype == torch.float32
    assert scalar().item() == pytest.approx(math.log1p(math.e))


def test_the_floor() -> None:
    assert duals.MINIMUM == -18.0
    given = Duals({"low": -30.0, "at": -18.0, "high": 2.0})
    assert [given.parameter_of(name).item() for name in given] == [-18.0, -18.0, 2.0]
    assert min(given()).item() == pytest.approx(math.exp(-18.0) + 1e-8, rel=1e-4)


def test_variables_by_name() -> None:
    given = Duals({"policy": 1.0, "mean": 10.0}, {"mean": (3,)})
    assert [name for name, _ in given.named_parameters()] == ["policy.parameter", "mean.parameter"]
    policy, mean = given()
    assert policy.item() == pytest.approx(math.log1p(math.e)) and policy.shape == ()
    assert mean.tolist() == pytest.approx([math.log1p(math.exp(10.0))] * 3)
    assert given.parameter_of("mean") is given["mean"].parameter


def test_a_variable_at_its_floor_still_has_a_slope() -> None:
    dual = DualVariable(-18.0, (2,))
    (slope,) = torch.autograd.grad(dual().sum(), dual.parameter)
    assert slope.tolist() == pytest.approx([math.exp(-18.0)] * 2, rel=1e-4)
