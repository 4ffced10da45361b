"""Record the episodes of an environment in a CSV file, and read such files (worker processes import this file)."""

from __future__ import annotations

import csv
import importlib
import importlib.util
import json
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TextIO

import numpy as np

from minerva.compat.gym.core import GymnasiumAdapter, Wrapper


class Monitor(Wrapper):
    """Record return, length and time of each episode, in the info of its last step and in a file.

    The interface stays that of the environment: four values per step or Gymnasium's five.

    Args:
        env: The environment.
        filename: The file, a folder for it, or the start of its name; it ends in ``monitor.csv``. None for no file.
        allow_early_resets: Whether an episode may be given up.
        reset_keywords: Arguments of `reset` that the file has too.
        info_keywords: Keys of the last info of an episode that the file has too.
    """

    EXT = "monitor.csv"

    def __init__(
        self,
        env: Any,
        filename: str | os.PathLike[str] | None = None,
        allow_early_resets: bool = True,
        reset_keywords: Sequence[str] = (),
        info_keywords: Sequence[str] = (),
    ) -> None:
        super().__init__(env)
        self._inner = env
        self.t_start = time.time()
        self.reset_keywords = tuple(reset_keywords)
        self.info_keywords = tuple(info_keywords)
        self.allow_early_resets = allow_early_resets
        self.rewards: list[float] = []
        self.needs_reset = True
        self.episode_rewards: list[float] = []
        self.episode_lengths: list[int] = []
        self.episode_times: list[float] = []
        self.total_steps = 0
        self.current_reset_info: dict[str, Any] = {}
        self.file_handler: TextIO | None = None
        self.logger: csv.DictWriter[str] | None = None
        if filename is not None:
            self.file_handler = _file_name(filename).open("w", newline="\n", encoding="utf-8")
            spec = getattr(env, "spec", None)
            header = {"t_start": self.t_start, "env_id": None if spec is None else spec.id}
            self.file_handler.write(f"#{json.dumps(header)}\n")
            columns = ["r", "l", "t", *self.reset_keywords, *self.info_keywords]
            self.logger = csv.DictWriter(self.file_handler, columns, lineterminator="\n")
            self.logger.writeheader()
            self.file_handler.flush()

    @property
    def unwrapped(self) -> Any:
        """The environment inside all wrappers."""
        return self._inner.unwrapped

    def reset(self, **kwargs: Any) -> Any:
        """Start an episode.

        Args:
            kwargs: Arguments of the environment's `reset`; it must have the reset keywords.
        """
        if not (self.allow_early_resets or self.needs_reset):
            raise RuntimeError(
                "reset: the episode is not over; to give up episodes, use Monitor(env, filename, "
                "allow_early_resets=True)."
            )
        for key in self.reset_keywords:
            if kwargs.get(key) is None:
                raise ValueError(f"{key}: must be an argument of reset, because it is one of Monitor's reset_keywords.")
            self.current_reset_info[key] = kwargs[key]
        self.rewards, self.needs_reset = [], False
        if isinstance(self.env, GymnasiumAdapter) and self.env is not self._inner:
            seed = self.env.take_seed()
            return self._inner.reset(**{**({} if seed is None else {"seed": seed}), **kwargs})
        return self._inner.reset(**kwargs)

    def step(self, action: Any) -> Any:
        """Take a step; after an episode, its record is in ``info["episode"]``."""
        if self.needs_reset:
            raise RuntimeError("step: the episode is over, or has not begun: call reset.")
        result = self._inner.step(action)
        self.rewards.append(float(result[1]))
        self.total_steps += 1
        if not (result[2] or (len(result) == 5 and result[3])):
            return result
        *before, info = result
        return (*before, {**info, "episode": self._end_episode(info)})

    def _end_episode(self, info: dict[str, Any]) -> dict[str, Any]:
        self.needs_reset = True
        elapsed = time.time() - self.t_start
        self.episode_rewards.append(sum(self.rewards))
        self.episode_lengths.append(len(self.rewards))
        self.episode_times.append(elapsed)
        episode = {"r": round(sum(self.rewards), 6), "l": len(self.rewards), "t": round(elapsed, 6)}
        for key in self.info_keywords:
            if key not in info:
                raise KeyError(f"{key}: must be in the info of an episode's last step, got {sorted(info)}.")
            episode[key] = info[key]
        episode.update(self.current_reset_info)
        if self.logger is not None and self.file_handler is not None:
            self.logger.writerow(episode)
            self.file_handler.flush()
        return episode

    def close(self) -> None:
        """Close the environment and the file."""
        super().close()
        if self.file_handler is not None:
            self.file_handler.close()

    def get_total_steps(self) -> int:
        """Return the number of steps."""
        return self.total_steps

    def get_episode_rewards(self) -> list[float]:
        """Return the returns of the episodes."""
        return self.episode_rewards

    def get_episode_lengths(self) -> list[int]:
        """Return the lengths of the episodes."""
        return self.episode_lengths

    def get_episode_times(self) -> list[float]:
        """Return the seconds from the start to the end of each episode."""
        return self.episode_times


