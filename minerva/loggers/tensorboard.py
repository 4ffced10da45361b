"""TensorBoard event files."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from minerva.loggers.base import Logger, one_line

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_MAX_HISTOGRAM_VALUE = 1e19  # TensorBoard's histograms have no bins for much larger values


class TensorBoardLogger(Logger):
    """Write scalars, histograms and images to a TensorBoard event file.

    Args:
        folder: Folder of the event file. A resumed run adds a second file, and TensorBoard shows both as one run.
        purge_step: First step to hide in earlier files, because the resumed run logs it again. Values logged at the
            checkpoint's own step are kept, so pass that step plus one.
    """

    def __init__(self, folder: Path, purge_step: int | None = None) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._writer: Any = SummaryWriter(log_dir=str(folder), purge_step=purge_step)

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        for name, value in metrics.items():
            self._writer.add_scalar(name, float(value), step)

    def write_histogram(self, step: int, name: str, array: NDArray[Any]) -> None:
        """Record a histogram of the finite values of an array of any shape."""
        import numpy as np

        values = np.asarray(array, dtype=np.float64)
        values = values[np.isfinite(values)].clip(-_MAX_HISTOGRAM_VALUE, _MAX_HISTOGRAM_VALUE)
        if values.size:
            self._writer.add_histogram(name, values, step)

    def write_image(self, step: int, name: str, array: NDArray[np.uint8]) -> None:
        self._writer.add_image(name, array, step, dataformats="HWC")

    def flush(self) -> None:
        """Write the buffered events."""
        self._writer.flush()

    def close(self) -> None:
        """Write the buffered events and close the file; a second call does nothing."""
        self._writer.close()


def open_tensorboard(folder: Path, purge_step: int | None = None) -> TensorBoardLogger | None:
    """Open a TensorBoard logger, or warn and return None if that fails.

    Args:
        folder: Folder of the event file.
        purge_step: See `TensorBoardLogger`.
    """
    try:
        return TensorBoardLogger(folder, purge_step)
    except ImportError:
        text = 'TensorBoard is not installed, so this run does not log to it: pip install "minerva-rl[tracking]".'
    except Exception as error:  # such as a read-only or full disk: training can still run
        text = f"TensorBoard could not be opened in {folder}, so this run does not log to it: {one_line(error)}"
    warnings.warn(text, RuntimeWarning, stacklevel=2)
    return None
