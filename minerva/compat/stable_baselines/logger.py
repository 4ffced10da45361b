"""stable-baselines' logger: collect values, then write them as a table, text, JSON, CSV or for TensorBoard."""

from __future__ import annotations

import csv
import datetime
import json
import os
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, TextIO

import numpy as np

DEBUG, INFO, WARN, ERROR, DISABLED = 10, 20, 30, 40, 50

Values = Mapping[str, Any]


class KVWriter:
    """Base class of formats that write values by their names."""

    def writekvs(self, kvs: Values) -> None:
        """Write values."""
        raise NotImplementedError

    def close(self) -> None:
        """Close the file."""


class SeqWriter:
    """Base class of formats that write text."""

    def writeseq(self, seq: Iterable[str]) -> None:
        """Write text in a line."""
        raise NotImplementedError


class HumanOutputFormat(KVWriter, SeqWriter):
    """Write values as a text table, to a file or the standard output.

    Args:
        filename_or_file: The file; None for the standard output.
    """

    def __init__(self, filename_or_file: str | os.PathLike[str] | TextIO | None = None) -> None:
        self.own_file = isinstance(filename_or_file, (str, os.PathLike))
        self._file = _opened(filename_or_file) if isinstance(filename_or_file, (str, os.PathLike)) else filename_or_file

    @property
    def file(self) -> TextIO:
        """The file that is written."""
        return sys.stdout if self._file is None else self._file

    def writekvs(self, kvs: Values) -> None:
        """Write a table, sorted by name."""
        if kvs:
            self.file.write(as_table(kvs) + "\n")
            self.file.flush()

    def writeseq(self, seq: Iterable[str]) -> None:
        """Write text in a line."""
        self.file.write(" ".join(seq) + "\n")
        self.file.flush()

    def close(self) -> None:
        """Close the file if it was opened here."""
        if self.own_file:
            self.file.close()


class JSONOutputFormat(KVWriter):
    """Write values as JSON, one object per line.

    Args:
        filename: The file.
    """

    def __init__(self, filename: str | os.PathLike[str]) -> None:
        self.file = _opened(filename)

    def writekvs(self, kvs: Values) -> None:
        """Write a line."""
        self.file.write(json.dumps({name: _plain(value) for name, value in sorted(kvs.items())}) + "\n")
        self.file.flush()

    def close(self) -> None:
        """Close the file."""
        self.file.close()


class CSVOutputFormat(KVWriter):
    """Write values to a CSV file; where a name is new, the file is written again with another column.

    Args:
        filename: The file.
    """

    def __init__(self, filename: str | os.PathLike[str]) -> None:
        self._path = Path(filename)
        self._path.write_text("", encoding="utf-8")
        self.keys: list[str] = []
        self._rows: list[Values] = []

    def writekvs(self, kvs: Values) -> None:
        """Write a row."""
        self._rows.append(dict(kvs))
        new = [name for name in kvs if name not in self.keys]
        self.keys += new
        with self._path.open("w" if new else "a", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, self.keys, lineterminator="\n")
            if new:
                writer.writeheader()
            writer.writerows(self._rows if new else self._rows[-1:])


