from __future__ import annotations

from collections import OrderedDict
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from minerva.environments.spaces import (
    action_converter,
    category_counts,
    flat_size,
    flat_writer,
    row_dtype,
    space_from_plain,
    space_to_plain,
)

NESTED = spaces.Dict(
    {
        "joints": spaces.Box(-1, 1, (2, 3), np.float64),
        "mode": spaces.Discrete(3, start=2),
        "inner": spaces.Tuple([spaces.MultiBinary([2, 2]), spaces.Dict({"n": spaces.MultiDiscrete([2, 4])})]),
    }
)
SPACES: dict[str, gymnasium.Space[Any]] = {
    "Box": spaces.Box(-2, 3, (2, 3), np.float32),
    "Box of one number": spaces.Box(0, 1, ()),
    "Box of bytes": spaces.Box(0, 255, (2, 2), np.uint8),
    "Box without bounds": spaces.Box(np.array([-np.inf, 0]), np.array([1, np.inf]), dtype=np.float64),
    "Discrete": spaces.Discrete(4),
    "Discrete with a start": spaces.Discrete(4, start=-1),
    "MultiDiscrete": spaces.MultiDiscrete([2, 3]),
    "MultiDiscrete with a start": spaces.MultiDiscrete([2, 3], start=[5, 6]),
    "MultiDiscrete of shape (2, 2)": spaces.MultiDiscrete(np.array([[2, 3], [4, 2]])),
    "MultiBinary": spaces.MultiBinary(3),
    "MultiBinary of shape (2, 3)": spaces.MultiBinary([2, 3]),
    "Tuple": spaces.Tuple([spaces.Discrete(2), spaces.Box(0, 1, (2,))]),
    "Dict": spaces.Dict({"b": spaces.Discrete(2), "a": spaces.Box(0, 1, (2,))}),
    "Dict in its own order": spaces.Dict(OrderedDict([("b", spaces.Discrete(2)), ("a", spaces.Box(0, 1, (2,)))])),
    "nested": NESTED,
}
every_space = pytest.mark.parametrize("space", SPACES.values(), ids=SPACES.keys())


@every_space
def test_writer_equals_gymnasiums_flatten(space: gymnasium.Space[Any]) -> None:
    space.seed(0)
    write = flat_writer(space)
    row = np.full(flat_size(space), np.nan, dtype=np.float32)
    for _ in range(5):
        observation = space.sample()
        write(observation, row)
        expected = np.asarray(spaces.flatten(space, observation)).astype(np.float32)
        np.testing.assert_array_equal(row, expected)


def test_writer_by_hand() -> None:
    row = np.zeros(flat_size(NESTED), dtype=np.float32)
    joints = np.arange(6, dtype=np.float64).reshape(2, 3) / 8
    inner = (np.array([[1, 0], [1, 1]], dtype=np.int8), {"n": np.array([1, 2])})
    flat_writer(NESTED)({"joints": joints, "mode": 4, "inner": inner}, row)
    # Gymnasium sorts the keys of a plain dict: inner, joints, mode.
    assert row.tolist() == [1, 0, 1, 1, *(0, 1), *(0, 0, 1, 0), 0, 0.125, 0.25, 0.375, 0.5, 0.625, *(0, 0, 1)]


@pytest.mark.parametrize(
    "space",
    [
        spaces.Text(5),
        spaces.Sequence(spaces.Discrete(2)),
        spaces.OneOf([spaces.Discrete(2), spaces.Box(0, 1)]),
        spaces.Dict({"a": spaces.Discrete(2), "b": spaces.Tuple([spaces.Text(3)])}),
    ],
)
def test_a_space_without_a_fixed_length_is_an_error(space: gymnasium.Space[Any]) -> None:
    rule = r"observation space: must flatten to a vector of numbers of fixed length, got (Text|Seq|OneOf|Dict)"
    with pytest.raises(ValueError, match=rule):
        flat_size(space)


