from __future__ import annotations

import io
import subprocess
import sys
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from minerva.loggers import ConsoleLogger, CsvLogger, Logger, LoggerList
from minerva.loggers.base import check_name, one_line


class Recorder(Logger):
    """Records its calls, and raises at the given ones."""

    def __init__(self, *fails: str) -> None:
        self.calls: list[str] = []
        self._fails = fails

    def _call(self, name: str) -> None:
        self.calls.append(name)
        if name in self._fails:
            raise OSError(28, "No space left on device")

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        self._call(f"log {dict(metrics)} {step}")

    def flush(self) -> None:
        self._call("flush")

    def close(self) -> None:
        self._call("close")


class Required(Recorder):
    required = True


ROW = "log {'a': 1.0} 5"


def test_every_logger_gets_every_call() -> None:
    loggers = [Recorder(), Required(), Recorder()]
    both: Logger = LoggerList([*loggers[:2], None, loggers[2]])
    both.log({"a": 1.0}, 5)
    both.flush()
    both.close()
    for logger in loggers:
        assert logger.calls == [ROW, "flush", "close"]


@pytest.mark.parametrize("fails", [ROW, "flush", "close"])
def test_a_failing_optional_logger_is_removed_with_one_warning(fails: str) -> None:
    broken, required, sound = Recorder(fails), Required(), Recorder()
    both = LoggerList([broken, required, sound])
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(2):
            both.log({"a": 1.0}, 5)
            both.flush()
        both.close()
    assert len(caught) == 1
    assert "Recorder failed and is disabled" in str(caught[0].message)
    assert "No space left on device" in str(caught[0].message)
    assert required.calls == sound.calls == [ROW, "flush", ROW, "flush", "close"]
    assert broken.calls.count("close") >= 1
    assert broken.calls.count(fails) == (1 if fails != "close" else 2)


def test_a_note_function_replaces_the_warning() -> None:
    notes: list[str] = []
    both = LoggerList([Recorder(ROW)], note=notes.append)
    both.log({"a": 1.0}, 5)
    both.log({"a": 1.0}, 5)
    assert len(notes) == 1


def test_an_error_of_a_required_logger_stops_the_run() -> None:
    both = LoggerList([Required(ROW, "flush")])
    with pytest.raises(OSError, match="No space left"):
        both.log({"a": 1.0}, 5)
    with pytest.raises(OSError, match="No space left"):
        both.flush()


def test_only_the_csv_file_is_required(tmp_path: Path) -> None:
    file = CsvLogger(tmp_path / "metrics.csv")
    console = ConsoleLogger(10, stream=io.StringIO())
    both = LoggerList([console, file])
    both.log({"a": 1.0}, 5)
    assert both.loggers == [file, console] and [logger.required for logger in both.loggers] == [True, False]
    both.close()
    with pytest.raises(ValueError, match="has been closed"):
        both.log({"a": 1.0}, 6)


def test_close_closes_all_loggers_before_it_raises() -> None:
    loggers = [Required("close"), Required(), Recorder()]
    with pytest.raises(OSError, match="No space left"):
        LoggerList(loggers).close()
    assert [logger.calls for logger in loggers] == [["close"]] * 3


def test_ctrl_c_does_not_remove_a_logger() -> None:
    class Interrupted(Recorder):
        def log(self, metrics: Mapping[str, float], step: int) -> None:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        LoggerList([Interrupted()]).log({"a": 1.0}, 5)


def test_an_error_in_one_line() -> None:
    assert one_line(ValueError("first\nsecond")) == "ValueError: first"
    assert one_line(ValueError()) == "ValueError"


def test_the_package_imports_nothing_heavy() -> None:
    code = (
        "import sys, minerva.loggers\n"
        "heavy = {'torch', 'numpy', 'wandb', 'tensorboard', 'rich', 'matplotlib'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    subprocess.run([sys.executable, "-W", "error", "-c", code], check=True)


class ArrayRecorder(Recorder):
    def write_histogram(self, step: int, name: str, array: NDArray[Any]) -> None:
        self._call(f"histogram {step} {name} {array.tolist()}")

    def write_image(self, step: int, name: str, array: NDArray[np.uint8]) -> None:
        self._call(f"image {step} {name} {array.shape}")


HISTOGRAM = "histogram 5 weights [0.5, 1.0]"


def test_arrays_go_to_the_loggers_that_support_them(tmp_path: Path) -> None:
    plain, arrays, required = Recorder(), ArrayRecorder(), Required()
    inner = LoggerList([plain, arrays])
    outer = LoggerList([required, inner, ConsoleLogger(10, stream=io.StringIO()), CsvLogger(tmp_path / "metrics.csv")])
    outer.write_histogram(5, "weights", np.array([0.5, 1.0]))
    outer.write_image(6, "screen", np.zeros((2, 3, 1), dtype=np.uint8))
    assert arrays.calls == [HISTOGRAM, "image 6 screen (2, 3, 1)"]
    assert plain.calls == required.calls == []
    outer.close()
    assert (tmp_path / "metrics.csv").read_text() == "step,name,value\n"


def test_a_logger_that_fails_at_an_array_is_removed() -> None:
    broken, sound = ArrayRecorder(HISTOGRAM), ArrayRecorder()
    told: list[str] = []
    loggers = LoggerList([broken, sound], told.append)
    for _ in range(2):
        loggers.write_histogram(5, "weights", np.array([0.5, 1.0]))
    assert broken.calls == [HISTOGRAM, "close"] and sound.calls == [HISTOGRAM] * 2
    assert told == [
        "ArrayRecorder failed and is disabled for the rest of the run: OSError: [Errno 28] No space left on device"
    ]


@pytest.mark.parametrize(
    "name", ["a", "policy/std", "my_loss", "approximate_kullback-leibler", "q.1/η/x-2", "evaluation/x"]
)
def test_valid_metric_names(name: str) -> None:
    check_name(name)


@pytest.mark.parametrize("name", ["", "a b", "a,b", 'a"b', "a\nb", "/a", "a/", "-a", "a\n", 3, None])
def test_invalid_metric_names(name: Any) -> None:
    with pytest.raises(ValueError) as caught:
        check_name(name)
    assert str(caught.value) == (
        f"name: must consist of letters, digits, '_', '-', '.' and '/', such as 'policy/std'; got {name!r}."
    )


@pytest.mark.parametrize("name", ["eval/return_mean", "train/episode_return", "charts/SPS", "losses/mine", "eval"])
def test_reserved_metric_names(name: str) -> None:
    with pytest.raises(ValueError, match=f"the groups charts, eval, losses, time, train are reserved, got '{name}'"):
        check_name(name)
