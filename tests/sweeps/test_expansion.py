from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

from minerva import api
from minerva.cli.options import key_values
from minerva.sweeps.expansion import PlannedRun, expand
from minerva.sweeps.spec import SpecError, read_spec

SMALL: dict[str, Any] = {"algorithms": ["ppo"], "envs": ["Pendulum-v1"], "seeds": "1", "preset": "none"}


def runs_of(**changed: Any) -> list[PlannedRun]:
    return expand(read_spec({**SMALL, **changed}), api.algorithms())


def test_folders_have_stable_names() -> None:
    spec = {
        "algorithms": ["ppo", "vmpo"], "envs": ["Pendulum-v1", "dm_control/cheetah/run"], "seeds": "1-2",
        "grid": {"policy_lr": [1e-3, 3e-4], "ppo": {"clip_vloss": [True, False], "policy_layer_sizes": [[64, 64]]}},
    }  # fmt: skip
    runs = runs_of(**spec)
    assert len(runs) == (4 + 2) * 2 * 2
    assert [run.seed for run in runs] == [1] * 12 + [2] * 12  # all of the first seed first
    assert runs[0].folder == ("ppo/Pendulum-v1/clip_vloss=true,policy_layer_sizes=64-64,policy_lr=0.001/seed1")
    assert "vmpo/dm_control-cheetah-run/policy_lr=0.0003/seed2" in {run.folder for run in runs}
    assert runs == runs_of(**spec)
    assert runs_of()[0].folder == "ppo/Pendulum-v1/default/seed1"


def test_a_long_name_is_a_hash_of_the_settings() -> None:
    grid = {name: [0.123456789] for name in ("gamma", "gae_lambda", "sgd_momentum", "vf_coef", "max_grad_norm")}
    (run,) = runs_of(grid=grid)
    name = run.folder.split("/")[2]
    assert len(name) == 16 and name == runs_of(grid=dict(reversed(grid.items())))[0].folder.split("/")[2]
    grid["gamma"] = [0.5]
    assert name != runs_of(grid=grid)[0].folder.split("/")[2]
    assert run.settings["vf_coef"] == 0.123456789


def test_what_comes_later_wins() -> None:
    spec: dict[str, Any] = {"algorithms": ["ppo", "vmpo"], "preset": "Hopper-v5", "envs": ["Pendulum-v1"]}
    preset = api.preset_settings("ppo", "Hopper-v5").fields
    assert preset["num_envs"] == 8 and preset["clip_vloss"] is False
    settings = {"gamma": 0.9, "gae_lambda": 0.9, "vmpo": {"gamma": 0.8}, "ppo": {"num_envs": 2}, "console": False}
    of = {run.algorithm: run for run in runs_of(**spec, settings=settings, grid={"gae_lambda": [0.7]})}
    names = ("gamma", "gae_lambda", "num_envs", "clip_vloss", "console")
    assert [of["ppo"].settings.get(name) for name in names] == [0.9, 0.7, 2, False, None]
    assert [of["vmpo"].settings.get(name) for name in names[:2]] == [0.8, 0.7]
    # The preset's rollouts are fitted to the number of environments, as `minerva train` does.
    assert 2 * of["ppo"].settings["rollout_steps"] == 8 * preset["rollout_steps"]
    assert "--preset=Hopper-v5" in of["ppo"].words and "--num-envs=2" in of["ppo"].words


def test_a_task_without_a_preset_has_the_general_one_for_its_actions() -> None:
    box, discrete = runs_of(envs=["Pendulum-v1", "CartPole-v1"], settings={}, preset="default")
    defaults = api.config_class("ppo")().to_plain()
    for run in (box, discrete):
        general = api.preset_settings("ppo", run.env, "default")
        config = api.config_class("ppo").from_fields(None, general.fields).to_plain()
        assert {**defaults, **run.settings} == config
    assert box.settings != discrete.settings


def test_the_steps_are_the_presets_unless_the_specification_has_some() -> None:
    (run,) = runs_of(preset="Hopper-v5")
    assert run.total_steps == api.preset_settings("ppo", "Hopper-v5").total_steps
    (run,) = runs_of(total_steps=5000, settings={"rollout_steps": 512})
    assert (run.total_steps, run.final_step) == (5000, 4608)


def test_the_command_says_exactly_these_settings() -> None:
    fields = {
        "policy_layer_sizes": [8, 4], "clip_vloss": False, "target_kl": "none", "policy_lr": "lin_3e-05",
        "log_std_init": -1e-05, "compile": False, "wandb": "offline",
        "env_kwargs": {"g": 9.8, "name": "5", "deep": [1, {"a": None}], "render_mode": "rgb_array"},
    }  # fmt: skip
    (run,) = runs_of(settings=fields, total_steps=4096, device="cpu", init_from="runs/some run")
    from minerva.cli import _parse_run

    algo, *words = run.words[1:]
    parsed = _parse_run("train", algo, [*words, "--out-dir", "x", "--resume-or-start"])
    config, default = parsed.config.to_plain(), api.config_class("ppo")().to_plain()
    assert {name: value for name, value in config.items() if value != default[name]} == {
        **run.settings, "wandb": "offline"
    }  # fmt: skip
    assert config["target_kl"] is None and config["env_kwargs"] == fields["env_kwargs"]
    assert (parsed.options.seed, parsed.options.total_steps, parsed.options.device) == (1, 4096, "cpu")
    assert str(parsed.options.init_from) == "runs/some run"
    assert key_values(["a='5'"]) == {"a": "5"}


def test_two_runs_never_share_a_folder() -> None:
    with pytest.raises(SpecError, match="each run must have a folder of its own"):
        runs_of(grid={"env_kwargs": [{"a": 1, "b": 2}, {"a": "1-b-2"}]})


def test_ten_thousand_runs_expand_in_a_second_and_without_torch() -> None:
    code = """
import sys, time
from minerva import api
from minerva.sweeps.expansion import expand
from minerva.sweeps.spec import read_spec
spec = read_spec({"algorithms": ["ppo"], "envs": ["Pendulum-v1"], "seeds": "1-10", "preset": "none",
                  "grid": {"gamma": [k / 1000 for k in range(1000)]}})
begin = time.process_time()
print(len(expand(spec, api.algorithms())), time.process_time() - begin, {"torch", "rich"} & set(sys.modules))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    count, seconds, heavy = done.stdout.split(maxsplit=2)
    assert count == "10000" and heavy.strip() == "set()"
    assert float(seconds) < 3.0
