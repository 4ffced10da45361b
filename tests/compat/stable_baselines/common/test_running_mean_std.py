from __future__ import annotations

import numpy as np
import pytest

from minerva.compat.stable_baselines.common.running_mean_std import RunningMeanStd


def test_moments_are_those_of_all_batches() -> None:
    rng = np.random.default_rng(0)
    batches = [rng.normal(3, 2, (n, 2, 3)) for n in (1, 5, 40)]
    statistics = RunningMeanStd(epsilon=0.0, shape=(2, 3))
    for batch in batches[:2]:
        statistics.update(batch)
    statistics.update_from_moments(batches[2].mean(0), batches[2].var(0), 40)
    everything = np.concatenate(batches)
    np.testing.assert_allclose(statistics.mean, everything.mean(0))
    np.testing.assert_allclose(statistics.var, everything.var(0))
    assert statistics.count == 46


def test_the_first_numbers_hardly_count() -> None:
    statistics = RunningMeanStd()
    assert [float(statistics.mean), float(statistics.var), statistics.count] == [0, 1, 1e-4]
    statistics.update(np.array([4.0, 8.0]))
    assert statistics.mean == pytest.approx(6, rel=1e-3)
    assert statistics.var == pytest.approx(4, rel=1e-2)
