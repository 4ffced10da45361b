"""Put several images into one."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray


def tile_images(img_nhwc: Sequence[NDArray[np.uint8]]) -> NDArray[np.uint8]:
    """Tile images ``[H, W, C]`` of one size, row by row, into a grid that is as high as it is wide, or higher.

    Empty cells are black.

    Args:
        img_nhwc: The images.
    """
    rows = int(np.ceil(np.sqrt(len(img_nhwc))))
    columns = int(np.ceil(len(img_nhwc) / rows))
    height, width, channels = img_nhwc[0].shape
    sheet = np.zeros((rows * height, columns * width, channels), dtype=np.asarray(img_nhwc[0]).dtype)
    for k, image in enumerate(img_nhwc):
        y, x = divmod(k, columns)
        sheet[y * height : (y + 1) * height, x * width : (x + 1) * width] = image
    return sheet
