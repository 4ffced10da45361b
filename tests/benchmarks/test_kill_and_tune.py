from pathlib import Path

import pytest

pytest.importorskip("optuna", reason='Optuna is not installed: pip install "minerva-rl[tune]"')

from benchmarks.kill_and_tune import kill_and_tune


def test_a_search_that_is_killed_loses_no_trial_and_runs_none_twice(tmp_path: Path) -> None:
    found = kill_and_tune(tmp_path, trials=4, kills=[1], seeds=[1], steps=1536, jobs=2)
    assert found["exit_code"] == 0, found["said"]
    assert [found[name] for name in ("trials", "ended", "folders")] == [4, 4, 4]
    assert (found["created_in_the_journal"], found["ended_in_the_journal"]) == (4, 4)
    assert found["rounds"][0]["running"] and found["touched_after_their_end"] == 0
    assert found["interrupted_with_other_settings"] == found["interrupted_with_other_evaluations"] == 0
    assert "Best trials, with seeds 1" in found["said"] and (tmp_path / "out" / "tuning.html").exists()
