"""Encoders for spaces with images in them."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from gymnasium import Space, spaces
from numpy.typing import NDArray
from torch import Tensor, nn

from minerva.networks.cnn import NatureCNN, image_layout


def looks_at_images(space: Space[Any]) -> bool:
    """Whether a space is an image, or a dict that holds one."""
    if isinstance(space, spaces.Dict):
        return any(looks_at_images(child) for child in space.spaces.values())
    return image_layout(space) is not None


def images_in(space: Space[Any], row: NDArray[Any]) -> dict[str, NDArray[np.uint8]]:
    """Give the images of a flat observation as ``[H, W, C]`` with one or three channels, by their keys (its own: "").

    Where there are more channels (stacked frames), the newest of them is given.
    """
    if isinstance(space, spaces.Dict):
        found, start = {}, 0
        for key, child in space.spaces.items():
            size = int(spaces.flatdim(child))
            for name, image in images_in(child, row[start : start + size]).items():
                found[f"{key}/{name}" if name else key] = image
            start += size
        return found
    layout = image_layout(space)
    if layout is None:
        return {}
    shape = tuple(space.shape or ())
    image = row[: math.prod(shape)].astype(np.uint8).reshape(shape)
    if image.ndim == 2:
        image = image[..., None]
    elif layout == "chw":
        image = np.moveaxis(image, 0, -1)
    return {"": image if image.shape[-1] in (1, 3) else image[..., -1:]}


def encoder_for(space: Space[Any]) -> tuple[nn.Module, int]:
    """Make the encoder of a space with images, and give the length of its features.

    Raises:
        ValueError: There is no image in it, or one that is too small.
    """
    layout = image_layout(space)
    if layout is not None:
        network = NatureCNN(space.shape or (), layout)
        return network, network.out_dim
    if isinstance(space, spaces.Dict) and looks_at_images(space):
        parts = DictEncoder(space)
        return parts, parts.out_dim
    raise ValueError(
        "encoder: 'cnn' needs an image, a Box of uint8 with two or three dimensions, or a Dict that holds one; "
        f"got {space}."
    )


class DictEncoder(nn.Module):
    """Convolutions for each image of a dict; what is no image passes as it is.

    Args:
        space: The dict's space.

    Attributes:
        out_dim: Length of the features.
    """

    def __init__(self, space: spaces.Dict) -> None:
        super().__init__()
        self.parts = nn.ModuleDict()
        self._layout: list[tuple[str, int]] = []  # in the order of a flattened row
        self.out_dim = 0
        for key, child in space.spaces.items():
            size = int(spaces.flatdim(child))
            self._layout.append((key, size))
            if looks_at_images(child):
                self.parts[key], size = encoder_for(child)
            self.out_dim += size

    def forward(self, rows: Tensor) -> Tensor:
        """Map rows ``[B, O]`` to features ``[B, F]``."""
        pieces = torch.split(rows, [size for _, size in self._layout], dim=-1)
        return torch.cat(
            [
                self.parts[key](piece) if key in self.parts else piece
                for (key, _), piece in zip(self._layout, pieces, strict=True)
            ],
            dim=-1,
        )
