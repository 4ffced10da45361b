"""Encoders: what turns observations into features. The choice among them, and encoders for images."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Literal, cast

import numpy as np
import torch
from gymnasium import Space, spaces
from numpy.typing import NDArray
from torch import Tensor, nn

from minerva.networks.cnn import NatureCNN, image_layout
from minerva.utils.modes import mode


def contains_images(space: Space[Any]) -> bool:
    """Return whether a space is an image, or a dict that holds one."""
    if isinstance(space, spaces.Dict):
        return any(contains_images(child) for child in space.spaces.values())
    return image_layout(space) is not None


def images_in(space: Space[Any], row: NDArray[Any]) -> dict[str, NDArray[np.uint8]]:
    """Return the images of a flat observation as ``[H, W, C]`` with one or three channels, by their keys (its own: "").

    Of more channels (stacked frames), the newest is returned.
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


EncoderKind = Literal["mlp", "cnn", "custom"]
MakeEncoder = Callable[[], nn.Module]
"""Builds a user's own encoder, from rows ``[B, O]`` to features ``[B, F]``."""


def encoder_kind(setting: str, space: Space[Any]) -> EncoderKind:
    """Return which encoder the setting `encoder` stands for: "auto" takes convolutions where there is an image."""
    if setting == "auto":
        return "cnn" if contains_images(space) else "mlp"
    return cast(EncoderKind, setting)


def custom_encoder(make_encoder: MakeEncoder | None, in_dim: int) -> tuple[nn.Module, int]:
    """Build a user's own encoder, and return it with the length of its features.

    Raises:
        ValueError: The function that builds it is missing, or its features do not have the shape ``[B, F]``.
    """
    if make_encoder is None:
        raise ValueError(
            "encoder: 'custom' needs the function that builds it: pass make_encoder to the trainer, minerva.train or "
            "minerva.load; on the command line --make-encoder module:function."
        )
    encoder = make_encoder()
    # In evaluation mode, so that statistics of BatchNorm take in nothing that was not observed.
    with torch.no_grad(), mode(encoder.modules(), training=False):
        features = encoder(torch.zeros(2, in_dim))
    if features.dim() != 2 or len(features) != 2:
        raise ValueError(
            f"make_encoder: its module must map rows of shape (B, {in_dim}) to features of shape (B, F), got "
            f"{tuple(features.shape)} for B = 2."
        )
    return encoder, features.shape[1]


def image_encoder(space: Space[Any]) -> NatureCNN | DictEncoder:
    """Build the encoder of a space with images.

    Raises:
        ValueError: There is no image in it, or one that is too small.
    """
    layout = image_layout(space)
    if layout is not None:
        return NatureCNN(space.shape or (), layout)
    if isinstance(space, spaces.Dict) and contains_images(space):
        return DictEncoder(space)
    raise ValueError(
        "encoder: 'cnn' needs an image, a Box of uint8 with two or three dimensions, or a Dict that holds one; "
        f"got {space}."
    )


class DictEncoder(nn.Module):
    """Encode a dict of observations: convolutions for each image, everything else unchanged.

    Args:
        space: The dict's space.

    Attributes:
        out_dim: Length of the features.
    """

    def __init__(self, space: spaces.Dict) -> None:
        super().__init__()
        children = space.spaces.values()  # in the order of a flattened row
        self._sizes = [int(spaces.flatdim(child)) for child in children]
        self.parts = nn.ModuleList(image_encoder(c) if contains_images(c) else nn.Identity() for c in children)
        parts = zip(self.parts, self._sizes, strict=True)
        self.out_dim = sum(getattr(part, "out_dim", size) for part, size in parts)

    def forward(self, rows: Tensor) -> Tensor:
        """Map rows ``[B, O]`` to features ``[B, F]``."""
        pieces = zip(self.parts, torch.split(rows, self._sizes, dim=-1), strict=True)
        return torch.cat([part(piece) for part, piece in pieces], dim=-1)
