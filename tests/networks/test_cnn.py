from __future__ import annotations

import math

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from numpy.typing import NDArray
from torch import nn

from minerva.networks.cnn import Layout, NatureCNN, image_layout


def image_space(*shape: int) -> spaces.Box:
    return spaces.Box(0, 255, shape, dtype=np.uint8)


@pytest.mark.parametrize(
    ("shape", "layout"),
    [
        ((84, 84, 3), "hwc"), ((84, 84, 1), "hwc"), ((210, 160, 4), "hwc"), ((64, 64, 12), "hwc"),
        ((96, 96, 96), "hwc"), ((3, 84, 84), "chw"), ((4, 210, 160), "chw"), ((1, 36, 50), "chw"),
        ((16, 84, 84), "chw"), ((84, 84), "chw"),
    ],
)  # fmt: skip
def test_the_layout_of_images(shape: tuple[int, ...], layout: Layout) -> None:
    assert image_layout(image_space(*shape)) == layout


@pytest.mark.parametrize(
    "space",
    [image_space(128), image_space(4, 84, 84, 3), spaces.Box(0, 1, (84, 84, 3)), spaces.Discrete(3)],
)
def test_what_is_no_image(space: gymnasium.Space[object]) -> None:
    assert image_layout(space) is None


def test_layers_and_their_first_weights() -> None:
    network = NatureCNN((84, 84, 4), "hwc")
    kinds = [type(layer) for layer in network.layers]
    relu = nn.ReLU
    assert kinds == [nn.Conv2d, relu, nn.Conv2d, relu, nn.Conv2d, relu, nn.Flatten, nn.Linear, relu]
    shapes = [tuple(p.shape) for name, p in network.named_parameters() if "weight" in name]
    assert shapes == [(32, 4, 8, 8), (64, 32, 4, 4), (64, 64, 3, 3), (512, 64 * 7 * 7)]
    strides = [layer.stride for layer in network.layers if isinstance(layer, nn.Conv2d)]
    assert strides == [(4, 4), (2, 2), (1, 1)]
    for name, parameter in network.named_parameters():
        if "bias" in name:
            assert not parameter.any()
        else:
            rows = parameter.detach().flatten(1)
            torch.testing.assert_close(rows @ rows.T, 2 * torch.eye(len(rows)), rtol=1e-4, atol=1e-4)


def oracle(network: NatureCNN, image: NDArray[np.uint8]) -> NDArray[np.float64]:
    """From one image ``[C, H, W]``, each output of a convolution as a sum over its patch."""
    x = image.astype(np.float64) / 255
    for layer in network.layers:
        if isinstance(layer, nn.Conv2d):
            assert layer.bias is not None
            weight, bias = layer.weight.detach().double().numpy(), layer.bias.detach().double().numpy()
            k, s = layer.kernel_size[0], layer.stride[0]
            height, width = ((side - k) // s + 1 for side in x.shape[1:])
            y = np.empty((len(weight), height, width))
            for i, j in np.ndindex(height, width):
                patch = x[:, i * s : i * s + k, j * s : j * s + k]
                y[:, i, j] = (weight * patch).sum((1, 2, 3)) + bias
            x = np.maximum(y, 0)
        elif isinstance(layer, nn.Linear):
            weight, bias = layer.weight.detach().double().numpy(), layer.bias.detach().double().numpy()
            x = np.maximum(weight @ x.reshape(-1) + bias, 0)
    return x


@pytest.mark.formula("minerva.networks.cnn", r"x \leftarrow \frac{x}{255}")
@pytest.mark.parametrize("layout", ["chw", "hwc", "one channel"])
def test_against_the_oracle(layout: str) -> None:
    channels = 1 if layout == "one channel" else 3
    images = np.random.default_rng(0).integers(0, 256, size=(2, channels, 41, 38), dtype=np.uint8)  # [B, C, H, W]
    if layout == "hwc":
        network, laid_out = NatureCNN((41, 38, 3), "hwc"), images.transpose(0, 2, 3, 1)
    elif layout == "chw":
        network, laid_out = NatureCNN((3, 41, 38), "chw"), images
    else:
        network, laid_out = NatureCNN((41, 38), "chw"), images
    with torch.no_grad():
        for parameter in network.parameters():  # biases must matter
            parameter.add_(torch.randn(parameter.shape, generator=torch.Generator().manual_seed(0)), alpha=0.02)
        found = network(torch.from_numpy(laid_out.reshape(2, -1).copy()))
    assert found.shape == (2, 512) and found.dtype == torch.float32
    for row, image in zip(found, images, strict=True):
        np.testing.assert_allclose(row, oracle(network, image), rtol=1e-4, atol=1e-5)
    assert found.abs().max() > 0.1


def test_any_batch_shape_and_numbers_of_any_kind() -> None:
    network = NatureCNN((36, 36, 2), "hwc")
    rows = torch.randint(0, 256, (6, 36 * 36 * 2), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    flat = network(rows)
    assert flat.shape == (6, network.out_dim)
    torch.testing.assert_close(network(rows.reshape(2, 3, -1)), flat.reshape(2, 3, 512))  # [T, N, O]
    torch.testing.assert_close(network(rows[0]), flat[0])
    assert torch.equal(network(rows.float()), flat)
    flat.sum().backward()
    gradients = [parameter.grad for parameter in network.parameters()]
    assert all(gradient is not None and gradient.any() for gradient in gradients)


@pytest.mark.parametrize(
    ("shape", "layout", "size"),
    [
        ((35, 84, 3), "hwc", "35 x 84"),
        ((3, 84, 35), "chw", "84 x 35"),
        ((7, 7, 3), "hwc", "7 x 7"),
        ((20, 20), "chw", "20 x 20"),
    ],
)
def test_too_small_an_image(shape: tuple[int, ...], layout: Layout, size: str) -> None:
    with pytest.raises(ValueError, match=rf"at least 36 x 36 pixels .* got {size} .* use your own encoder"):
        NatureCNN(shape, layout)


def test_the_smallest_image_leaves_one_pixel() -> None:
    network = NatureCNN((3, 36, 36), "chw")
    assert network.layers(torch.zeros(1, 3, 36, 36)).shape == (1, 512)
    linear = network.layers[-2]
    assert isinstance(linear, nn.Linear) and linear.in_features == 64
    assert math.isclose(linear.weight.norm().item() ** 2, 2 * 64, rel_tol=1e-4)
