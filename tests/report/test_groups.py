import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from minerva.report import RunRecord, Series, read_run
from minerva.report.groups import SAME_RESULT, Group, group_runs
from minerva.report.runs import find_runs
from minerva.trainers.mpo.config import MPOConfig
from minerva.trainers.ppo.config import PPOConfig
from minerva.trainers.vmpo.config import VMPOConfig

FIXED = {"anneal_lr": False}


def run(
    seed: int, *, algorithm: str = "ppo", env: str = "A-v1", steps: int = 1000, total: int = 5000, **config: Any
) -> RunRecord:
    metrics = {"eval/return_mean": Series(np.array([0, steps]), np.array([0.0, 1.0]))}
    return RunRecord(Path(f"runs/{seed}-{steps}"), algorithm, env, seed, total, {**FIXED, **config}, metrics)


def seeds(groups: list[Group]) -> dict[str, list[int]]:
    return {group.label: [run.seed for run in group.runs] for group in groups}


def test_runs_of_different_settings_are_not_one_experiment() -> None:
    runs = [run(1, gamma=0.99), run(2, gamma=0.99), run(1, gamma=0.9), run(2, gamma=0.9)]
    assert seeds(group_runs(runs)["A-v1"]) == {"PPO, gamma=0.99": [1, 2], "PPO, gamma=0.9": [1, 2]}


def test_fields_that_change_no_result_do_not_split_a_group() -> None:
    runs = [run(1, console=True, num_workers=2, wandb="off"), run(2, console=False, num_workers=8, wandb="offline")]
    assert seeds(group_runs(runs)["A-v1"]) == {"PPO": [1, 2]}


def test_every_such_field_is_a_setting_of_an_algorithm() -> None:
    known = {f.name for config in (PPOConfig, MPOConfig, VMPOConfig) for f in dataclasses.fields(config)}
    assert known >= SAME_RESULT


def test_a_label_names_no_more_fields_than_it_needs_and_says_that_there_are_more() -> None:
    runs = [run(1, gamma=0.99, lr=1.0, sizes=[64, 64]), run(1, gamma=0.9, lr=2.0, sizes=[64, 64])]
    assert list(seeds(group_runs(runs)["A-v1"])) == ["PPO, gamma=0.99, …", "PPO, gamma=0.9, …"]
    runs = [run(1, a=1, b="x", c=[1]), run(1, a=1, b="y", c=[1]), run(1, a=2, b="x", c=[1])]
    assert list(seeds(group_runs(runs)["A-v1"])) == ["PPO, a=1, b=x", "PPO, a=1, b=y", "PPO, a=2, b=x"]


def test_settings_that_differ_between_algorithms_or_tasks_need_no_word() -> None:
    runs = [run(1, gamma=0.99), run(1, algorithm="vmpo", gamma=0.9), run(1, env="B-v1", gamma=0.5)]
    panels = group_runs(runs)
    assert seeds(panels["A-v1"]) == {"PPO": [1], "V-MPO": [1]}
    assert seeds(panels["B-v1"]) == {"PPO": [1]}


def test_a_field_that_an_older_run_does_not_have_splits_nothing() -> None:
    assert seeds(group_runs([run(1, gamma=0.9), run(2, gamma=0.9, obs_clip=10.0)])["A-v1"]) == {"PPO": [1, 2]}


def test_the_length_of_a_run_counts_where_a_schedule_ends_with_it() -> None:
    assert seeds(group_runs([run(1, total=10), run(2, total=20)])["A-v1"]) == {"PPO": [1, 2]}
    for config in ({"anneal_lr": True}, {"policy_lr": "lin_1e-3"}):
        groups = group_runs([run(1, total=10, **config), run(2, total=20, **config)])["A-v1"]
        assert seeds(groups) == {"PPO, total_steps=10": [1], "PPO, total_steps=20": [2]}


def test_of_a_seed_that_is_there_twice_the_longer_run_counts() -> None:
    with pytest.warns(UserWarning, match=r"seed 1 of A-v1 is there twice .* runs/1-2000 counts, runs/1-1000 does not"):
        (group,) = group_runs([run(1), run(2), run(1, steps=2000)])["A-v1"]
    assert [run.folder.name for run in group.runs] == ["1-2000", "2-1000"]


def test_groups_by_chosen_fields_and_by_labels() -> None:
    runs = [run(1, gamma=0.9, lr=1.0), run(2, gamma=0.9, lr=2.0), run(3, gamma=0.5, lr=1.0)]
    assert seeds(group_runs(runs, group_by=["gamma"])["A-v1"]) == {"PPO, gamma=0.9": [1, 2], "PPO, gamma=0.5": [3]}
    assert seeds(group_runs(runs, ["new", "old", "new"])["A-v1"]) == {"new": [1, 3], "old": [2]}
    with pytest.raises(
        ValueError, match=r"group_by: 'gama' is not a setting of these runs\. They are anneal_lr, gamma"
    ):
        group_runs(runs, group_by=["gama"])


def test_folders_are_searched(tmp_path: Path) -> None:
    for name in ("b/2", "b/1", "c"):
        (tmp_path / name).mkdir(parents=True)
        description = '{"algorithm": "ppo", "env_id": "A-v1", "seed": 1, "total_steps": 9, "config": {}}'
        (tmp_path / name / "config.json").write_text(description)
        (tmp_path / name / "metrics.csv").write_text("step,name,value\n")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "config.json").write_text("{}")
    assert [path.relative_to(tmp_path).as_posix() for path in find_runs(tmp_path)] == ["b/1", "b/2", "c"]
    assert find_runs(tmp_path / "c") == [tmp_path / "c"]
    with pytest.raises(ValueError, match="is not a run's folder"):
        read_run(find_runs(tmp_path / "nothing")[0])