class LoadMonitorResultsError(Exception):
    """A folder has no files of a `Monitor`."""


class Column(np.ndarray[Any, Any]):
    """A column of `Results`: an array, which has `values` as a column of pandas does."""

    @property
    def values(self) -> np.ndarray[Any, Any]:
        """The column as a plain array."""
        return self.view(np.ndarray)


class Results:
    """Episodes as a table: ``results["r"]`` or ``results.r`` is a column, ``results[mask]`` a table of some rows.

    Args:
        columns: The columns.
    """

    def __init__(self, columns: dict[str, Any]) -> None:
        self._columns = {name: _column(values) for name, values in columns.items()}

    @property
    def columns(self) -> list[str]:
        """Names of the columns."""
        return list(self._columns)

    def __len__(self) -> int:
        return len(next(iter(self._columns.values())))

    def __contains__(self, name: str) -> bool:
        return name in self._columns

    def __getitem__(self, key: Any) -> Any:
        if isinstance(key, str):
            return self._columns[key]
        return Results({name: values[key] for name, values in self._columns.items()})

    def __setitem__(self, name: str, values: Any) -> None:
        self._columns[name] = _column(values)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name not in self._columns:
            raise AttributeError(f"results: there is no column {name!r}.")
        return self._columns[name]

    def __repr__(self) -> str:
        return f"Results({len(self)} episodes: {', '.join(self._columns)})"


def _column(values: Any) -> Column:
    has_lists = any(isinstance(value, list) for value in values)
    return np.asarray(values, dtype=object if has_lists else None).view(Column)


def get_monitor_files(path: str | os.PathLike[str]) -> list[str]:
    """Return the files of monitors in a folder."""
    return sorted(str(file) for file in Path(path).glob("*" + Monitor.EXT))


def load_results(path: str | os.PathLike[str]) -> Any:
    """Return the episodes in all files of monitors in a folder, in the order in which they ended.

    The column ``t`` has the seconds since the first monitor's start.

    Args:
        path: The folder.

    Returns:
        A `pandas.DataFrame` if pandas is installed, `Results` otherwise.

    Raises:
        LoadMonitorResultsError: There is no file.
    """
    files = get_monitor_files(path)
    if not files:
        raise LoadMonitorResultsError(f"path: {path} has no files *{Monitor.EXT}.")
    rows: list[dict[str, Any]] = []
    starts = []
    names = ["index", "r", "l", "t"]
    for file in files:
        with Path(file).open(newline="", encoding="utf-8") as lines:
            first = lines.readline()
            if not first.startswith("#"):
                raise LoadMonitorResultsError(f"path: {file} must begin with '#', got {first[:40]!r}.")
            start = json.loads(first[1:])["t_start"]
            starts.append(start)
            reader = csv.DictReader(lines)
            for index, row in enumerate(reader):
                numbers = {name: parsed(text) for name, text in row.items()}
                rows.append({"index": index, **numbers, "t": numbers["t"] + start})
            names += [name for name in reader.fieldnames or [] if name not in names]
    rows.sort(key=lambda row: row["t"])
    columns = {name: [row.get(name, float("nan")) for row in rows] for name in names}
    columns["t"] = [t - min(starts) for t in columns["t"]]
    return as_table_object(columns)


def as_table_object(columns: dict[str, Any]) -> Any:
    """Return columns as a `pandas.DataFrame` if pandas is installed, as `Results` otherwise."""
    if importlib.util.find_spec("pandas") is not None:
        return importlib.import_module("pandas").DataFrame(columns)
    return Results(columns)


def parsed(text: str) -> Any:
    """Return the number that a text is, or the text."""
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def _file_name(name: str | os.PathLike[str]) -> Path:
    path = Path(name)
    if path.name.endswith(Monitor.EXT):
        return path
    return path / Monitor.EXT if path.is_dir() else path.with_name(f"{path.name}.{Monitor.EXT}")
