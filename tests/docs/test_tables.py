from pathlib import Path

import pytest

from benchmarks import summary
from docs import tables
from minerva.trainers.vmpo.config import VMPOConfig
from minerva.trainers.vmpo.health import vmpo_rules


def write_results(folder: Path, task: str, returns: list[float]) -> None:
    rows = [f"{seed},1000,{value},50" for seed, value in enumerate(returns)]
    (folder / "results" / "ppo" / task).mkdir(parents=True)
    (folder / "results" / "ppo" / task / "runs.csv").write_text(
        "\n".join(["seed,steps,return_mean,sps", *rows]) + "\n", encoding="utf-8"
    )


def test_goals_are_compared_with_means_that_are_not_rounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tasks = ("Near-v0", "NotRun-v0", "Reached-v0", "Below-v0")
    published = [f'[[ppo."{task}"]]\npeers = "none"\ngoal = -100\n' for task in tasks]
    (tmp_path / "published.toml").write_text("\n".join(published), encoding="utf-8")
    write_results(tmp_path, "Near-v0", [-100.8, -100.0])
    write_results(tmp_path, "Reached-v0", [-101.0, -99.0])
    write_results(tmp_path, "Below-v0", [-300.0])
    monkeypatch.setattr(summary, "HERE", tmp_path)
    rows = tables.results_in_short("ppo", "").splitlines()[2:]
    assert [row.split(" | ")[0] for row in rows] == ["| Near-v0", "| Reached-v0", "| Below-v0"]
    assert all("**-100**" in row for row in rows[:2])  # as the table rounds it
    assert [row.endswith("| yes |") for row in rows] == [False, True, False]
    assert tables.shortfalls("ppo", "") == (
        "**Targets not reached, 2 of 3:** Near-v0 at 1,000 steps and Below-v0 at 1,000 steps."
    )


@pytest.mark.parametrize("algo", summary.ALGORITHMS)
def test_every_row_of_results_says_whether_its_goal_was_reached(algo: str) -> None:
    missed = [row.cells["task"] for row in tables._rows(algo) if not row.reached]
    said = tables.shortfalls(algo, "")
    assert all(f"{task} at " in said for task in missed)
    assert said.startswith("**Targets not reached" if missed else "All ")
    assert tables.results_in_short(algo, "").count("**no**") == len(missed)


def test_warnings_of_vmpo_are_those_of_the_defaults() -> None:
    config, text = VMPOConfig(), tables.health_rules("vmpo", "")
    rules = vmpo_rules(config.topk_fraction, config.rollout_steps * config.num_envs, action_dim=6)
    assert text.count("\n") == len(rules) + 1
    assert f"about {config.topk_fraction * config.rollout_steps:.0f} kept samples" in text
    assert f"topk_fraction = {config.topk_fraction:g}" in text


def test_comments_of_presets_are_told_apart() -> None:
    text = '# Walkers\n\n# Not tried.\n["A"]\nb = 2\n\n["B"]\n\n# Hoppers\n\n["C"]\n'
    notes = tables.preset_notes(f"# About\n# all of it.\n\n[common]\na = 1\n\n{text}")
    assert notes.intro == "About all of it."
    assert notes.sections == {"Walkers": ["A", "B"], "Hoppers": ["C"]}
    assert notes.notes == {"A": "Not tried.", "B": "", "C": ""}
