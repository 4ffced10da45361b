import html
from pathlib import Path

import pytest

from benchmarks import summary
from docs import tables
from minerva import presets
from minerva.trainers.vmpo.config import VMPOConfig
from minerva.trainers.vmpo.health import vmpo_rules


def write_results(folder: Path, task: str, returns: list[float]) -> None:
    machine = '"EPYC(R), 2 cores, one core a run"' if len(returns) > 1 else "H200"
    rows = [f"{seed},1000,{value},50,{machine}" for seed, value in enumerate(returns)]
    (folder / "results" / "ppo" / task).mkdir(parents=True)
    (folder / "results" / "ppo" / task / "runs.csv").write_text(
        "\n".join(["seed,steps,return_mean,sps,hardware", *rows]) + "\n", encoding="utf-8"
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
    table = tables.results("ppo", "").splitlines()
    assert table[0].endswith("| steps/s |")
    assert [row.split(" | ")[-1] for row in table[2:5]] == ["50 (a) |", "50 (a) |", "50 (b) |"]
    assert table[-1].endswith("evaluation left out, beside other runs. (a) EPYC, 2 cores, one core per run; (b) H200.")
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


@pytest.mark.parametrize("algo", summary.ALGORITHMS)
def test_presets_are_shown_with_what_is_known_of_them(algo: str) -> None:
    page = tables.presets_page(algo)
    assert "as above" not in page.lower()
    for name, preset in presets.load_presets(algo).items():
        (row,) = (line for line in page.splitlines() if line.startswith(f"| `{name}` |"))
        cells = [cell.strip() for cell in row.strip("|").split("|")]
        assert cells[1] == f"{preset.total_steps:,}"
        assert cells[2].partition("<br>")[0] == preset.status.partition(": settings of")[0]
        assert preset.note is None or preset.note in html.unescape(cells[2])
        assert cells[3] and (preset.base is None or f"`{preset.base}`" in cells[3])
    for kind in presets.load_defaults(algo):
        assert f"| {kind} actions | " in page


def test_presets_with_a_note_and_the_settings_of_another_are_shown_so(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "ppo.toml").write_text(
        'about = "Of all."\n[common]\na = 1\n[X]\ntotal_steps = 5\nb = [1, 2]\nnote = "Less < more."\n[Y]\nbase = "X"\n'
        "[Z]\ntotal_steps = 7\n"
    )
    monkeypatch.setattr(presets, "_FOLDER", tmp_path)
    page = tables.presets_page("ppo")
    assert "\nOf all.\n" in page and "| `a` | `1` |" in page
    assert "| `X` | 5 | not tried<br>Less &lt; more. | `b = [1, 2]` |" in page
    assert "| `Y` | 5 | not tried | all those of `X` |" in page
    assert "| `Z` | 7 | not tried | only those of all tasks |" in page


def test_tasks_without_a_preset_have_each_seed_at_both_budgets() -> None:
    head, _, *rows = summary.general_table().splitlines()
    columns = [cell.strip() for cell in head.strip("|").split("|")]
    assert columns[:3] == ["task", "steps", "PPO, defaults"]
    ours = columns.index("V-MPO, general preset")
    cells = [[cell.strip() for cell in row.strip("|").split("|")] for row in rows]
    assert [row[1] for row in cells] == ["100,000", "300,000"] * 5
    folder = summary.HERE / "results" / "general" / "after" / "vmpo" / "Pusher-v5"
    curves = [summary.read(folder / f"seed{seed}.csv") for seed in (401, 402, 403)]
    (early, late) = [row[ours] for row in cells if row[0] == "Pusher-v5"]
    for cell, step in ((early, "100352"), (late, "299008")):
        points = [next(point for point in curve if point["step"] == step) for curve in curves]
        assert cell == ", ".join(f"{float(point['return_mean']):.0f}" for point in points)
