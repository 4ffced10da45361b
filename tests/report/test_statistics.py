from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

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


def test_the_interval_is_the_percentiles_of_every_resample() -> None:
    values = np.array([0.0, 1.0, 5.0, 7.0])
    # All 256 ways to draw four of four with replacement: the distribution that the bootstrap samples.
    means = np.sort([np.mean(draw) for draw in itertools.product(values, repeat=4)])
    s = summarize(values)
    # 2.5% of 256 are 6.4 draws: four zeros once, then three zeros and a one four times, then two of each, so 1/2;
    # above, four sevens once, then three sevens and a five four times, then two of each, so 6.
    assert means[6] == s.low == 0.5
    assert means[-7] == s.high == 6.0


def test_the_interval_agrees_with_the_normal_one_on_many_values() -> None:
    values = np.random.default_rng(1).normal(10.0, 2.0, 2_000)
    s = summarize(values)
    half = 1.96 * values.std() / math.sqrt(2_000)
    assert s.low == pytest.approx(s.mean - half, abs=0.1 * half)
    assert s.high == pytest.approx(s.mean + half, abs=0.1 * half)


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
    low, high = mean_interval(values, resamples=500)
    assert low.shape == high.shape == (4,)
    for k in range(3):
        assert low[k] < values[:, k].mean() < high[k]
    assert low[3] == high[3] == 0.1
    # Whole rows are resampled: a column that is another plus a constant has the same interval plus that constant.
    shifted = np.stack([values[:, 0], values[:, 0] + 7.0], axis=1)
    low, high = mean_interval(shifted, resamples=500)
    np.testing.assert_allclose(low[1] - low[0], 7.0)
    np.testing.assert_allclose(high[1] - high[0], 7.0)
    assert np.isnan(mean_interval(values[:1])[0]).all()