class TensorBoardOutputFormat(KVWriter):
    """Write values to a TensorBoard event file.

    Args:
        folder: Its folder.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        from minerva.loggers import open_tensorboard

        self.dir = str(folder)
        self.step = 1
        self._writer = open_tensorboard(Path(folder))

    def writekvs(self, kvs: Values) -> None:
        """Write the values that are numbers."""
        if self._writer is not None:
            self._writer.log({name: float(value) for name, value in kvs.items() if is_number(value)}, self.step)
        self.step += 1

    def close(self) -> None:
        """Close the file."""
        if self._writer is not None:
            self._writer.close()


def make_output_format(_format: str, ev_dir: str | os.PathLike[str], log_suffix: str = "") -> KVWriter:
    """Build an output format of the logger by its name: stdout, log, json, csv or tensorboard.

    Args:
        _format: "stdout", "log", "json", "csv" or "tensorboard".
        ev_dir: Folder of its file.
        log_suffix: End of the file's name.
    """
    folder = Path(ev_dir)
    folder.mkdir(parents=True, exist_ok=True)
    makers: dict[str, Callable[[], KVWriter]] = {
        "stdout": HumanOutputFormat,
        "log": lambda: HumanOutputFormat(folder / f"log{log_suffix}.txt"),
        "json": lambda: JSONOutputFormat(folder / f"progress{log_suffix}.json"),
        "csv": lambda: CSVOutputFormat(folder / f"progress{log_suffix}.csv"),
        "tensorboard": lambda: TensorBoardOutputFormat(folder / f"tb{log_suffix}"),
    }
    if _format not in makers:
        raise ValueError(f"format_strs: must be of {', '.join(makers)}, got {_format!r}.")
    return makers[_format]()


class Logger:
    """Collect values and write them in several formats.

    Args:
        folder: Folder of the files, or None.
        output_formats: The formats.
    """

    DEFAULT: ClassVar[Logger]
    CURRENT: ClassVar[Logger]

    def __init__(self, folder: str | None, output_formats: Sequence[KVWriter]) -> None:
        self.name2val: defaultdict[str, Any] = defaultdict(float)
        self.name2cnt: defaultdict[str, int] = defaultdict(int)
        self.level = INFO
        self.dir = folder
        self.output_formats = list(output_formats)

    def logkv(self, key: str, val: Any) -> None:
        """Set a value; the last one counts."""
        self.name2val[key] = val

    record = record_tabular = logkv

    def logkv_mean(self, key: str, val: Any) -> None:
        """Add to the values that a name has the mean of."""
        if val is None:
            self.name2val[key] = None
            return
        count = self.name2cnt[key]
        self.name2val[key] = (self.name2val[key] * count + val) / (count + 1)
        self.name2cnt[key] = count + 1

    def dumpkvs(self) -> None:
        """Write the values and forget them."""
        if self.level == DISABLED:
            return
        for output in self.output_formats:
            output.writekvs(self.name2val)
        self.name2val.clear()
        self.name2cnt.clear()

    def log(self, *args: Any, level: int = INFO) -> None:
        """Write words in a line if the level is high enough."""
        if self.level <= level:
            for output in self.output_formats:
                if isinstance(output, SeqWriter):
                    output.writeseq(map(str, args))

    def set_level(self, level: int) -> None:
        """Set the lowest level that is written."""
        self.level = level

    def get_dir(self) -> str | None:
        """Return the folder of the files."""
        return self.dir

    def close(self) -> None:
        """Close the files."""
        for output in self.output_formats:
            output.close()


Logger.DEFAULT = Logger.CURRENT = Logger(None, [HumanOutputFormat()])


def configure(folder: str | os.PathLike[str] | None = None, format_strs: Sequence[str] | None = None) -> None:
    """Write from now on to a folder.

    Args:
        folder: The folder (default: the environment variable OPENAI_LOGDIR, or a new temporary one).
        format_strs: The formats, see `make_output_format` (default: the variable OPENAI_LOG_FORMAT, or "stdout", "log"
            and "csv").
    """
    if folder is None:
        folder = os.environ.get("OPENAI_LOGDIR")
    if folder is None:
        now = datetime.datetime.now().strftime("openai-%Y-%m-%d-%H-%M-%S-%f")
        folder = Path(tempfile.gettempdir()) / now
    Path(folder).mkdir(parents=True, exist_ok=True)
    if format_strs is None:
        format_strs = os.environ.get("OPENAI_LOG_FORMAT", "stdout,log,csv").split(",")
    outputs = [make_output_format(name, folder) for name in format_strs if name]
    Logger.CURRENT = Logger(str(folder), outputs)
    log(f"Logging to {folder}")


def reset() -> None:
    """Write to the standard output again."""
    if Logger.CURRENT is not Logger.DEFAULT:
        Logger.CURRENT.close()
        Logger.CURRENT = Logger.DEFAULT
        log("Reset logger")


class ScopedConfigure:
    """Write to a folder within a ``with`` block.

    Args:
        folder: The folder.
        format_strs: The formats.
    """

    def __init__(self, folder: str | os.PathLike[str] | None = None, format_strs: Sequence[str] | None = None) -> None:
        self.dir = folder
        self.format_strs = format_strs

    def __enter__(self) -> None:
        self._previous = Logger.CURRENT
        configure(self.dir, self.format_strs)

    def __exit__(self, *error: object) -> None:
        Logger.CURRENT.close()
        Logger.CURRENT = self._previous


def logkv(key: str, val: Any) -> None:
    """Set a value of the current logger."""
    Logger.CURRENT.logkv(key, val)


def logkv_mean(key: str, val: Any) -> None:
    """Add to the values that a name of the current logger has the mean of."""
    Logger.CURRENT.logkv_mean(key, val)


def logkvs(key_values: Values) -> None:
    """Set values of the current logger."""
    for key, value in key_values.items():
        logkv(key, value)


def dumpkvs() -> None:
    """Write the values of the current logger."""
    Logger.CURRENT.dumpkvs()


def getkvs() -> dict[str, Any]:
    """Return the values of the current logger."""
    return Logger.CURRENT.name2val


def log(*args: Any, level: int = INFO) -> None:
    """Write text in a line."""
    Logger.CURRENT.log(*args, level=level)


def debug(*args: Any) -> None:
    """Write words with the level DEBUG."""
    log(*args, level=DEBUG)


def info(*args: Any) -> None:
    """Write words with the level INFO."""
    log(*args, level=INFO)


def warn(*args: Any) -> None:
    """Write words with the level WARN."""
    log(*args, level=WARN)


def error(*args: Any) -> None:
    """Write words with the level ERROR."""
    log(*args, level=ERROR)


def set_level(level: int) -> None:
    """Set the lowest level that the current logger writes."""
    Logger.CURRENT.set_level(level)


def get_level() -> int:
    """Return the lowest level that the current logger writes."""
    return Logger.CURRENT.level


def get_dir() -> str | None:
    """Return the folder of the current logger."""
    return Logger.CURRENT.get_dir()


record_tabular = logkv
dump_tabular = dumpkvs


class ProfileKV:
    """Add the seconds that a ``with`` block takes to the value ``wait_<name>``.

    Args:
        name: The name.
    """

    def __init__(self, name: str) -> None:
        self.name = f"wait_{name}"

    def __enter__(self) -> None:
        self.start_time = time.time()

    def __exit__(self, *error: object) -> None:
        Logger.CURRENT.name2val[self.name] += time.time() - self.start_time


def profile(name: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Return a decorator that measures a function as `ProfileKV` does."""

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        def measured(*args: Any, **kwargs: Any) -> Any:
            with ProfileKV(name):
                return function(*args, **kwargs)

        return measured

    return decorate


