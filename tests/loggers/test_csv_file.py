from __future__ import annotations

import csv
import math
import os
import random
import subprocess
import sys
import time
import warnings
from pathlib import Path

import numpy as np
import pytest

from minerva.loggers import CsvLogger
from minerva.loggers.csv_file import read_values

HEADER = "step,name,value\n"


def rows(path: Path) -> list[list[str]]:
    with path.open(newline="") as file:
        return list(csv.reader(file))


def test_long_format(tmp_path: Path) -> None:
    path = tmp_path / "metrics.csv"
    logger = CsvLogger(path)
    logger.log({"charts/SPS": 12, "losses/entropy": 0.1}, 0)
    logger.log({"charts/SPS": np.float32(0.1)}, 2048)  # type: ignore[dict-item]
    logger.close()
    logger.close()
    assert path.read_text() == (
        HEADER + "0,charts/SPS,12.0\n0,losses/entropy,0.1\n2048,charts/SPS,0.10000000149011612\n"
    )
    with pytest.raises(ValueError, match="has been closed"):
        logger.log({"a": 1.0}, 1)


def test_values_round_trip(tmp_path: Path) -> None:
    generator = random.Random(0)
    values = [0.1, 1e300, -0.0, 5e-324, math.inf, -math.inf, math.nan, *(generator.gauss(0, 1e5) for _ in range(1000))]
    logger = CsvLogger(tmp_path / "metrics.csv")
    for step, value in enumerate(values):
        logger.log({"x": value}, step)
    logger.close()
    read = [float(row[2]) for row in rows(tmp_path / "metrics.csv")[1:]]
    assert np.array_equal(np.array(read), np.array(values), equal_nan=True)
    assert math.copysign(1, read[2]) == -1


def test_names_that_are_not_plain(tmp_path: Path) -> None:
    logger = CsvLogger(tmp_path / "metrics.csv")
    logger.log({'a,"b"': 1.0, "two\nlines": 2.0, "γ": 3.0}, 1)
    logger.close()
    assert rows(tmp_path / "metrics.csv")[1:] == [["1", 'a,"b"', "1.0"], ["1", "two lines", "2.0"], ["1", "γ", "3.0"]]


def test_an_existing_file_is_continued(tmp_path: Path) -> None:
    path = tmp_path / "metrics.csv"
    for step in (1, 2):
        logger = CsvLogger(path)
        logger.log({"a": 0.5}, step)
        logger.close()
    assert path.read_text() == HEADER + "1,a,0.5\n2,a,0.5\n"


@pytest.mark.parametrize("left", ["", "st", HEADER[:-1], HEADER, HEADER + "1,", HEADER + "1,a,0.5\n2,a,12"])
def test_an_incomplete_row_of_a_killed_run_is_removed(tmp_path: Path, left: str) -> None:
    path = tmp_path / "metrics.csv"
    path.write_text(left)
    logger = CsvLogger(path)
    logger.log({"b": 2.0}, 9)
    logger.close()
    whole = "1,a,0.5\n" if "0.5\n" in left else ""
    assert path.read_text() == HEADER + whole + "9,b,2.0\n"


def test_a_file_with_another_header_is_not_changed(tmp_path: Path) -> None:
    for text in ("time,reward\n1,2\n", "x"):
        path = tmp_path / "metrics.csv"
        path.write_text(text)
        with pytest.raises(ValueError, match=r"metrics\.csv is not a file of metrics"):
            CsvLogger(path)
        assert path.read_text() == text


def test_truncation_is_exact(tmp_path: Path) -> None:
    path = tmp_path / "metrics.csv"
    logger = CsvLogger(path)
    positions, texts = [logger.position()], [path.read_text()]
    for step in range(50):
        logger.log({"a/b": 1 / (step + 3), "c": float(step)}, step)
        positions.append(logger.position())
        texts.append(path.read_text())
    logger.close()
    assert positions == [len(text) for text in texts]
    # As in a resumed run: rows after the checkpoint, the last one incomplete, then new rows.
    for position, text in reversed(list(zip(positions, texts, strict=True))):
        with path.open("a") as file:
            file.write("99,a/b,0.1\n99,c,0.")
        logger = CsvLogger(path)
        logger.truncate(position)
        assert path.read_text() == text
        logger.log({"new": 1.0}, 100)
        assert logger.position() == position + len("100,new,1.0\n")
        assert path.read_text() == text + "100,new,1.0\n"
        logger.close()


def test_truncation_removes_buffered_rows(tmp_path: Path) -> None:
    logger = CsvLogger(tmp_path / "metrics.csv")
    position = logger.position()
    logger.log({"a": 1.0}, 1)
    logger.truncate(position)
    logger.close()
    assert (tmp_path / "metrics.csv").read_text() == HEADER


