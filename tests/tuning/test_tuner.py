from __future__ import annotations

import json
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

from minerva import api
from minerva.presets.files import read_preset_file
from minerva.sweeps.local import LocalExecutor
from minerva.sweeps.spec import Resources
from minerva.sweeps.status import SweepStatus
from minerva.trainers.ppo.config import PPOConfig
from minerva.tuning.spec import read_tune_spec
from minerva.tuning.tuner import Tuner, TuneResult
from minerva.utils.folder_lock import FolderLock, LockedError
from tests.tuning import instant_trainer

pytest.importorskip("optuna")

PROGRAM = (sys.executable, instant_trainer.__file__)
SPEC: dict[str, Any] = {
    "name": "mine", "algorithms": ["ppo"], "envs": ["Pendulum-v1"], "seeds": "1-2", "preset": "none",
    "total_steps": 4096, "settings": {"gamma": 0.9},
    "search": {
        "policy_lr": {"low": 1e-5, "high": 1e-1, "log": True},
        "target_kl": {"choices": ["none", 0.02]},
        "policy_layer_sizes": {"choices": [[8, 8], [64, 64]]},
    },
    "tune": {"trials": 6, "pruner": "none"},
}  # fmt: skip


def tuner(out: Path, jobs: int = 4, **changed: Any) -> Tuner:
    spec = read_tune_spec({**SPEC, **changed}, api.algorithms())
    return Tuner(spec, api.algorithms(), out, LocalExecutor(jobs, Resources(), PROGRAM), retries=0)


def starts(out: Path, trial: int, seed: int = 1) -> int:
    return len((out / f"trials/{trial:04d}/seed{seed}/starts").read_text())


@pytest.fixture(scope="module")
def tuned(tmp_path_factory: pytest.TempPathFactory) -> TuneResult:
    """A tuning of six trials with two seeds."""
    return tuner(tmp_path_factory.mktemp("tuned") / "out").tune()


def test_the_first_trial_is_untuned_and_the_best_one_wins(tuned: TuneResult) -> None:
    assert [trial.number for trial in tuned.trials] == list(range(6))
    assert {trial.outcome for trial in tuned.trials} == {"complete"}
    assert tuned.trials[0].values == {"policy_lr": 3e-4, "target_kl": "0.02", "policy_layer_sizes": "[64, 64]"}
    assert tuned.best is not None and tuned.best.value == max(trial.value or -9 for trial in tuned.trials)
    assert tuned.trials[0].value == pytest.approx(-2.319, abs=1e-3)  # -(log10 3e-4 + 2)²
    assert all(trial.reported == 10 for trial in tuned.trials)


def test_the_best_settings_are_a_preset_that_knows_its_seeds(tuned: TuneResult) -> None:
    assert tuned.preset is not None and tuned.best is not None and tuned.tuned_on == "1-2"
    preset = read_preset_file(tuned.preset, PPOConfig)
    assert preset.total_steps == 4096 and preset.tuned is not None and preset.tuned.seeds == "1-2"
    config, best = PPOConfig(**preset.fields), tuned.best.values
    assert (config.gamma, config.policy_lr) == (0.9, best["policy_lr"])
    assert config.target_kl == {"none": None, "0.02": 0.02}[best["target_kl"]]
    assert str(list(config.policy_layer_sizes)) == best["policy_layer_sizes"]
    assert tomllib.loads(tuned.preset.read_text())["Pendulum-v1"]["tuned_on"] == "1-2"


def test_the_page_needs_nothing_from_elsewhere(tuned: TuneResult) -> None:
    assert tuned.page is not None
    page = tuned.page.read_text(encoding="utf-8")
    for word in ("<h2>History</h2>", "<h2>Importance</h2>", "<h2>Slices</h2>", "(untuned)", "chosen on seeds 1-2"):
        assert word in page, word
    assert page.count("data:image/png;base64,") == 3 and "http" not in page


def test_status_says_how_far_the_search_is(tuned: TuneResult) -> None:
    status = SweepStatus.read(tuned.out_dir)
    assert len(status.runs) == 12 and status.counts()["done"] == 12 and tuned.best is not None
    assert status.note == f"6 of 6 trials: 6 complete; best {tuned.best.value:,.4g} (trial {tuned.best.number})"


