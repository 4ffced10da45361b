from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from minerva.compat.stable_baselines import logger


@pytest.fixture(autouse=True)
def default() -> Iterator[None]:
    yield
    if logger.Logger.CURRENT is not logger.Logger.DEFAULT:
        logger.Logger.CURRENT.close()
        logger.Logger.CURRENT = logger.Logger.DEFAULT
    logger.getkvs().clear()
    logger.set_level(logger.INFO)


def test_values_are_written_in_every_format(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    logger.configure(str(tmp_path / "new"), ["stdout", "log", "json", "csv", "tensorboard"])
    assert logger.get_dir() == str(tmp_path / "new")
    logger.logkv("a", 3)
    logger.record_tabular("b", 0.12345)
    logger.logkv_mean("m", 1.0)
    logger.logkv_mean("m", 4.0)
    assert logger.getkvs() == {"a": 3, "b": 0.12345, "m": 2.5}
    logger.dump_tabular()
    assert not logger.getkvs()
    logger.logkvs({"a": np.float32(0.5), "c": "text", "v": np.arange(2)})
    logger.dumpkvs()
    table = "---------------\n| a | 3     |\n| b | 0.123 |\n| m | 2.5   |\n---------------\n"
    table = table.replace("-" * 15, "-" * 13)
    assert table in capsys.readouterr().out
    assert table in (tmp_path / "new" / "log.txt").read_text()
    lines = (tmp_path / "new" / "progress.json").read_text().splitlines()
    assert [json.loads(line) for line in lines] == [
        {"a": 3, "b": 0.12345, "m": 2.5},
        {"a": 0.5, "c": "text", "v": [0, 1]},
    ]
    assert (tmp_path / "new" / "progress.csv").read_text().splitlines() == [
        "a,b,m,c,v",
        "3,0.12345,2.5,,",
        "0.5,,,text,[0 1]",
    ]
    columns = logger.read_csv(tmp_path / "new" / "progress.csv")
    assert columns["a"].tolist() == [3.0, 0.5]
    assert np.isnan(columns["b"][1])
    assert logger.read_json(tmp_path / "new" / "progress.json")["c"].tolist()[1] == "text"
    logger.reset()
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(tmp_path / "new" / "tb"))
    events.Reload()
    assert [(event.step, event.value) for event in events.Scalars("a")] == [(1, 3.0), (2, 0.5)]


def test_words_have_a_level(capsys: pytest.CaptureFixture[str]) -> None:
    logger.debug("quiet")
    logger.info("a", 1)
    logger.set_level(logger.ERROR)
    assert logger.get_level() == logger.ERROR
    logger.warn("no")
    logger.error("loud")
    assert capsys.readouterr().out == "a 1\nloud\n"


def test_nothing_is_written_where_it_is_disabled(capsys: pytest.CaptureFixture[str]) -> None:
    logger.logkv("a", 1)
    logger.set_level(logger.DISABLED)
    logger.dumpkvs()
    assert not capsys.readouterr().out


def test_a_block_has_a_logger_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = logger.Logger.CURRENT
    monkeypatch.setenv("OPENAI_LOGDIR", str(tmp_path / "env"))
    monkeypatch.setenv("OPENAI_LOG_FORMAT", "json")
    with logger.ScopedConfigure():
        logger.logkv("a", 1)
        logger.dumpkvs()
    assert logger.Logger.CURRENT is before
    assert [path.name for path in (tmp_path / "env").iterdir()] == ["progress.json"]
    with pytest.raises(ValueError, match=r"format_strs: must be of stdout, .* got 'xml'"):
        logger.configure(tmp_path, ["xml"])


def test_time_is_measured() -> None:
    @logger.profile("work")
    def work() -> int:
        time.sleep(0.01)
        return 3

    assert work() == 3
    assert 0.01 <= logger.getkvs()["wait_work"] < 5


def test_a_table() -> None:
    torch = pytest.importorskip("torch")
    values = {"b": 2.0, "a": 0.12345, "c": torch.tensor(0.5), "d": "text"}
    assert logger.as_table(values).splitlines() == [
        "-------------",
        "| a | 0.123 |",
        "| b | 2     |",
        "| c | 0.5   |",
        "| d | text  |",
        "-------------",
    ]
