from __future__ import annotations

import numpy as np
import pytest

from minerva.compat.stable_baselines.common.tile_images import tile_images


@pytest.mark.parametrize(("count", "rows", "columns"), [(1, 1, 1), (2, 2, 1), (4, 2, 2), (5, 3, 2), (7, 3, 3)])
def test_images_are_tiled_row_by_row(count: int, rows: int, columns: int) -> None:
    images = [np.full((2, 3, 1), k + 1, np.uint8) for k in range(count)]
    sheet = tile_images(images)
    assert sheet.shape == (2 * rows, 3 * columns, 1)
    assert sheet.dtype == np.uint8
    cells = sheet[::2, ::3, 0].ravel()
    assert cells.tolist() == [*range(1, count + 1), *[0] * (rows * columns - count)]
