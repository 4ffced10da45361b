from __future__ import annotations

from collections import OrderedDict

import numpy as np
import pytest
import torch
from gymnasium import spaces

from minerva.networks.cnn import NatureCNN
from minerva.networks.encoders import DictEncoder, contains_images, encoder_kind, image_encoder, images_in

IMAGE = spaces.Box(0, 255, (40, 36, 3), np.uint8)
VECTOR = spaces.Box(-1, 1, (5,), np.float32)
BOTH = spaces.Dict(OrderedDict([("speed", VECTOR), ("eye", IMAGE), ("on", spaces.Discrete(2))]))


def test_images_are_found_wherever_they_are() -> None:
    assert contains_images(IMAGE) and contains_images(BOTH) and contains_images(spaces.Dict({"a": BOTH}))
    assert not any(contains_images(space) for space in (VECTOR, spaces.Discrete(3), spaces.Dict({"a": VECTOR})))


def test_an_image_gets_convolutions() -> None:
    encoder = image_encoder(IMAGE)
    assert isinstance(encoder, NatureCNN) and encoder.out_dim == 512


def test_the_parts_of_a_dict_in_the_order_of_its_row() -> None:
    encoder = image_encoder(BOTH)
    assert isinstance(encoder, DictEncoder) and encoder.out_dim == 5 + 512 + 2
    image = IMAGE.sample()
    observation = {"speed": np.arange(5, dtype=np.float32) / 5, "eye": image, "on": 1}
    row = torch.from_numpy(np.asarray(spaces.flatten(BOTH, observation), dtype=np.float32))[None]
    found = encoder(row)
    eye = torch.from_numpy(image.reshape(1, -1))
    expected = torch.cat([row[:, :5], encoder.parts[1](eye), row[:, -2:]], dim=-1)
    torch.testing.assert_close(found, expected)
    assert row[0, -2:].tolist() == [0.0, 1.0]


@pytest.mark.parametrize("key", ["camera.front", "keys", "type"])
def test_a_dict_may_have_any_keys(key: str) -> None:
    encoder = image_encoder(spaces.Dict({key: IMAGE}))
    assert encoder(torch.zeros(2, IMAGE.sample().size)).shape == (2, 512)


def test_what_is_no_image_gets_none() -> None:
    with pytest.raises(ValueError, match=r"encoder: 'cnn' needs an image.* got Box"):
        image_encoder(VECTOR)


@pytest.mark.parametrize("shape", [(40, 36, 3), (3, 40, 36), (40, 36), (40, 36, 1), (4, 40, 36), (40, 36, 4)])
def test_an_image_is_given_back_from_its_row(shape: tuple[int, ...]) -> None:
    space = spaces.Box(0, 255, shape, np.uint8)
    image = space.sample()
    (found,) = images_in(space, image.reshape(-1)).values()
    if len(shape) == 2:
        expected = image[..., None]
    else:
        expected = image if shape[0] == 40 else image.transpose(1, 2, 0)
        expected = expected[..., -1:] if expected.shape[-1] == 4 else expected
    np.testing.assert_array_equal(found, expected)


def test_images_of_a_dict_have_its_keys() -> None:
    observation = {"speed": np.zeros(5, np.float32), "eye": IMAGE.sample(), "on": 0}
    row = np.asarray(spaces.flatten(BOTH, observation), dtype=np.float32)
    found = images_in(spaces.Dict(OrderedDict([("x", VECTOR), ("y", BOTH)])), np.concatenate([np.zeros(5), row]))
    assert list(found) == ["y/eye"]
    np.testing.assert_array_equal(found["y/eye"], observation["eye"])
    assert images_in(VECTOR, np.zeros(5)) == {}


def test_the_kind_of_encoder_follows_the_space_unless_it_is_said() -> None:
    assert [encoder_kind("auto", space) for space in (VECTOR, IMAGE, BOTH)] == ["mlp", "cnn", "cnn"]
    for kind in ("mlp", "cnn", "custom"):
        assert {encoder_kind(kind, space) for space in (VECTOR, IMAGE)} == {kind}
