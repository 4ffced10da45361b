from __future__ import annotations

import json
import os
import re
import resource
import shlex
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

import minerva
from minerva.cli import main
from minerva.sweeps.status import RunStatus, SweepStatus
from tests.trainers.ppo.small_run import same_run, state_of

SPEC = """
name = "two"
algorithms = ["ppo", "mpo"]
envs = ["Pendulum-v1"]
seeds = [3]
total_steps = 96
preset = "none"
device = "cpu"

[settings]
eval_episodes = 1
eval_max_steps = 5
policy_layer_sizes = [8]
critic_layer_sizes = [8]
compile = false

[settings.ppo]
rollout_steps = 16
minibatch_size = 8
gamma = 0.9

[settings.mpo]
update_after = 32
batch_size = 8
"""
WORDS = [
    "train", "ppo", "--env", "Pendulum-v1", "--preset", "none", "--device", "cpu", "--eval-episodes", "1",
    "--eval-max-steps", "5", "--policy-layer-sizes", "8", "--critic-layer-sizes", "8", "--compile", "False",
    "--rollout-steps", "16", "--minibatch-size", "8", "--total-steps", "96", "--gamma", "0.9",
]  # fmt: skip


@pytest.fixture(scope="module")
def swept(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A sweep of two runs: its folder, and what it printed."""
    folder = tmp_path_factory.mktemp("cli-sweep")
    (folder / "spec.toml").write_text(SPEC)
    command = [sys.executable, "-m", "minerva.cli", "sweep", str(folder / "spec.toml"), "--out", str(folder / "out")]
    done = subprocess.run([*command, "--jobs", "2"], capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0 and done.stderr == "", done.stderr
    return folder, done.stdout


@pytest.fixture(scope="module")
def seeds(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """Two seeds of one command: the folder of the sweep, and what it printed."""
    folder = tmp_path_factory.mktemp("cli-seeds")
    command = [sys.executable, "-m", "minerva.cli", *WORDS, "--seeds", "3-4", "--jobs", "2"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300, cwd=folder)
    assert done.returncode == 0 and done.stderr == "", done.stderr
    (out,) = (folder / "runs" / "ppo" / "Pendulum-v1").iterdir()
    return out, done.stdout


def single(folder: Path, seed: int = 3) -> Path:
    """The same run, by itself."""
    minerva.train(
        "ppo", "Pendulum-v1", 96, seed=seed, device="cpu", out_dir=folder, preset="none", eval_episodes=1,
        eval_max_steps=5, policy_layer_sizes=(8,), critic_layer_sizes=(8,), compile=False, rollout_steps=16,
        minibatch_size=8, gamma=0.9, console=False,
    )  # fmt: skip
    return folder


def test_a_sweep_trains_each_run_as_if_it_were_alone(swept: tuple[Path, str], tmp_path: Path) -> None:
    folder, said = swept
    run = folder / "out" / "ppo" / "Pendulum-v1" / "default" / "seed3"
    assert same_run(run, single(tmp_path / "alone"))
    assert "96 of 96" not in said and "done    ppo/Pendulum-v1/default/seed3  96 steps" in said
    assert "Last evaluations" in said and "mpo/Pendulum-v1/default" in said
    assert f"Plot       minerva plot {folder / 'out'}" in said.splitlines()


def test_a_finished_run_has_no_replay_buffer_and_can_still_be_made_longer(
    swept: tuple[Path, str], tmp_path: Path
) -> None:
    shutil.copytree(swept[0] / "out" / "mpo" / "Pendulum-v1" / "default" / "seed3", tmp_path / "run")
    assert not list((tmp_path / "run").glob("*.replay"))
    assert minerva.load(tmp_path / "run").env_steps == 96
    with pytest.warns(RuntimeWarning, match="replay: there is no file"):
        result = minerva.train(
            "mpo", "Pendulum-v1", 160, seed=3, device="cpu", out_dir=tmp_path / "run", preset="none", eval_episodes=1,
            eval_max_steps=5, policy_layer_sizes=(8,), critic_layer_sizes=(8,), compile=False, update_after=32,
            batch_size=8, console=False, resume_or_start=True,
        )  # fmt: skip
    assert result.env_steps == 160


def test_the_same_sweep_again_has_nothing_to_do(swept: tuple[Path, str], capsys: pytest.CaptureFixture[str]) -> None:
    folder, _ = swept
    before = {path: path.stat().st_mtime_ns for path in (folder / "out").glob("*/*/*/*/*")}
    begin = time.monotonic()
    assert main(["sweep", str(folder / "spec.toml"), "--out", str(folder / "out")]) == 0
    assert time.monotonic() - begin < 5
    assert "two: 2 runs: 2 done" in capsys.readouterr().out
    assert {path: path.stat().st_mtime_ns for path in (folder / "out").glob("*/*/*/*/*")} == before


def test_seeds_of_one_command(seeds: tuple[Path, str], tmp_path: Path) -> None:
    out, said = seeds
    assert sorted(path.name for path in out.iterdir() if path.is_dir()) == ["seed3", "seed4"]
    assert same_run(out / "seed3", single(tmp_path / "alone"))
    assert state_of(out / "seed4")["env_steps"] == 96
    table = said[said.index("Last evaluations") :].splitlines()
    assert any("ppo/Pendulum-v1/default" in line and " 2 " in line and " to " in line for line in table)
    relative = out.relative_to(out.parents[3])
    assert table[-2:] == [f"Folder     {relative}", f"Plot       minerva plot {relative}"]


def test_seeds_given_again_with_their_folder_are_done(
    seeds: tuple[Path, str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*WORDS, "--seeds", "3-4", "--out-dir", str(seeds[0])]) == 0
    assert "2 runs: 2 done" in capsys.readouterr().out
    assert main([*WORDS, "--seeds", "3-4", "--out-dir", str(seeds[0]), "--gamma", "0.8"]) == 2
    assert "minerva: gamma: must stay 0.9" in capsys.readouterr().err


def test_ctrl_c_prints_how_to_go_on(tmp_path: Path) -> None:
    words = [*WORDS[:-4], "--total-steps", "1000000", "--seeds", "5", "--jobs", "1"]
    command = [sys.executable, "-m", "minerva.cli", *words]
    process = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, text=True)
    try:
        deadline = time.monotonic() + 120
        while not list(tmp_path.glob("runs/ppo/Pendulum-v1/*/seed5/config.json")):
            assert time.monotonic() < deadline
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        said, _ = process.communicate(timeout=120)
    finally:
        process.kill()
    assert process.returncode == 130
    (run,) = tmp_path.glob("runs/ppo/Pendulum-v1/*/seed5")
    go_on = [*words, "--out-dir", str(run.parent.relative_to(tmp_path))]
    assert said.splitlines()[-1] == f"Go on with: {shlex.join(['minerva', *go_on])}"
    assert 0 <= state_of(run)["env_steps"] < 1_000_000
    assert not (run / "run.lock").exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--seeds", "1-2", "--seed", "3"], "--seed: cannot be combined with --seeds, got both; leave out --seed 3."),
        (["--seeds", "5-1"], "seeds: must be numbers and ranges"),
        (["--jobs", "2"], "--jobs: is for several runs, got 2 for one; add --seeds 1-5."),
        (["--seeds", "1-2", "--jobs", "0"], "jobs: must be a whole number from 1 on, got 0."),
        (["--seeds", "1-2", "--gamma", "7"], "gamma: must lie in [0, 1]"),
    ],
)
def test_a_wrong_command_is_one_line_and_creates_nothing(
    words: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main([*WORDS, *words]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"minerva: {message}")
    assert list(tmp_path.iterdir()) == []


def test_a_wrong_specification_is_one_line_and_starts_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "spec.toml").write_text(SPEC.replace("gamma = 0.9", "gamma = 9"))
    assert main(["sweep", str(tmp_path / "spec.toml"), "--out", str(tmp_path / "out")]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line == f"minerva: {tmp_path / 'spec.toml'}, line 20: gamma: must lie in [0, 1], got 9.0."
    assert not (tmp_path / "out").exists()


def test_a_failed_run_gives_exit_code_1_and_its_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "spec.toml").write_text(SPEC.replace('"ppo", "mpo"', '"ppo"').split("[settings.mpo]")[0])
    blocked = tmp_path / "out" / "ppo" / "Pendulum-v1" / "default" / "seed3"
    blocked.mkdir(parents=True)
    (blocked / "config.json").write_text("{}")  # another run's
    assert main(["sweep", str(tmp_path / "spec.toml"), "--out", str(tmp_path / "out")]) == 1
    captured = capsys.readouterr()
    assert "failed  ppo/Pendulum-v1/default/seed3" in captured.out
    assert captured.err.startswith("minerva: ppo/Pendulum-v1/default/seed3 failed: run: ")
    assert "holds no checkpoint" in captured.err


def test_the_list_is_made_of_commands_that_can_be_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "spec.toml").write_text(SPEC)
    assert main(["sweep", str(tmp_path / "spec.toml"), "--out", str(tmp_path / "out"), "--list"]) == 0
    first, second = capsys.readouterr().out.splitlines()
    assert first.startswith("minerva train ppo --env=Pendulum-v1 ") and second.startswith("minerva train mpo ")
    folder = tmp_path / "out" / "ppo" / "Pendulum-v1" / "default" / "seed3"
    assert first.endswith(f"--out-dir {folder} --resume-or-start")
    assert not folder.exists()
    assert main(shlex.split(first)[1:]) == 0
    assert state_of(folder)["env_steps"] == 96


def test_the_job_script_of_the_guide_runs_its_line_and_asks_to_be_queued_again(tmp_path: Path) -> None:
    page = (Path(__file__).parents[2] / "docs" / "how-to" / "sweeps.md").read_text(encoding="utf-8")
    (script,) = re.findall(r"```bash\n(.*?)```", page, re.DOTALL)
    (spec,) = re.findall(r"```toml\n(.*?)```", page, re.DOTALL)
    (tmp_path / "spec.toml").write_text(spec)
    programs = {"minerva": f'exec "{sys.executable}" -m minerva.cli "$@"', "srun": 'printf "%s|" "$@"; exit 143'}
    programs["scontrol"] = 'echo "scontrol $*"'
    for name, text in programs.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{text}\n")
        (tmp_path / name).chmod(0o755)
    slurm = {"SLURM_CPUS_PER_TASK": "1", "SLURM_ARRAY_JOB_ID": "77", "SLURM_ARRAY_TASK_ID": "2"}
    variables = {**os.environ, **slurm, "PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}"}
    done = subprocess.run(
        ["bash", "-c", script], cwd=tmp_path, env=variables, capture_output=True, text=True, check=True, timeout=60
    )
    command, requeue = done.stdout.rstrip("\n").rsplit("|", 1)
    assert command.split("|")[:3] == ["minerva", "train", "ppo"] and done.stderr == ""
    folder = "runs/two-algorithms/ppo/Pendulum-v1/clip_ratio=0.1,policy_lr=0.0003/seed1"
    assert command.split("|")[-3:] == ["--out-dir", folder, "--resume-or-start"]
    assert requeue == "scontrol requeue 77_2"


def made_status(folder: Path, **fields: Any) -> None:
    runs = [
        RunStatus("ppo/X/default/seed1", "ppo", "X", "default", 1, 100, "done", 100, evaluation=5.0),
        RunStatus("ppo/X/default/seed2", "ppo", "X", "default", 2, 100, "failed", 50, error="env: it fell over."),
        RunStatus("ppo/X/default/seed3", "ppo", "X", "default", 3, 100, "running", 20),
    ]
    SweepStatus("mine", "local", runs, **fields).write(folder)


def test_status_while_a_sweep_runs_and_after_it_has_died(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made_status(tmp_path)
    assert main(["status", str(tmp_path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "done    ppo/X/default/seed1  100 steps  return 5.0"
    assert lines[2].startswith("running ppo/X/default/seed3  20 of 100 steps")
    assert lines[3] == "mine: 3 runs: 1 done, 1 running, 1 failed" and len(lines) == 4
    made_status(tmp_path, ended=True)
    assert main(["status", str(tmp_path), "--state", "failed", "stopped"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[:2]] == ["failed", "stopped"]
    assert lines[-1] == "The sweep is not running; start it again to go on."
    assert main(["status", str(tmp_path), "--state", "failed", "--json"]) == 0
    (run,) = json.loads(capsys.readouterr().out)["runs"]
    assert run["error"] == "env: it fell over."
    assert main(["status", str(tmp_path / "nowhere")]) == 2
    assert capsys.readouterr().err.startswith("minerva: status: ")


def test_status_of_a_thousand_runs_takes_under_a_second(tmp_path: Path) -> None:
    runs = [RunStatus(f"ppo/X/default/seed{k}", "ppo", "X", "default", k, 100, "done", 100) for k in range(1000)]
    SweepStatus("mine", "local", runs, ended=True).write(tmp_path)
    command = [sys.executable, "-m", "minerva.cli", "status", str(tmp_path)]
    seconds = []
    for _ in range(3):
        # CPU time, not wall-clock time: other programs on the machine do not count.
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        seconds.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
        assert len(done.stdout.splitlines()) == 1001
    assert min(seconds) < 1.0
