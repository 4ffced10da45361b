"""misc_util and math_util."""

from __future__ import annotations

import argparse
import random

import gymnasium
import numpy as np
import pytest
import torch

from minerva.compat.stable_baselines.common import (
    boolean_flag,
    discount,
    discount_with_boundaries,
    explained_variance,
    explained_variance_2d,
    flatten_arrays,
    set_global_seeds,
    unflatten_vector,
    zipsame,
)
from minerva.compat.stable_baselines.common.math_util import safe_mean, scale_action, unscale_action
from minerva.compat.stable_baselines.common.misc_util import flatten_lists


def test_every_global_generator_is_seeded() -> None:
    def draws() -> list[float]:
        set_global_seeds(5)
        return [random.random(), np.random.rand(), torch.rand(1).item()]  # noqa: NPY002

    states = random.getstate(), np.random.get_state(), torch.get_rng_state()  # noqa: NPY002
    assert draws() == draws()
    assert draws()[0] == random.Random(5).random()
    random.setstate(states[0])
    np.random.set_state(states[1])  # noqa: NPY002
    torch.set_rng_state(states[2])


def test_small_helpers() -> None:
    assert list(zipsame([1, 2], "ab")) == [(1, "a"), (2, "b")]
    with pytest.raises(AssertionError, match=r"must have equal lengths, got \[2, 1\]"):
        zipsame([1, 2], "a")
    assert flatten_lists([[1, 2], [3]]) == [1, 2, 3]
    parser = argparse.ArgumentParser()
    boolean_flag(parser, "play-back", default=True)
    assert parser.parse_args([]).play_back is True
    assert parser.parse_args(["--no-play-back"]).play_back is False


def test_discounted_sums() -> None:
    assert discount(np.array([1.0, 2.0, 4.0]), 0.5).tolist() == [3.0, 4.0, 4.0]
    starts = np.array([1.0, 0.0, 1.0])
    assert discount_with_boundaries(np.array([1.0, 2.0, 4.0]), starts, 0.5).tolist() == [2.0, 2.0, 4.0]


def test_explained_variance() -> None:
    y = np.array([1.0, 2.0, 3.0])
    assert explained_variance(y, y) == 1.0
    assert explained_variance(np.zeros(3), y) == 0.0
    assert explained_variance(-y, y) == -3.0
    assert np.isnan(explained_variance(y, np.ones(3)))
    columns = np.stack([y, np.ones(3)], axis=1)
    assert explained_variance_2d(columns, columns).tolist() == [1.0, 0.0]
    assert safe_mean([1.0, 2.0]) == 1.5
    assert np.isnan(safe_mean([]))
    with pytest.raises(AssertionError, match="y_true: must have 1 dimension"):
        explained_variance(y, columns)


def test_vectors_and_actions() -> None:
    arrays = [np.arange(4).reshape(2, 2), np.array([9])]
    flat = flatten_arrays(arrays)
    assert flat.tolist() == [0, 1, 2, 3, 9]
    assert [part.tolist() for part in unflatten_vector(flat, [(2, 2), (1,)])] == [[[0, 1], [2, 3]], [9]]
    space = gymnasium.spaces.Box(np.array([0.0, -4.0]), np.array([1.0, 0.0]), dtype=np.float64)
    assert scale_action(space, np.array([0.75, -4.0])).tolist() == [0.5, -1.0]
    assert unscale_action(space, np.array([0.5, -1.0])).tolist() == [0.75, -4.0]
