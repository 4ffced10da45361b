"""Convolutions over images: the network of Mnih et al. (2015, Nature)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
from gymnasium import Space, spaces
from torch import Tensor, nn

from minerva.networks.mlp import orthogonal

Layout = Literal["hwc", "chw"]
"""Where an image has its channels: last, or first."""

CONVOLUTIONS = ((32, 8, 4), (64, 4, 2), (64, 3, 1))
"""Channels, kernel and stride of each."""
MIN_IMAGE_SIZE = 36
"""The smallest height and width that these convolutions leave anything of."""


def image_layout(space: Space[Any]) -> Layout | None:
    """Return how a space's observations are laid out as images, or None where they are none.

    An image is a Box of uint8 with three dimensions, or two where there is one channel. The channels are the shorter of
    the first and the last dimension, the last where they are equal.
    """
    if not isinstance(space, spaces.Box) or space.dtype != np.uint8 or len(space.shape) not in (2, 3):
        return None
    return "chw" if len(space.shape) == 2 or space.shape[0] < space.shape[-1] else "hwc"


def flat_features(shape: Sequence[int], layout: Layout) -> int:
    """Return how many features of an image the convolutions leave; 0 or less where it is too small.

    Args:
        shape: An image's, of three dimensions, or of two without one for channels.
        layout: Which of three dimensions the channels are.
    """
    size = shape[:2] if layout == "hwc" and len(shape) == 3 else shape[-2:]
    for _, kernel, stride in CONVOLUTIONS:
        size = [(length - kernel) // stride + 1 for length in size]
    return CONVOLUTIONS[-1][0] * math.prod(size)


class NatureCNN(nn.Module):
    """Three convolutions and a linear layer, a ReLU after each; orthogonal with gain sqrt(2), zero biases.

    Args:
        shape: An image's, of three dimensions, or of two without one for channels.
        layout: Which of three dimensions the channels are.

    Attributes:
        out_dim: Length of the features.

    Raises:
        ValueError: The image is too small for the convolutions.
    """

    out_dim = 512

    def __init__(self, shape: Sequence[int], layout: Layout) -> None:
        super().__init__()
        self._shape = tuple(shape) if len(shape) == 3 else (1, *shape)
        self._channels_last = layout == "hwc" and len(shape) == 3
        channels, *size = (self._shape[i] for i in ((2, 0, 1) if self._channels_last else (0, 1, 2)))
        if min(size) < MIN_IMAGE_SIZE:
            raise ValueError(
                f"observation space: an image must have at least {MIN_IMAGE_SIZE} x {MIN_IMAGE_SIZE} pixels for these "
                f"convolutions, got {size[0]} x {size[1]} (shape {tuple(shape)}). Resize it, or use your own encoder."
            )
        layers: list[nn.Module] = []
        for out_channels, kernel, stride in CONVOLUTIONS:
            convolution = nn.Conv2d(channels, out_channels, kernel, stride)
            nn.init.orthogonal_(convolution.weight, math.sqrt(2))
            nn.init.zeros_(convolution.bias)  # type: ignore[arg-type]
            layers += [convolution, nn.ReLU()]
            channels = out_channels
        linear = orthogonal(nn.Linear(flat_features(shape, layout), self.out_dim), math.sqrt(2))
        self.layers = nn.Sequential(*layers, nn.Flatten(), linear, nn.ReLU())

    def forward(self, rows: Tensor) -> Tensor:
        """Map flattened images ``[..., O]``, uint8 or numbers from 0 to 255, to features ``[..., 512]``."""
        images = rows.reshape(-1, *self._shape)
        if self._channels_last:
            images = images.permute(0, 3, 1, 2)
        # LaTeX: x \leftarrow \frac{x}{255}
        features: Tensor = self.layers(images.float() / 255)
        return features.view(*rows.shape[:-1], self.out_dim)
