from __future__ import annotations

import sys
from pathlib import Path

import pytest

import minerva
from minerva.cli import main

SPEC = """
algorithms = ["ppo"]
envs = ["Pendulum-v1"]
seeds = [3]
total_steps = 2048
preset = "none"
[search]
gamma = {low = 0.5, high = 0.9}
"""
BEST = """
["Pendulum-v1"]
tuned_on = "1-3"
total_steps = 32
rollout_steps = 16
minibatch_size = 8
policy_layer_sizes = [8]
critic_layer_sizes = [8]
target_kl = "none"
eval_episodes = 0
compile = false
console = false
"""
WARNING = "seed: the settings were chosen on seeds 1-3, and 3 is one of them: its result must not be reported"


def test_a_wrong_search_is_one_line_and_nothing_is_created(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    spec = tmp_path / "spec.toml"
    spec.write_text(SPEC.replace("0.9", "1.9"))
    assert main(["tune", str(spec), "--out", str(tmp_path / "out")]) == 2
    said = capsys.readouterr().err
    assert said == f"minerva: {spec}, line 8: gamma: must lie in [0, 1], got 1.9.\n"
    assert not (tmp_path / "out").exists()


def test_without_optuna_it_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)
    for name in ("minerva.tuning.study", "minerva.tuning.tuner"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    (tmp_path / "spec.toml").write_text(SPEC)
    assert main(["tune", str(tmp_path / "spec.toml"), "--out", str(tmp_path / "out")]) == 2
    assert "tune: needs Optuna, which is not installed: pip install" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_a_sweep_refuses_a_search(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "spec.toml").write_text(SPEC)
    assert main(["sweep", str(tmp_path / "spec.toml")]) == 2
    assert "line 7: search: is for `minerva tune`; leave it out" in capsys.readouterr().err


@pytest.mark.filterwarnings("default")
def test_a_run_with_a_seed_on_which_its_preset_was_tuned_warns(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "best.toml").write_text(BEST)
    words = ["train", "ppo", "--env", "Pendulum-v1", "--preset", str(tmp_path / "best.toml"), "--device", "cpu"]
    for seed in (3, 4):
        assert main([*words, "--seed", str(seed), "--out-dir", str(tmp_path / f"{seed}")]) == 0
    said = capsys.readouterr()
    assert (said.out + said.err).count(WARNING) == 1
    assert WARNING in (tmp_path / "3" / "config.json").read_text()  # where a report finds it
    assert WARNING not in (tmp_path / "4" / "config.json").read_text()
    with pytest.warns(RuntimeWarning, match="chosen on seeds 1-3, and 2 is one of them"):
        minerva.train("ppo", "Pendulum-v1", seed=2, device="cpu", preset=tmp_path / "best.toml", out_dir=tmp_path / "2")


@pytest.mark.filterwarnings("default")
def test_a_sweep_with_such_seeds_warns_before_it_starts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "best.toml").write_text(BEST)
    spec = SPEC.partition("[search]")[0].replace('"none"', f'"{tmp_path / "best.toml"}"').replace("[3]", '"3-5"')
    (tmp_path / "spec.toml").write_text(spec)
    assert main(["sweep", str(tmp_path / "spec.toml"), "--list"]) == 0
    assert WARNING in capsys.readouterr().err
