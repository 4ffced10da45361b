"""TensorBoard event files."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from minerva.loggers.base import one_line

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_LARGEST = 1e19  # its histograms have no place for anything much larger


class TensorBoardLogger:
    """Writes scalars, histograms and images to a TensorBoard event file.

    Args:
        folder: Where the event file goes. A resumed run adds a second file to it, which TensorBoard shows as one run.
        purge_step: What earlier files hold from this step on is hidden: the resumed run logs it again. Values logged at
            the checkpoint's own step come before it, so pass that step plus one.

    Raises:
        ImportError: The package tensorboard is not installed.
    """

    def __init__(self, folder: Path, purge_step: int | None = None) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            raise ImportError(
                "TensorBoard is not installed, so it gets no metrics of this run: "
                'pip install "minerva-rl[tracking]" brings it.'
            ) from error
        self._writer: Any = SummaryWriter(log_dir=str(folder), purge_step=purge_step)

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        """Record values by name at an environment step."""
        for name, value in metrics.items():
            self._writer.add_scalar(name, float(value), step)

    def write_histogram(self, step: int, name: str, array: NDArray[Any]) -> None:
        """Record how the numbers of an array of any shape are distributed: those of them that are finite, if any."""
        import numpy as np

        values = np.asarray(array, dtype=np.float64)
        values = values[np.isfinite(values)].clip(-_LARGEST, _LARGEST)
        if values.size:
            self._writer.add_histogram(name, values, step)

    def write_image(self, step: int, name: str, array: NDArray[np.uint8]) -> None:
        """Record an image ``[H, W, C]``: grey (C = 1) or red, green and blue (C = 3)."""
        self._writer.add_image(name, array, step, dataformats="HWC")

    def flush(self) -> None:
        """Write the events that are waiting."""
        self._writer.flush()

    def close(self) -> None:
        """Write the events that are waiting and close the file; closing twice is harmless."""
        self._writer.close()


def open_tensorboard(folder: Path, purge_step: int | None = None) -> TensorBoardLogger | None:
    """Open a TensorBoard logger, or warn in one sentence and give None where that is not possible.

    Args:
        folder: Where the event file goes.
        purge_step: See `TensorBoardLogger`.
    """
    try:
        return TensorBoardLogger(folder, purge_step)
    except ImportError as error:
        warnings.warn(str(error), RuntimeWarning, stacklevel=2)
    except Exception as error:  # a read-only or full disk, say: no reason not to train
        warnings.warn(
            f"TensorBoard could not be opened in {folder}, so it gets no metrics of this run: {one_line(error)}",
            RuntimeWarning,
            stacklevel=2,
        )
    return None
