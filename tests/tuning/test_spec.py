from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from minerva import api
from minerva.sweeps.spec import SpecError
from minerva.tuning.spec import TuneSpec, read_tune_spec

WHOLE = """
name = "mine"
algorithms = ["ppo"]
envs = ["Pendulum-v1"]
seeds = "1-3"
total_steps = 8192
preset = "none"
[settings]
gamma = 0.9
[search]
sgd_momentum = {low = 0.5, high = 0.99, when = {optimizer_type = "sgd"}}
policy_lr = {low = 1e-5, high = 1e-2, log = true}
optimizer_type = {choices = ["adam", "sgd"]}
update_epochs = {low = 1, high = 20}
policy_layer_sizes = {choices = [[8], [64, 64]]}
[tune]
trials = 20
"""


def read(folder: Path, text: str) -> TuneSpec:
    (folder / "spec.toml").write_text(text)
    return read_tune_spec(folder / "spec.toml", api.algorithms())


def test_a_search_is_a_sweep_with_a_space(tmp_path: Path) -> None:
    spec = read(tmp_path, WHOLE)
    assert (spec.algorithm, spec.env, spec.tuned_on) == ("ppo", "Pendulum-v1", "1-3")
    assert spec.search == (20, "tpe", "median", 5, 1, 0)
    names = [one.name for one in spec.space.dimensions]
    assert names.index("optimizer_type") < names.index("sgd_momentum") and len(names) == 5
    kinds = {one.name: one.kind for one in spec.space.dimensions}
    assert kinds["update_epochs"] == "int" and kinds["policy_lr"] == "float" and kinds["optimizer_type"] == "choices"
    assert spec.first == {
        "policy_lr": 3e-4, "optimizer_type": "adam", "update_epochs": 10, "policy_layer_sizes": "[64, 64]"
    }  # fmt: skip


def test_a_trial_is_one_run_for_each_seed(tmp_path: Path) -> None:
    values = {"policy_lr": 0.1234567890123, "optimizer_type": "sgd", "sgd_momentum": 0.5, "policy_layer_sizes": "[8]"}
    runs = read(tmp_path, WHOLE).plan(7, values, api.algorithms())
    assert [run.folder for run in runs] == [f"trials/0007/seed{seed}" for seed in (1, 2, 3)]
    assert runs[0].settings == {
        "gamma": 0.9, "policy_lr": 0.1234567890123, "optimizer_type": "sgd", "sgd_momentum": 0.5,
        "policy_layer_sizes": [8],
    }  # fmt: skip
    assert "--policy-lr=0.1234567890123" in runs[2].words and runs[2].words[-2:] == ("--seed", "3")


def test_without_a_default_inside_the_space_the_sampler_begins(tmp_path: Path) -> None:
    assert read(tmp_path, WHOLE.replace("low = 1e-5", "low = 1e-3")).first is None


def test_a_setting_may_also_have_a_value_with_which_the_search_begins(tmp_path: Path) -> None:
    spec = read(tmp_path, WHOLE.replace("gamma = 0.9\n", "gamma = 0.9\npolicy_lr = 1e-4\n"))
    assert spec.first is not None and spec.first["policy_lr"] == 1e-4
    (run, *_) = spec.plan(1, {"policy_lr": 0.002}, api.algorithms())
    assert run.settings == {"gamma": 0.9, "policy_lr": 0.002}


