from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

from minerva import api
from minerva.sweeps.expansion import expand
from minerva.sweeps.spec import Resources, SpecError, read_spec

WHOLE = """\
name = "two-algorithms"
algorithms = ["ppo", "vmpo"]
envs = ["Pendulum-v1"]
seeds = "1-5"
total_steps = 8192
preset = "none"

[settings]                    # for all
gamma = 0.9
[settings.vmpo]
gamma = 0.95

[[variants]]
name = "wide"
policy_layer_sizes = [128, 128]

[[variants]]
name = "hasty"
policy_lr = 0.01
  [variants.ppo]
  clip_ratio = 0.3

[resources]
cores = 1
gpu = 0.25
"""


def test_the_specification_of_the_guide_is_one() -> None:
    page = Path(__file__).parents[2] / "docs" / "how-to" / "sweeps.md"
    (text,) = re.findall(r"```toml\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)
    runs = expand(read_spec(tomllib.loads(text)), api.algorithms())
    assert len(runs) == 30
    assert runs[0].folder == "ppo/Pendulum-v1/clip_ratio=0.1,policy_lr=0.001/seed1"


def refusal(tmp_path: Path, text: str) -> str:
    path = tmp_path / "spec.toml"
    path.write_text(text)
    with pytest.raises(SpecError) as refused:
        expand(read_spec(path), api.algorithms())
    message = str(refused.value)
    assert "\n" not in message and message.startswith(str(path))
    return message.removeprefix(str(path))


def test_a_whole_specification(tmp_path: Path) -> None:
    path = tmp_path / "spec.toml"
    path.write_text(WHOLE)
    spec = read_spec(path)
    assert (spec.name, spec.algorithms, spec.seeds) == ("two-algorithms", ("ppo", "vmpo"), (1, 2, 3, 4, 5))
    assert spec.resources == Resources(1, 0.25)
    assert spec.settings_of("ppo").fields == {"gamma": 0.9}
    assert spec.settings_of("vmpo").fields == {"gamma": 0.95}
    assert [variant.name for variant in spec.variants_of("ppo")] == ["wide", "hasty"]
    assert spec.variants_of("ppo")[1].fields == {"policy_lr": 0.01, "clip_ratio": 0.3}
    assert spec.variants_of("vmpo")[1].fields == {"policy_lr": 0.01}
    assert spec.count() == 2 * 2 * 5


def test_the_file_names_the_sweep_where_it_has_no_name(tmp_path: Path) -> None:
    path = tmp_path / "my-sweep.toml"
    path.write_text('algorithms = ["ppo"]\nenvs = ["Pendulum-v1"]\nseeds = [1]\n')
    spec = read_spec(path)
    assert spec.name == "my-sweep" and spec.total_steps is None and spec.preset is None and not spec.keep_replay


@pytest.mark.parametrize(
    ("old", "new", "line", "message"),
    [
        ('seeds = "1-5"', 'seeds = "5-1"', 4, "seeds: must be numbers and ranges"),
        ('seeds = "1-5"', 'sedes = "1-5"', 4, "sedes: is not a key of a sweep. Did you mean seeds?"),
        ('"ppo", "vmpo"', '"ppo", "sac"', 2, "algo: must be ppo or mpo or vmpo, got 'sac'."),
        ('"ppo", "vmpo"', '"ppo", "ppo"', 2, "algorithms: each must be listed once"),
        ('["Pendulum-v1"]', '"Pendulum-v1"', 3, "envs: must be a list of names"),
        ("Pendulum-v1", "Pendulum-v9", 3, "env: no environment is called 'Pendulum-v9'"),
        ("8192", "0", 5, "total_steps: must be a whole number from 1 on, got 0."),
        ("8192", "100", 5, "total_steps: must be at least rollout_steps"),
        ('"none"', '"Nowhere-v0"', 6, "preset: ppo has no preset 'Nowhere-v0'."),
        ("gamma = 0.9\n", "gamma = 2\n", 9, "gamma: must lie in [0, 1], got 2.0."),
        ("gamma = 0.9\n", "gamme = 0.9\n", 9, "gamme: not a setting of PPOConfig. Did you mean gamma"),
        ("gamma = 0.95", "clip_ratio = 0.1", 11, "clip_ratio: not a setting of VMPOConfig."),
        ("[settings.vmpo]", "[settings.mpo]", 10, "mpo: is a table, but mpo is not one of the sweep's algorithms"),
        ("gamma = 0.9\n", "total_steps = 5\n", 9, "total_steps: is not a setting of an algorithm"),
        ("[128, 128]", "[0]", 15, "policy_layer_sizes: "),
        ('"hasty"', '"wide"', 18, "name: each variant must have its own, got 'wide' twice."),
        ('"hasty"', '"a/b"', 18, "name: each variant must have one, of at most 80 letters"),
        ("policy_lr = 0.01", "clip_ratio = 0.1", 19, "clip_ratio: not a setting of VMPOConfig."),
        ("clip_ratio = 0.3", "clip_ratio = -1", 21, "clip_ratio: "),
        ("cores = 1", "cores = 0", 24, "cores: must be a whole number from 1 on, got 0."),
        ("gpu = 0.25", "gpu = 1.5", 25, "gpu: must be a share of one GPU or a whole number of them, got 1.5."),
        ("gpu = 0.25", "tpu = 1", 25, "tpu: is not a resource"),
        ("[resources]", "[grid]\ngamma = [0.9]\n[resources]", 13, "variants: cannot be combined with a grid"),
        ("[resources]", "[search]\n[resources]", 23, "search: is for `minerva tune`; leave it out"),
    ],
)
def test_what_is_wrong_is_named_with_its_line(tmp_path: Path, old: str, new: str, line: int, message: str) -> None:
    assert old in WHOLE
    said = refusal(tmp_path, WHOLE.replace(old, new))
    assert said.startswith(f", line {line}: {message}"), said


@pytest.mark.parametrize(
    ("grid", "message"),
    [
        ("gamma = 0.9", ", line 5: gamma: must be a list of values in a grid, got 0.9."),
        ("gamma = []", ", line 5: gamma: must be a list"),
        ("gamma = [0.9, 0.9]", ", line 5: gamma: each value must be listed once"),
        ("gamma = [0.9, 7]", ", line 5: gamma: must lie in [0, 1], got 7.0."),
        ("vmpo.clip_ratio = [0.1]", ", line 5: vmpo: must be a list of values"),  # not one of the algorithms
        ("ppo.gamma = [3]", ", line 5: gamma: must lie in [0, 1]"),
        ("gamma = [0.9]\nlog_std_init = 'x", ": is not valid TOML: "),
    ],
)
def test_a_wrong_grid(tmp_path: Path, grid: str, message: str) -> None:
    head = 'algorithms = ["ppo"]\nenvs = ["Pendulum-v1"]\nseeds = [1]\n[grid]\n'
    assert refusal(tmp_path, head + grid + "\n").startswith(message)


def test_too_many_runs_are_refused_before_they_are_expanded(tmp_path: Path) -> None:
    values = ", ".join(f"0.{k:04}" for k in range(1, 1000))
    text = f'algorithms = ["ppo"]\nenvs = ["Pendulum-v1"]\nseeds = "1-200"\n[grid]\ngamma = [{values}]\n'
    assert refusal(tmp_path, text) == ": spec: must have at most 100,000 runs, got 199,800; split it."


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({}, "spec: algorithms: is missing; add algorithms = "),
        ({"algorithms": ["ppo"], "envs": ["Pendulum-v1"]}, "spec: seeds: is missing"),
        ({"algorithms": ["ppo"], "envs": ["Pendulum-v1"], "seeds": "1", "settings": {"gamma": 7}},
         "spec: settings.gamma: must lie in [0, 1], got 7.0."),
        ({"algorithms": ["ppo"], "envs": ["Pendulum-v1"], "seeds": "1", "settings": []},
         "spec: settings: must be a table"),
    ],
)  # fmt: skip
def test_a_wrong_mapping_is_named_by_its_keys(table: dict[str, Any], message: str) -> None:
    with pytest.raises(SpecError) as refused:
        expand(read_spec(table), api.algorithms())
    assert str(refused.value).startswith(message)


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r"cannot be read \(No such file or directory\); give a TOML file"):
        read_spec(tmp_path / "nothing.toml")
    (tmp_path / "bytes.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(SpecError, match="is not text in UTF-8"):
        read_spec(tmp_path / "bytes.toml")
