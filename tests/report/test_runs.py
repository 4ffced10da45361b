from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from minerva.loggers import CsvLogger
from minerva.report import read_run

CONFIG: dict[str, Any] = {
    "algorithm": "ppo",
    "env_id": "Pendulum-v1",
    "seed": 3,
    "total_steps": 100_000,
    "config": {"gamma": 0.9, "policy_layer_sizes": [64, 64]},
    "versions": {"minerva": "0"},
    "git_commit": None,
    "command": "minerva train ppo",
}


def write(folder: Path, metrics: str | None = None, config: Any = CONFIG) -> Path:
    (folder / "config.json").write_text(json.dumps(config))
    if metrics is not None:
        (folder / "metrics.csv").write_text(metrics)
    return folder


def test_reads_what_the_csv_logger_wrote(tmp_path: Path) -> None:
    logger = CsvLogger(write(tmp_path) / "metrics.csv")
    logger.log({"eval/return_mean": -1200.123456789, 'odd,"name"': 1.0}, 0)
    logger.log({"train/episode_return": 1.0}, 200)
    logger.log({"train/episode_return": 2.0}, 200)
    logger.log({"eval/return_mean": 0.1 + 0.2, "losses/explained_variance": math.nan}, 2048)
    logger.close()
    run = read_run(tmp_path)
    assert (run.folder, run.algorithm, run.env_id, run.seed, run.total_steps) == (
        tmp_path,
        "ppo",
        "Pendulum-v1",
        3,
        100_000,
    )
    assert run.config == CONFIG["config"]
    assert set(run.metrics) == {
        "eval/return_mean",
        'odd,"name"',
        "train/episode_return",
        "losses/explained_variance",
    }
    series = run.metrics["eval/return_mean"]
    assert series.steps.tolist() == [0, 2048]
    assert series.steps.dtype == np.int64
    assert series.values.tolist() == [-1200.123456789, 0.1 + 0.2]
    assert run.metrics["train/episode_return"].steps.tolist() == [200, 200]
    assert math.isnan(run.metrics["losses/explained_variance"].values[0])


def test_an_incomplete_row_is_skipped(tmp_path: Path) -> None:
    whole = "step,name,value\n1,a,123.4\n"
    for torn in ("2", "2,a", "2,a,", "2,a,12"):
        series = read_run(write(tmp_path, whole + torn)).metrics["a"]
        assert series.values.tolist() == [123.4]


@pytest.mark.parametrize("metrics", [None, "", "step,na", "step,name,value\n"])
def test_a_run_that_has_just_started(tmp_path: Path, metrics: str | None) -> None:
    assert read_run(write(tmp_path, metrics)).metrics == {}


def test_invalid_rows_are_skipped_and_counted(tmp_path: Path) -> None:
    write(tmp_path, "step,name,value\n1,a,0.5\n\0\0\0\n2,a\n3,a,x\n4,a,1.5\n")
    with pytest.warns(RuntimeWarning, match="3 rows could not be read"):
        run = read_run(tmp_path)
    assert run.metrics["a"].steps.tolist() == [1, 4]


def test_a_folder_that_is_not_a_run(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"there is no config\.json in it; give a folder that `minerva train` wrote"):
        read_run(tmp_path)
    with pytest.raises(ValueError, match=r"nowhere is not a run's folder: there is no such folder"):
        read_run(tmp_path / "nowhere")
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match="there is no such folder"):
        read_run(tmp_path / "file")


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ("{", r"config\.json is not valid JSON"),
        ("[]", "does not describe a run"),
        (json.dumps({k: v for k, v in CONFIG.items() if k != "env_id"}), "has no 'env_id'"),
        (json.dumps(CONFIG | {"seed": "three"}), "cannot be read"),
        (json.dumps(CONFIG | {"config": None}), "cannot be read"),
    ],
)
def test_an_invalid_config(tmp_path: Path, config: str, message: str) -> None:
    (tmp_path / "config.json").write_text(config)
    with pytest.raises(ValueError, match=message) as caught:
        read_run(tmp_path)
    assert str(tmp_path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_metrics_with_another_header(tmp_path: Path) -> None:
    write(tmp_path, "time,reward\n1,2\n")
    with pytest.raises(ValueError, match=r"must start with 'step,name,value', got 'time,reward'"):
        read_run(tmp_path)


def test_the_package_imports_nothing_heavy() -> None:
    code = (
        "import sys, minerva.report\n"
        "heavy = {'torch', 'matplotlib', 'rich', 'scipy', 'gymnasium'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    subprocess.run([sys.executable, "-W", "error", "-c", code], check=True)
