from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("optuna")

from minerva.tuning.space import Dimension, Space
from minerva.tuning.spec import Search
from minerva.tuning.study import JOURNAL, Study, importances

SPACE = Space(
    (
        Dimension("lr", "float", 1e-5, 1e-1, log=True),
        Dimension("epochs", "int", 1, 20),
        Dimension("optimizer", "choices", choices={"adam": "adam", "sgd": "sgd"}),
        Dimension("momentum", "float", 0.0, 1.0, when={"optimizer": ("sgd",)}),
    )
)


def study(folder: Path, **search: Any) -> Study:
    return Study(folder, SPACE, Search(**search), None, {"seeds": [1]})


def value_of(values: dict[str, Any]) -> float:
    return -((math.log10(values["lr"]) + 2) ** 2)


def run(one: Study, count: int) -> None:
    for _ in range(count):
        trial = one.ask()
        one.complete(trial.number, value_of(trial.values))


@pytest.mark.parametrize("sampler", ["random", "tpe", "cmaes"])
def test_a_search_that_is_started_anew_for_each_trial_chooses_the_same(tmp_path: Path, sampler: str) -> None:
    for name in ("once", "often"):
        (tmp_path / name).mkdir()
    run(study(tmp_path / "once", sampler=sampler), 14)
    for _ in range(14):
        run(study(tmp_path / "often", sampler=sampler), 1)
    once, often = (study(tmp_path / name, sampler=sampler).trials() for name in ("once", "often"))
    assert once == often and len({trial.values["lr"] for trial in once}) == 14
    assert all(("momentum" in trial.values) == (trial.values["optimizer"] == "sgd") for trial in once)
    assert all(isinstance(trial.values["epochs"], int) for trial in once)


def test_a_search_learns_from_its_trials(tmp_path: Path) -> None:
    one = study(tmp_path)
    run(one, 40)
    values = [trial.value or 0.0 for trial in one.trials()]
    assert max(values) > -0.05 and sum(values[-10:]) > sum(values[:10])
    shares = importances(one.optuna)
    assert next(iter(shares)) == "lr" and sum(shares.values()) == pytest.approx(1)


def test_a_trial_that_was_running_keeps_what_was_chosen(tmp_path: Path) -> None:
    begun = study(tmp_path).ask()
    whole = (tmp_path / JOURNAL).read_bytes().splitlines(keepends=True)
    chosen = next(k for k, line in enumerate(whole) if b"param_name" in line)
    (tmp_path / JOURNAL).write_bytes(b"".join(whole[: chosen + 1]) + whole[chosen + 1][:9])  # killed while it wrote
    again = study(tmp_path)
    assert [(trial.outcome, trial.values) for trial in again.trials()] == [("running", {"lr": begun.values["lr"]})]
    values = again.resume(0).values  # the rest is chosen now
    assert values["lr"] == begun.values["lr"] and {"epochs", "optimizer"} <= set(values)
    again.complete(0, 1.0)
    assert [(trial.outcome, trial.value) for trial in study(tmp_path).trials()] == [("complete", 1.0)]


def test_a_damaged_journal_is_a_sentence(tmp_path: Path) -> None:
    run(study(tmp_path), 1)
    lines = (tmp_path / JOURNAL).read_text().splitlines()
    (tmp_path / JOURNAL).write_text("\n".join([lines[0], lines[1][:30], *lines[2:]]) + "\n")
    with pytest.raises(ValueError, match=r"^out: .*journal\.log is damaged \(.*\); choose another folder\.$"):
        study(tmp_path)