def test_images_stay_bytes() -> None:
    image = spaces.Box(0, 255, (4, 5, 3), np.uint8)
    assert row_dtype(image) == row_dtype(spaces.Box(0, 255, (4, 5), np.uint8)) == np.uint8
    row = np.zeros(flat_size(image), dtype=np.uint8)
    picture = image.sample()
    flat_writer(image)(picture, row)
    assert row.tolist() == picture.reshape(-1).tolist()
    others: list[gymnasium.Space[Any]] = [
        spaces.Box(0, 255, (128,), np.uint8),  # Atari RAM: bytes, but no image
        spaces.Box(0, 1, (4, 5, 3), np.float32),
        spaces.Discrete(3),
        spaces.Dict({"picture": image, "speed": spaces.Box(0, 1, (1,))}),
    ]
    assert all(row_dtype(space) == np.float32 for space in others)


def test_categories_of_an_action() -> None:
    assert category_counts(spaces.Discrete(4, start=7)) == (4,)
    assert category_counts(spaces.MultiDiscrete(np.array([[2, 3], [4, 2]]))) == (2, 3, 4, 2)
    assert category_counts(spaces.MultiBinary(3)) == category_counts(spaces.Box(0, 1)) == ()


@pytest.mark.parametrize(
    ("space", "stored", "given"),
    [
        (spaces.Discrete(4), [2], 2),
        (spaces.Discrete(4, start=-3), [2], -1),
        (spaces.MultiDiscrete([2, 3]), [1, 0], [1, 0]),
        (
            spaces.MultiDiscrete(np.array([[2, 3], [4, 2]]), start=np.array([[5, 6], [7, 8]])),
            [1, 0, 3, 1],
            [[6, 6], [10, 9]],
        ),
        (spaces.MultiBinary([2, 2]), [1, 0, 0, 1], [[1, 0], [0, 1]]),
        (spaces.Box(-1, 1, (2, 1), np.float64), [0.5, -0.25], [[0.5], [-0.25]]),
    ],
)
def test_actions_are_converted_for_the_environment(
    space: gymnasium.Space[Any], stored: list[float], given: Any
) -> None:
    actions = np.array([stored, stored], dtype=np.float32)
    for action in action_converter(space)(actions):
        assert space.contains(action)
        assert np.asarray(action).tolist() == given


@pytest.mark.parametrize("start", [0, 3])
def test_an_action_is_always_a_copy(start: int) -> None:
    for space in (spaces.Box(-1, 1, (1,), np.float32), spaces.MultiDiscrete([4], start=[start], dtype=np.int32)):
        actions = np.zeros((1, 1), dtype=np.float32)
        action_converter(space)(actions)[0] += 1
        assert actions.tolist() == [[0.0]]


@every_space
def test_plain_form_and_back(space: gymnasium.Space[Any]) -> None:
    plain = space_to_plain(space)
    assert_plain(plain)
    back = space_from_plain(plain)
    assert back == space
    assert space_to_plain(back) == plain
    space.seed(1)
    for _ in range(3):
        observation = space.sample()
        # The order of the parts must be the same: a loaded policy flattens observations with this space.
        np.testing.assert_array_equal(
            np.asarray(spaces.flatten(back, observation)), np.asarray(spaces.flatten(space, observation))
        )


def assert_plain(value: Any) -> None:
    if type(value) is dict:
        assert all(type(key) is str for key in value)
        value = list(value.values())
    if type(value) is list:
        for item in value:
            assert_plain(item)
    else:
        assert type(value) in (str, int, float, bool)


def test_a_space_without_a_plain_form_is_an_error() -> None:
    with pytest.raises(ValueError, match=r"space: must be a Box, .*, got Text"):
        space_to_plain(spaces.Text(5))
    with pytest.raises(ValueError, match=r"unknown kind 'Sphere'.*newer Minerva"):
        space_from_plain({"kind": "Sphere"})