def test_started_again_it_runs_nothing_and_more_trials_are_added(tuned: TuneResult) -> None:
    out = tuned.out_dir
    again = tuner(out).tune()
    assert again.trials == tuned.trials and again.best == tuned.best
    more = tuner(out, tune={"trials": 7, "pruner": "none"}).tune()
    assert more.trials[:6] == tuned.trials and len(more.trials) == 7
    assert [starts(out, k, seed) for k in range(7) for seed in (1, 2)] == [1] * 14


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"seeds": "1-3"}, "^seeds: must stay"),
        ({"total_steps": 8192}, "^total_steps: must stay 4096, with which the trials in .* got 8192; give the same"),
        ({"settings": {"gamma": 0.8}}, "^settings: must stay {'gamma': 0.9}, .* got {'gamma': 0.8}"),
        ({"search": {"policy_lr": {"low": 1e-4, "high": 1e-1, "log": True}}}, "^search: must stay .*1e-05 to 0.1"),
    ],
)
def test_another_search_needs_another_folder(tuned: TuneResult, changed: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        tuner(tuned.out_dir, **changed).tune()


def test_a_second_tuner_in_the_folder_is_refused(tmp_path: Path) -> None:
    lock = FolderLock(tmp_path, tmp_path)
    lock.acquire()
    try:
        with pytest.raises(LockedError, match="^out: one process at a time may tune in a folder, and .* in use"):  # noqa: RUF043
            tuner(tmp_path).tune()
    finally:
        lock.release()
    assert list(tmp_path.iterdir()) == []


def test_bad_trials_are_pruned_and_their_runs_are_stopped(tmp_path: Path) -> None:
    result = tuner(tmp_path, tune={"trials": 10, "warmup": 2}, seeds="1", search={
        "policy_lr": {"low": 1e-9, "high": 1e-1, "log": True}
    }).tune()  # fmt: skip
    pruned = [trial for trial in result.trials if trial.outcome == "pruned"]
    assert pruned and all(trial.number >= 5 and 3 <= trial.reported < 10 for trial in pruned)
    status = {run.folder: run for run in SweepStatus.read(tmp_path).runs}
    for trial in pruned:
        folder = f"trials/{trial.number:04d}/seed1"
        assert status[folder].state == "pruned" and status[folder].error is None
        assert len((tmp_path / folder / "metrics.csv").read_text().splitlines()) < 11
    again = tuner(tmp_path, tune={"trials": 10, "warmup": 2}, seeds="1", search={
        "policy_lr": {"low": 1e-9, "high": 1e-1, "log": True}
    }).tune()  # fmt: skip
    assert again.trials == result.trials
    assert all(starts(tmp_path, trial.number) == 1 for trial in result.trials)


def test_a_failing_trial_does_not_stop_the_others(tmp_path: Path) -> None:
    result = tuner(tmp_path, seeds="8-9", tune={"trials": 2}).tune()
    assert [trial.outcome for trial in result.trials] == ["failed", "failed"]
    assert result.trials[0].error == "trials/0000/seed9: env: it fell over."
    assert result.best is None and result.preset is None and not (tmp_path / "best.toml").exists()
    assert result.page is not None and "it fell over" in result.page.read_text()


def test_a_kill_at_any_line_of_the_journal_loses_no_trial(tuned: TuneResult, tmp_path: Path) -> None:
    """What a kill leaves: some lines of the journal, the last one perhaps in part, and the runs' folders."""
    lines = (tuned.out_dir / "journal.log").read_bytes().splitlines(keepends=True)
    begun = [k for k, line in enumerate(lines) if b'"op_code":4' in line]
    for cut in (3, begun[2] + 2, len(lines) - 1):
        out = tmp_path / str(cut)
        out.mkdir()
        (out / "journal.log").write_bytes(b"".join(lines[:cut]) + lines[cut][:20])
        known = [line for line in lines[:cut] if b'"op_code":5' in line]
        spec = {**SPEC, "tune": {"trials": 4, "pruner": "none"}}
        result = tuner(out, jobs=8, **{"seeds": "1-2", "tune": spec["tune"]}).tune()
        count = max(4, sum(b'"op_code":4' in line for line in lines[:cut]))
        assert [trial.number for trial in result.trials] == list(range(count))
        assert {trial.outcome for trial in result.trials} == {"complete"}
        after = (out / "journal.log").read_bytes().splitlines()
        assert all(line.strip() in after for line in known)  # no setting that was chosen is chosen again
        assert len(
            {(row["trial_id"], row["param_name"]) for row in map(json.loads, after) if row["op_code"] == 5}
        ) == sum(b'"op_code":5' in line for line in after)
