from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest
import torch

from minerva.utils.schedules import FUNCTION, as_schedule, plain_schedule

FRACTIONS = (1.0, 0.75, 0.5, 1 / 3, 0.1, 0.0)


@pytest.mark.parametrize("value", [0.2, "const_0.2", np.float64(0.2), lambda remaining: 0.2])
def test_constant(value: Any) -> None:
    assert [as_schedule("clip_ratio", value)(remaining) for remaining in FRACTIONS] == [0.2] * len(FRACTIONS)


@pytest.mark.parametrize("value", [3, np.int64(3), "const_3", "const_3e0"])
def test_whole_numbers_are_floats_too(value: Any) -> None:
    result = as_schedule("x", value)(0.5)
    assert result == 3.0 and type(result) is float


@pytest.mark.formula("minerva.utils.schedules.linear", "x(s) = x_0 s")
def test_linear() -> None:
    rate = as_schedule("policy_lr", "lin_2.5e-4")
    assert [rate(remaining) for remaining in (1.0, 0.5, 0.25, 0.0)] == [2.5e-4, 1.25e-4, 6.25e-5, 0.0]
    # Bit for bit PPO's learning rate annealing (Huang et al. 2022).
    assert [rate(1 - u / 7) for u in range(7)] == [2.5e-4 * (1 - u / 7) for u in range(7)]


@pytest.mark.formula("minerva.utils.schedules.exponential", r"x(s) = x_0 \cdot 100^{s - 1}")
def test_exponential() -> None:
    rate = as_schedule("policy_lr", "exp_4.0")
    # By hand: a tenth after half the run, a hundredth at its end, and the square root of a tenth after a quarter.
    assert [rate(remaining) for remaining in (1.0, 0.5, 0.0)] == pytest.approx([4.0, 0.4, 0.04])
    assert rate(0.75) ** 2 == pytest.approx(4.0 * 0.4)


@pytest.mark.formula("minerva.utils.schedules.cosine", r"x(s) = \tfrac{1}{2} x_0 (1 - \cos \pi s)")
def test_cosine() -> None:
    rate = as_schedule("policy_lr", "cos_4.0")
    assert (rate(1.0), rate(0.0)) == (4.0, 0.0)
    # By hand: cos(pi/3) = 1/2, cos(pi/2) = 0, cos(2 pi/3) = -1/2.
    assert [rate(remaining) for remaining in (1 / 3, 1 / 2, 2 / 3)] == pytest.approx([1.0, 2.0, 3.0], abs=1e-15)
    # torch's annealing to 0, from step 0 to 20.
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=4.0)
    annealing = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=20)
    for step in range(20):
        assert rate(1 - step / 20) == pytest.approx(annealing.get_last_lr()[0], rel=1e-12)
        optimizer.step()
        annealing.step()


def test_a_function_gets_the_remaining_fraction_and_its_result_becomes_a_float() -> None:
    received: list[float] = []

    def rate(remaining: float) -> Any:
        received.append(remaining)
        return torch.tensor(0.5) * remaining

    result = as_schedule("policy_lr", rate)(0.5)
    assert (result, type(result), received) == (0.25, float, [0.5])
    assert as_schedule("policy_lr", lambda remaining: 0)(0.5) == 0.0


@pytest.mark.parametrize(
    "wrong",
    ["", "fast", "lin", "lin_", "_3e-4", "linear_3e-4", "lin-3e-4", "lin_fast", "3e-4", "LIN_1", None, True, [1.0], 1j],
)
def test_values_that_are_not_schedules(wrong: Any) -> None:
    with pytest.raises(ValueError) as caught:
        as_schedule("policy_lr", wrong)
    assert str(caught.value) == (
        "policy_lr: must be a number, a string such as 'lin_2.5e-4', 'cos_3e-4', 'exp_1e-3' or 'const_0.2', or a "
        f"function of the remaining fraction; got {wrong!r}."
    )


@pytest.mark.parametrize(
    ("wrong", "rule"),
    [
        (math.nan, "finite"), (math.inf, "finite"), ("lin_nan", "finite"), ("cos_inf", "finite"),
        (-0.1, "at least 0"), ("const_-0.1", "at least 0"), ("lin_-1e-9", "at least 0"),
    ],
)  # fmt: skip
def test_numbers_out_of_range(wrong: Any, rule: str) -> None:
    with pytest.raises(ValueError) as caught:
        as_schedule("clip_ratio", wrong)
    assert str(caught.value) == f"clip_ratio: must be {rule}, got {wrong!r}."


@pytest.mark.parametrize("value", [0, 0.0, "const_0", "lin_0.0", "cos_0"])
def test_zero_is_an_error_where_it_must_be_positive(value: Any) -> None:
    assert as_schedule("ent_coef", value)(1.0) == 0.0
    with pytest.raises(ValueError, match=f"policy_lr: must be greater than 0, got {value!r}"):
        as_schedule("policy_lr", value, positive=True)
    # A function may return 0: the learning rate may warm up from 0.
    assert as_schedule("policy_lr", lambda remaining: 1 - remaining, positive=True)(1.0) == 0.0


@pytest.mark.parametrize("result", [-0.1, math.nan, math.inf, -math.inf])
def test_a_function_that_leaves_the_range(result: float) -> None:
    schedule = as_schedule("policy_lr", lambda remaining: 0.1 if remaining > 0.5 else result)
    assert schedule(1.0) == 0.1
    with pytest.raises(ValueError) as caught:
        schedule(0.25)
    assert str(caught.value) == (
        f"policy_lr: its function must return a finite number that is at least 0, got {result} for the remaining "
        "fraction 0.25."
    )


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        (lambda remaining: None, "TypeError"),
        (lambda remaining: [1.0, 2.0], "TypeError"),
        (lambda remaining: 1 / (remaining - 1), "ZeroDivisionError: "),
        (lambda: 0.1, "TypeError: .* takes 0 positional arguments"),
    ],
)
def test_a_function_that_fails(function: Any, reason: str) -> None:
    with pytest.raises(
        ValueError, match=rf"policy_lr: its function must return a number .* fraction 1.0, .* \({reason}"
    ):
        as_schedule("policy_lr", function)(1.0)


@pytest.mark.parametrize(
    ("value", "plain"),
    [
        (3e-4, 3e-4),
        (np.float32(0.5), 0.5),
        (1, 1.0),
        ("lin_2.5e-4", "lin_2.5e-4"),
        (np.str_("cos_1"), "cos_1"),
        (abs, "function"),
    ],
)
def test_the_plain_form(value: Any, plain: float | str) -> None:
    result = plain_schedule(value)
    assert result == plain and type(result) is type(plain)
    assert json.loads(json.dumps(result)) == plain
    assert plain_schedule(result) == plain


def test_a_saved_function_must_be_given_again() -> None:
    assert plain_schedule(lambda remaining: remaining) == FUNCTION
    with pytest.raises(ValueError, match=r"policy_lr: was a function, .* give the function again\."):
        as_schedule("policy_lr", FUNCTION)