@pytest.mark.parametrize(
    ("old", "new", "line", "message"),
    [
        ("low = 1e-5, ", "low = -1e-5, ", 12, "policy_lr: low must be greater than 0 with log = true, got -1e-05."),
        ("low = 1, high = 20", "low = 0, high = 20", 14, "update_epochs: must be at least 1, got 0."),
        ("low = 1, high = 20", "low = 1, high = 20.5", 14, "update_epochs: high must be a whole number, got 20.5."),
        ("low = 1, high = 20", "low = 5, high = 5", 14, "update_epochs: low must be less than high, got 5 and 5."),
        ("low = 1, high = 20", "low = 5", 14, "update_epochs: needs low and high, or choices"),
        ("high = 20", "hihg = 20", 14, "update_epochs: hihg is not a key of a searched setting. Did you mean high?"),
        ("high = 0.99", "high = 1.5", 11, "sgd_momentum: must lie in [0, 1], got 1.5. (With policy_lr = 1e-05, opt"),
        ("update_epochs", "update_epoch", 14, "update_epoch: not a setting of PPOConfig. Did you mean update_epochs?"),
        ("update_epochs", "num_workers", 14, "num_workers: changes no result; leave it out of [search]."),
        ('["adam", "sgd"]', '["adam", "sdg", "sgd"]', 13, "optimizer_type: must be 'adam' or 'sgd', got 'sdg'."),
        ('["adam", "sgd"]', '["sgd"]', 13, "optimizer_type: choices must be a list of at least two values"),
        ('["adam", "sgd"]', '["sgd", "sgd"]', 13, "optimizer_type: each choice must be listed once"),
        ('{choices = ["adam", "sgd"]}', "{low = 1, high = 2}", 13, "optimizer_type: is not a number, so it needs"),
        ('{choices = ["adam", "sgd"]}', '"adam"', 13, "optimizer_type: must be {low = …, high = …} or {choices"),
        ('= "sgd"}', '= "adamw"}', 11, "sgd_momentum: when must name one of optimizer_type's choices, adam, sgd;"),
        ("when = {optimizer_type", "when = {gae_lambda", 11, "sgd_momentum: when names gae_lambda, which must be in"),
        ("[[8], [64, 64]]", "[[8], [0]]", 15, "policy_layer_sizes: must name at least one layer"),
        ("update_epochs = {low = 1, high = 20}", "minibatch_size = {low = 8, high = 4096}", 14,
         "minibatch_size: must be at most rollout_steps * num_envs = 2048 * 1 = 2048, got 4096. (With "),
        ("trials = 20", "trials = 0", 17, "trials: must be a whole number from 1 on, got 0."),
        ("trials = 20", "trails = 20", 17, "trails: is not a key of [tune]. Did you mean trials?"),
        ("trials = 20", "sampler = 'grid'", 17, "sampler: must be 'tpe', 'random' or 'cmaes', got 'grid'."),
        ('["ppo"]', '["ppo", "vmpo"]', 3, "algorithms: a tuning must have exactly one, got ppo, vmpo; tune"),
        ('"Pendulum-v1"]', '"Pendulum-v1", "Acrobot-v1"]', 4, "envs: a tuning must have exactly one"),
        ("gamma = 0.9", "eval_episodes = 0", 9, "eval_episodes: must be at least 1, because trials are compared"),
        ("[settings]\ngamma = 0.9", "[grid]\ngamma = [0.9]", 8, "grid: is for `minerva sweep`; leave it out"),
        ('"1-3"', '"3-1"', 5, "seeds: must be numbers and ranges such as 1-5"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named_with_its_line(tmp_path: Path, old: str, new: str, line: int, message: str) -> None:
    assert old in WHOLE
    with pytest.raises(SpecError) as caught:
        read(tmp_path, WHOLE.replace(old, new, 1))
    said = str(caught.value)
    assert said.startswith(f"{tmp_path / 'spec.toml'}, line {line}: {message}"), said


def test_a_search_must_search_something(tmp_path: Path) -> None:
    spec: dict[str, Any] = {"algorithms": ["ppo"], "envs": ["Pendulum-v1"], "seeds": "1"}
    with pytest.raises(SpecError, match="search: is missing; add"):
        read_tune_spec(spec, api.algorithms())
    with pytest.raises(SpecError, match=r"search: must be a table \[search\] of at least one setting"):
        read_tune_spec({**spec, "search": {}}, api.algorithms())
    loop = {"a": "compile", "b": "optimizer_type"}
    search = {
        loop["a"]: {"choices": ["auto", False], "when": {loop["b"]: "sgd"}},
        loop["b"]: {"choices": ["adam", "sgd"], "when": {loop["a"]: False}},
    }
    with pytest.raises(SpecError, match="the conditions of compile, optimizer_type depend on each other"):
        read_tune_spec({**spec, "search": search}, api.algorithms())
