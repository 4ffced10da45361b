from __future__ import annotations

import io
import math
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from minerva.loggers import LoggerList, TensorBoardLogger, open_tensorboard


@pytest.fixture(autouse=True)
def _files_are_numbered_from_zero(monkeypatch: pytest.MonkeyPatch) -> None:
    # Of the files of one second, TensorBoard reads number 10 of the process before number 9.
    from tensorboard.summary.writer import event_file_writer

    monkeypatch.setattr(event_file_writer, "_global_uid", event_file_writer.AtomicCounter(0))


def read(folder: Path) -> dict[str, list[tuple[int, float]]]:
    """Read scalars as TensorBoard itself does."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder))
    events.Reload()
    return {tag: [(e.step, e.value) for e in events.Scalars(tag)] for tag in events.Tags()["scalars"]}


def test_events_read_back(tmp_path: Path) -> None:
    logger = TensorBoardLogger(tmp_path)
    logger.log({"charts/SPS": 1000.0, "losses/entropy": 0.5}, 0)
    logger.log({"charts/SPS": 1500.0}, 2048)
    logger.flush()
    assert read(tmp_path) == {"charts/SPS": [(0, 1000.0), (2048, 1500.0)], "losses/entropy": [(0, 0.5)]}
    logger.log({"losses/explained_variance": math.nan}, 4096)
    logger.close()
    logger.close()
    ((step, value),) = read(tmp_path)["losses/explained_variance"]
    assert step == 4096
    assert math.isnan(value)


def test_a_resumed_run_hides_what_it_logs_again(tmp_path: Path) -> None:
    first = TensorBoardLogger(tmp_path)
    for step in (100, 200, 300):
        first.log({"a": float(step)}, step)
    first.close()
    second = TensorBoardLogger(tmp_path, purge_step=201)  # from a checkpoint at step 200
    second.log({"a": -300.0}, 300)
    second.log({"a": -400.0}, 400)
    second.close()
    assert len(list(tmp_path.glob("events.out.tfevents.*"))) == 2
    assert read(tmp_path) == {"a": [(100, 100.0), (200, 200.0), (300, -300.0), (400, -400.0)]}


def test_open_gives_a_logger(tmp_path: Path) -> None:
    logger = open_tensorboard(tmp_path / "new" / "folder")
    assert logger is not None
    logger.log({"a": 1.0}, 1)
    logger.close()
    assert read(tmp_path / "new" / "folder") == {"a": [(1, 1.0)]}


def test_without_the_package_a_warning_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.split(".")[0] == "tensorboard" or "utils.tensorboard" in name]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    with pytest.warns(RuntimeWarning, match=r'TensorBoard is not installed.*"minerva-rl\[tracking\]"') as caught:
        assert open_tensorboard(tmp_path) is None
    assert len(caught) == 1


def test_without_the_package_in_a_fresh_process(tmp_path: Path) -> None:
    code = (
        "import sys\n"
        "from pathlib import Path\n"
        "sys.modules['tensorboard'] = None\n"
        "from minerva.loggers import open_tensorboard\n"
        "assert open_tensorboard(Path(sys.argv[1]), 5) is None\n"
    )
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=True)
    assert done.stderr.count("Warning") == 1
    assert "Traceback" not in done.stderr


def test_a_folder_that_cannot_be_written_does_not_stop_training(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.warns(RuntimeWarning, match="TensorBoard could not be opened in"):
        assert open_tensorboard(tmp_path / "file" / "folder") is None


def test_a_full_disk_during_a_run_removes_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    logger = TensorBoardLogger(tmp_path)
    loggers = LoggerList([logger])
    loggers.log({"a": 1.0}, 1)
    loggers.flush()

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    writer = logger._writer.file_writer.event_writer._async_writer
    monkeypatch.setattr(writer._writer, "write", full)
    monkeypatch.setattr("threading.excepthook", lambda _: None)  # its writer thread prints its error
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for step in range(2, 50):
            loggers.log({"a": 1.0}, step)
            loggers.flush()
        loggers.close()
    assert [str(w.message) for w in caught if w.category is RuntimeWarning] == [
        "TensorBoardLogger failed and is disabled for the rest of the run: OSError: [Errno 28] No space left on device"
    ]
    assert loggers.loggers == []


def open_events(folder: Path) -> Any:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    # All images and histograms: by default TensorBoard keeps only a sample.
    events = EventAccumulator(str(folder), size_guidance={"images": 0, "histograms": 0})
    events.Reload()
    return events


def test_a_histogram_reads_back(tmp_path: Path) -> None:
    logger = TensorBoardLogger(tmp_path)
    values = np.array([[-2.0, 0.5, 0.5], [0.25, 4.0, 0.5]], dtype=np.float32)
    logger.write_histogram(7, "weights/actor", values)
    logger.write_histogram(9, "weights/actor", np.zeros(3))
    logger.close()
    first, second = open_events(tmp_path).Histograms("weights/actor")
    assert (first.step, second.step) == (7, 9)
    seen = first.histogram_value
    assert (seen.min, seen.max, seen.num, seen.sum, seen.sum_squares) == (-2.0, 4.0, 6, 3.75, 20.8125)
    # Every value lies under the limit of its own bucket and above the one before.
    filled = {limit: count for limit, count in zip(seen.bucket_limit, seen.bucket, strict=True) if count}
    for limit, count in filled.items():
        before = max((other for other in seen.bucket_limit if other < limit), default=-math.inf)
        assert count == np.sum((values > before) & (values <= limit))
    assert sum(filled.values()) == 6
    assert second.histogram_value.num == 3


def test_values_that_are_not_finite_are_left_out_of_a_histogram(tmp_path: Path) -> None:
    logger = TensorBoardLogger(tmp_path)
    loggers = LoggerList([logger])
    loggers.write_histogram(1, "some", np.array([1.0, math.nan, math.inf, -math.inf, 3.0]))
    loggers.write_histogram(1, "huge", np.array([1e30, -1e300, 1.0]))
    loggers.write_histogram(1, "none", np.array([math.nan]))
    loggers.write_histogram(1, "empty", np.zeros((0, 3)))
    loggers.write_histogram(1, "flags", np.array([True, False, True]))
    assert loggers.loggers == [logger]
    loggers.close()
    events = open_events(tmp_path)
    assert events.Tags()["histograms"] == ["some", "huge", "flags"]
    (some,), (huge,), (flags,) = (events.Histograms(name) for name in ("some", "huge", "flags"))
    assert (some.histogram_value.num, some.histogram_value.max) == (2, 3.0)
    assert huge.histogram_value.num == sum(huge.histogram_value.bucket) == 3
    assert (flags.histogram_value.num, flags.histogram_value.sum) == (3, 2.0)


@pytest.mark.parametrize("channels", [1, 3])
def test_an_image_reads_back_to_the_pixel(channels: int, tmp_path: Path) -> None:
    from PIL import Image

    pixels = np.random.default_rng(0).integers(0, 256, (5, 7, channels), dtype=np.uint8)
    logger = TensorBoardLogger(tmp_path)
    logger.write_image(3, "observation", pixels)
    logger.close()
    (image,) = open_events(tmp_path).Images("observation")
    assert (image.step, image.height, image.width) == (3, 5, 7)
    shown = np.asarray(Image.open(io.BytesIO(image.encoded_image_string)))
    np.testing.assert_array_equal(shown, np.broadcast_to(pixels, (5, 7, 3)))


def test_a_resumed_run_hides_arrays_too(tmp_path: Path) -> None:
    for purge, steps in ((None, (100, 200, 300)), (201, (300,))):
        logger = TensorBoardLogger(tmp_path, purge)
        for step in steps:
            logger.write_histogram(step, "h", np.ones(2 if purge is None else 5))
            logger.write_image(step, "i", np.full((2 if purge is None else 5, 2, 3), 9, dtype=np.uint8))
        logger.close()
    events = open_events(tmp_path)
    assert [(e.step, e.histogram_value.num) for e in events.Histograms("h")] == [(100, 2), (200, 2), (300, 5)]
    assert [(e.step, e.height) for e in events.Images("i")] == [(100, 2), (200, 2), (300, 5)]
