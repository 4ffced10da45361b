from __future__ import annotations

import math

import numpy as np
import pytest

from benchmarks.coverage import coverage
from minerva.report import summarize
from minerva.report.statistics import mean_interval


def test_worked_by_hand() -> None:
    s = summarize([1, 2, 3, 4, 5, 6, 7, 100])
    assert s.n == 8
    assert s.mean == 16.0
    assert s.median == 4.5
    assert s.iqm == 4.5  # 1, 2 and 7, 100 are cut: the mean of 3, 4, 5, 6
    # squares of the deviations: 225 196 169 144 121 100 81 7056, 8092 in all
    assert s.std == pytest.approx(math.sqrt(8092 / 8), abs=1e-12)
    assert (s.minimum, s.maximum) == (1.0, 100.0)


@pytest.mark.parametrize(
    ("returns", "iqm"),
    [
        ([1.0, 2.0, 9.0], 4.0),  # a quarter of three is less than one: nothing is cut
        ([9.0, 1.0, 2.0, 4.0], 3.0),
        ([0.0, 1.0, 2.0, 3.0, 100.0], 2.0),  # one from each end
        ([0.0, 0.0, 1.0, 2.0, 3.0, 50.0, 60.0], 56 / 5),
    ],
)
def test_the_interquartile_mean(returns: list[float], iqm: float) -> None:
    assert summarize(returns).iqm == pytest.approx(iqm, abs=1e-12)


def test_the_interval_is_that_of_the_worked_example_of_a_textbook() -> None:
    # NIST/SEMATECH e-Handbook 1.3.5.2: 195 values with mean 9.261460, deviation 0.022789: 9.258242 to 9.264679.
    deviations = [*[1.0, -1.0] * 97, 0.0]
    values = 9.261460 + np.array(deviations) * 0.022789 / np.std(deviations, ddof=1)
    s = summarize(values)
    assert (s.low, s.high) == pytest.approx((9.258242, 9.264679), abs=1.5e-6)


def test_the_interval_of_three_values_by_hand() -> None:
    # t(0.975) with two degrees of freedom is 4.302653; the deviation of 1, 2, 3 is 1.
    s = summarize([1.0, 2.0, 3.0])
    assert (s.low, s.high) == pytest.approx((2 - 4.302653 / math.sqrt(3), 2 + 4.302653 / math.sqrt(3)), abs=1e-6)


@pytest.mark.parametrize("seeds", [3, 5, 10])
@pytest.mark.parametrize(("returns", "at_least", "at_most"), [("normal", 93.0, 97.0), ("gamma", 92.0, 97.0)])
def test_intervals_cover_the_mean_as_often_as_they_say(
    seeds: int, returns: str, at_least: float, at_most: float
) -> None:
    assert at_least <= 100 * coverage(returns, seeds, 40_000) <= at_most


def test_the_same_returns_give_the_same_interval() -> None:
    values = np.random.default_rng(2).normal(size=10)
    assert summarize(values) == summarize(list(values)) == summarize(values.reshape(2, 5))


def test_a_single_return() -> None:
    s = summarize([5])
    assert (s.n, s.mean, s.std, s.median, s.iqm, s.minimum, s.maximum) == (1, 5.0, 0.0, 5.0, 5.0, 5.0, 5.0)
    assert math.isnan(s.low)
    assert math.isnan(s.high)


@pytest.mark.parametrize("value", [0.1, 1000.0, 0.0, -1e-100, 1e100])
def test_equal_returns(value: float) -> None:
    s = summarize([value] * 7)
    assert (s.mean, s.median, s.low, s.high, s.std) == (value, value, value, value, 0.0)
    assert s.iqm == pytest.approx(value, rel=1e-15)


@pytest.mark.parametrize(
    ("returns", "message"), [([], "at least one value"), ([1.0, math.nan, math.inf], "got 2 of 3 that are NaN")]
)
def test_returns_that_cannot_be_summarized(returns: list[float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        summarize(returns)


def test_intervals_of_a_curve() -> None:
    values = np.random.default_rng(3).normal(size=(5, 4))
    values[:, 3] = 0.1
    low, high = mean_interval(values)
    assert low.shape == high.shape == (4,)
    for k in range(3):
        assert low[k] < values[:, k].mean() < high[k]
    assert low[3] == high[3] == 0.1
    assert np.isnan(mean_interval(values[:1])[0]).all()