def read_json(fname: str | os.PathLike[str]) -> Any:
    """Return the values in a file of `JSONOutputFormat` as a table, see `bench.load_results`."""
    with Path(fname).open(encoding="utf-8") as lines:
        return _table([json.loads(line) for line in lines])


def read_csv(fname: str | os.PathLike[str]) -> Any:
    """Return the values in a file of `CSVOutputFormat` as a table, see `bench.load_results`."""
    from minerva.compat.stable_baselines.bench.monitor import parsed

    with Path(fname).open(newline="", encoding="utf-8") as lines:
        return _table([{name: parsed(text) for name, text in row.items() if text} for row in csv.DictReader(lines)])


def _table(rows: list[dict[str, Any]]) -> Any:
    from minerva.compat.stable_baselines.bench.monitor import as_table_object

    names = list(dict.fromkeys(name for row in rows for name in row))
    return as_table_object({name: [row.get(name, float("nan")) for row in rows] for name in names})


def as_table(values: Values) -> str:
    """Format values as a text table, sorted by name."""
    texts = {_shortened(str(name)): _shortened(_text(value)) for name, value in values.items()}
    left, right = max(map(len, texts)), max(map(len, texts.values()))
    line = "-" * (left + right + 7)
    return "\n".join([line, *(f"| {name:<{left}} | {texts[name]:<{right}} |" for name in sorted(texts)), line])


def _text(value: Any) -> str:
    if not is_number(value):
        return str(value)
    number = float(value)
    return str(int(number)) if number.is_integer() else f"{number:.3g}"


def _opened(name: str | os.PathLike[str]) -> TextIO:
    return Path(name).open("w", encoding="utf-8")


def _shortened(text: str) -> str:
    return text[:37] + "..." if len(text) > 40 else text


def is_number(value: Any) -> bool:
    """Return whether a value is one number."""
    if isinstance(value, str):
        return False
    try:
        float(value)
    except (TypeError, ValueError, RuntimeError):  # torch raises the last for several numbers
        return False
    return True


def _plain(value: Any) -> Any:
    if isinstance(value, (np.ndarray, np.generic)):
        return float(value.item()) if value.size == 1 else value.tolist()
    return value