@pytest.mark.parametrize(
    ("position", "kept", "warning"),
    [
        (1000, "1,a,0.5\n2,a,0.5\n", "has 32 bytes instead of the checkpoint's 1000"),
        (31, "1,a,0.5\n", "no row ends at byte 31"),
        (3, "", "points into the header"),
        (0, "", "points into the header"),
        (-7, "", "points into the header"),
    ],
)
def test_a_file_that_does_not_match_its_checkpoint(tmp_path: Path, position: int, kept: str, warning: str) -> None:
    path = tmp_path / "metrics.csv"
    path.write_text(HEADER + "1,a,0.5\n2,a,0.5\n")
    logger = CsvLogger(path)
    with pytest.warns(RuntimeWarning, match=warning):
        logger.truncate(position)
    logger.log({"b": 2.0}, 9)
    logger.close()
    assert path.read_text() == HEADER + kept + "9,b,2.0\n"


def test_a_missing_file(tmp_path: Path) -> None:
    logger = CsvLogger(tmp_path / "metrics.csv")
    with pytest.warns(RuntimeWarning, match="the rows in between are missing"):
        logger.truncate(500)
    logger.close()
    assert (tmp_path / "metrics.csv").read_text() == HEADER


def test_a_row_longer_than_a_block_is_removed_completely(tmp_path: Path) -> None:
    path = tmp_path / "metrics.csv"
    text = HEADER + "1,a,0.5\n" + "2," + "n" * 10_000
    path.write_text(text)
    CsvLogger(path).close()
    assert path.read_text() == HEADER + "1,a,0.5\n"


def test_a_killed_process_keeps_the_rows_on_disk(tmp_path: Path) -> None:
    path = tmp_path / "metrics.csv"
    code = (
        "import os, signal, sys\n"
        "from pathlib import Path\n"
        "from minerva.loggers import CsvLogger\n"
        "logger = CsvLogger(Path(sys.argv[1]))\n"
        "logger.log({'a': 1.0}, 1)\n"
        "print(logger.position(), flush=True)\n"
        "logger.log({'a': 2.0}, 2)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    done = subprocess.run([sys.executable, "-c", code, str(path)], stdout=subprocess.PIPE, text=True, check=False)
    assert done.returncode == -9
    position = int(done.stdout)
    assert path.read_text()[:position] == HEADER + "1,a,1.0\n"
    logger = CsvLogger(path)
    logger.truncate(position)  # without a warning
    logger.close()
    assert path.read_text() == HEADER + "1,a,1.0\n"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings(
    r"ignore:os\.fork\(\) was called:RuntimeWarning"
)  # by JAX, where an earlier test imported it
def test_a_forked_worker_writes_nothing_twice(tmp_path: Path) -> None:
    path = tmp_path / "metrics.csv"
    logger = CsvLogger(path)
    logger.log({"a": 1.0}, 1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of fork in a process with threads
        child = os.fork()
    if child == 0:
        del logger
        os._exit(0)
    os.waitpid(child, 0)
    logger.close()
    assert path.read_text() == HEADER + "1,a,1.0\n"


def test_a_full_disk_raises_and_the_cut_row_is_completed_later(tmp_path: Path) -> None:
    path = tmp_path / "metrics.csv"
    code = (
        "import resource, sys\n"
        "from pathlib import Path\n"
        "from minerva.loggers import CsvLogger\n"
        "logger = CsvLogger(Path(sys.argv[1]))\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (20, resource.RLIM_INFINITY))\n"
        "logger.log({'a': 1.0}, 1)\n"
        "try:\n"
        "    logger.flush()\n"
        "except OSError as error:\n"
        "    print(type(error).__name__, Path(sys.argv[1]).stat().st_size)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))\n"
        "logger.close()\n"
    )
    done = subprocess.run([sys.executable, "-c", code, str(path)], stdout=subprocess.PIPE, text=True, check=True)
    assert done.stdout == "OSError 20\n"
    assert path.read_text() == HEADER + "1,a,1.0\n"


def test_thousands_of_rows_are_cheap(tmp_path: Path) -> None:
    logger = CsvLogger(tmp_path / "metrics.csv")
    metrics = {f"losses/{k}": k / 7 for k in range(10)}
    start = time.perf_counter()
    for step in range(5_000):
        logger.log(metrics, step)
    logger.close()
    assert time.perf_counter() - start < 2.0  # 50,000 rows; about 0.05 s on an idle machine
    assert len(rows(tmp_path / "metrics.csv")) == 50_001


def test_values_of_one_metric_are_read_back(tmp_path: Path) -> None:
    path = tmp_path / "metrics.csv"
    logger = CsvLogger(path)
    logger.log({"a": 0.1, "name": 2.0, 'odd, "name"': 3.0}, 1)
    logger.log({"a": math.nan, "ab": 9.0}, 2)
    logger.log({"a": -math.inf}, 3)
    logger.close()
    first, second, third = read_values(path, "a")
    assert (first, third) == (0.1, -math.inf) and math.isnan(second)
    assert read_values(path, "name") == [2.0]
    assert read_values(path, 'odd, "name"') == [3.0]
    assert read_values(path, "b") == []
