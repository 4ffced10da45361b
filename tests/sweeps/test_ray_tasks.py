"""A real Ray cluster of two nodes on this machine, started by the tests."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import minerva
from benchmarks.cluster_model import Runs
from benchmarks.ray_nodes import Cluster, free_port, wait_until
from minerva.sweeps.status import SweepStatus
from tests.trainers.ppo.small_run import metrics_of, same, state_of
from tests.tuning import instant_trainer

if sys.platform == "win32":
    pytest.skip("the processes of a node are found in /proc", allow_module_level=True)
if os.environ.get("CI") != "true":  # there it must be installed
    pytest.importorskip("ray", reason='Ray is not installed: pip install "minerva-rl[ray]"')

SMALL: dict[str, Any] = {
    "policy_layer_sizes": (8,), "critic_layer_sizes": (8,), "rollout_steps": 16, "minibatch_size": 8,
    "eval_episodes": 1, "eval_max_steps": 5, "compile": False, "checkpoint_interval": 64,
}  # fmt: skip
STEPS = 1600
RATES = (0.01, 0.001)
SPEC = f"""
name = "on-ray"
algorithms = ["ppo"]
envs = ["Pendulum-v1"]
seeds = "1-6"
total_steps = {STEPS}
preset = "none"
device = "cpu"
[settings]
policy_layer_sizes = [8]
critic_layer_sizes = [8]
rollout_steps = 16
minibatch_size = 8
eval_episodes = 1
eval_max_steps = 5
compile = false
checkpoint_interval = 64
[grid]
policy_lr = [0.01, 0.001]
"""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    made = Cluster(tmp_path_factory.mktemp("ray"))
    try:
        yield made
    finally:
        made.close()


def started(cluster: Cluster, spec: Path, out: Path, *words: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "minerva.cli", "sweep", str(spec), "--out", str(out), "--on", "ray"]
    return subprocess.Popen(
        [*command, "--address", cluster.address, *words], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


def status_of(out: Path) -> SweepStatus | None:
    try:
        return SweepStatus.read(out)
    except ValueError:
        return None


def count(out: Path, state: Any) -> int:
    status = status_of(out)
    return 0 if status is None else sum(run.state == state for run in status.runs)


def test_a_node_is_killed_midway_and_the_weights_are_those_of_local_runs(cluster: Cluster, tmp_path: Path) -> None:
    (tmp_path / "spec.toml").write_text(SPEC)
    second = cluster.add()
    process = started(cluster, tmp_path / "spec.toml", tmp_path / "out")
    try:
        wait_until(lambda: count(tmp_path / "out", "done") >= 2 or process.poll() is not None, lambda: "no run ends")
        second.kill()
        said, _ = process.communicate(timeout=180)
    finally:
        process.kill()
    assert process.returncode == 0, said
    status = SweepStatus.read(tmp_path / "out")
    assert len(status.runs) == 12 and {run.state for run in status.runs} == {"done"}
    assert sum(run.attempts for run in status.runs) > 12 and "its node died" in said
    for rate in RATES:
        for seed in range(1, 7):
            alone = tmp_path / "alone" / f"{rate}-{seed}"
            minerva.train(
                "ppo", "Pendulum-v1", STEPS, seed, "cpu", alone, preset="none", policy_lr=rate, console=False, **SMALL
            )
            swept = tmp_path / "out" / "ppo" / "Pendulum-v1" / f"policy_lr={rate}" / f"seed{seed}"
            assert same(state_of(swept), state_of(alone))
            assert repr(metrics_of(swept)) == repr(metrics_of(alone))
    assert not list((tmp_path / "out").glob(".*")) and not list((tmp_path / "out").rglob("run.lock"))


def test_sigterm_saves_and_stops_all(cluster: Cluster, tmp_path: Path) -> None:
    (tmp_path / "spec.toml").write_text(SPEC.replace(f"= {STEPS}", "= 10000000"))
    out = tmp_path / "out"
    process = started(cluster, tmp_path / "spec.toml", out, "--jobs", "1")
    try:
        wait_until(lambda: bool(list(out.rglob("config.json"))), lambda: "no run starts")
        process.send_signal(signal.SIGTERM)
        said, _ = process.communicate(timeout=120)
    finally:
        process.kill()
    assert process.returncode == 143, said
    (run,) = (path.parent for path in out.rglob("config.json"))
    assert "saved at step" in (run / "output.log").read_text() and not (run / "run.lock").exists()
    assert count(out, "stopped") == 1 and count(out, "waiting") == 11
    assert "Go on with: " in said.splitlines()[-1]


STOP_ONE = """
import sys, time
from pathlib import Path
from minerva.sweeps.executor import RunFolder
from minerva.sweeps.ray_tasks import RayExecutor
from minerva.sweeps.spec import Resources
out = Path(sys.argv[2])
executor = RayExecutor(sys.argv[1], None, Resources())
executor.open(out)
words = ("train", "ppo", "--env=Pendulum-v1", "--preset=none", "--device=cpu", "--total-steps=10000000",
         "--rollout-steps=16", "--minibatch-size=8", "--policy-layer-sizes=8", "--critic-layer-sizes=8",
         "--eval-episodes=0", "--compile=False")
for name in ("one", "other"):
    executor.submit(RunFolder(out / name, words, {}, Path.cwd()), Resources())
while len(list(out.glob("*/config.json"))) < 2:
    assert not executor.wait(0.1)
executor.stop([out / "one"])
ended = executor.wait(60)
print([(end.path.name, end.code) for end in ended], executor.wait(1))
executor.stop()
print([(end.path.name, end.code) for end in executor.wait(60)])
executor.close()
"""


def test_one_run_is_stopped_and_the_other_goes_on(cluster: Cluster, tmp_path: Path) -> None:
    command = [sys.executable, "-c", STOP_ONE, cluster.address, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    assert done.stdout == "[('one', 143)] []\n[('other', 143)]\n", done.stdout + done.stderr
    assert all("saved at step" in log.read_text() for log in tmp_path.glob("*/output.log"))


def test_more_than_a_node_has_is_refused(cluster: Cluster, tmp_path: Path) -> None:
    (tmp_path / "spec.toml").write_text(SPEC + "[resources]\ncores = 64\n")
    said, _ = started(cluster, tmp_path / "spec.toml", tmp_path / "out").communicate(timeout=120)
    assert said == "minerva: cores: the cluster's largest node has 2, got 64; ask for less.\n"
    assert not (tmp_path / "out").exists()


def test_a_node_that_does_not_share_the_folder_is_named(cluster: Cluster, tmp_path: Path) -> None:
    """The folder is in a file system that only the sweep's own process sees, as on a disk of one machine."""
    unshare = shutil.which("unshare")
    if unshare is None or subprocess.run([unshare, "-m", "true"], capture_output=True).returncode != 0:
        if os.environ.get("CI") == "true":
            pytest.fail("unshare -m is not permitted")
        pytest.skip("a file system of one's own (unshare -m) is not permitted here")
    (tmp_path / "spec.toml").write_text(SPEC)
    (tmp_path / "disk").mkdir()
    sweep = f"'{sys.executable}' -m minerva.cli sweep '{tmp_path}/spec.toml' --out '{tmp_path}/disk/out' --on ray"
    script = f"mount -t tmpfs none '{tmp_path}/disk' && {sweep} --address {cluster.address}"
    done = subprocess.run([unshare, "-m", "sh", "-c", script], capture_output=True, text=True, timeout=120)
    assert done.returncode == 2, done.stderr
    assert done.stderr.startswith("minerva: out: must be in a file system that all nodes of the cluster share, got ")
    assert "does not see it; choose another folder." in done.stderr


@pytest.mark.parametrize("address", ["127.0.0.1:{port}", "6379", "no-such-host.invalid:6379"])
def test_without_a_cluster_it_says_how_to_start_one(tmp_path: Path, address: str) -> None:
    with pytest.raises(ValueError, match=r"^address: there is no Ray cluster at .*`ray start --head`"):
        minerva.sweep(
            {"algorithms": ["ppo"], "envs": ["Pendulum-v1"], "seeds": "1"},
            out=tmp_path / "out", on="ray", address=address.format(port=free_port()), console=False,
        )  # fmt: skip


def test_a_search_that_is_refused_leaves_no_folder(tmp_path: Path) -> None:
    """Otherwise its study would refuse another search there."""
    pytest.importorskip("optuna")
    spec = {"algorithms": ["ppo"], "envs": ["Pendulum-v1"], "seeds": "1", "search": {"gamma": {"low": 0.9, "high": 1}}}
    with pytest.raises(ValueError, match=r"^address: there is no Ray cluster at .*`ray start --head`"):
        minerva.tune(spec, out=tmp_path / "out", on="ray", address=f"127.0.0.1:{free_port()}", console=False)
    assert not (tmp_path / "out").exists()


def test_a_simulated_sweep_ends_although_a_node_is_killed(cluster: Cluster, tmp_path: Path) -> None:
    from benchmarks.simulated_cluster import connected, play_sweep

    second = cluster.add()
    with connected(cluster):
        found = play_sweep(tmp_path / "out", Runs(20, 0.2, 0.8), 4, kill=(2.0, [second]))
        # Ray may still take the node for a living one, but must not be believed.
        again = play_sweep(tmp_path / "out", Runs(2, 0.0, 0.0), 4)
    assert (found["done"], found["with_all_steps"], found["failed"], found["locks_left"]) == (20, 20, 0, 0)
    assert found["attempts"] > 20 and again["done"] == 2


TUNE = """
import sys
from pathlib import Path
from minerva import api
from minerva.sweeps.ray_tasks import RayExecutor
from minerva.sweeps.spec import Resources
from minerva.tuning.spec import read_tune_spec
from minerva.tuning.tuner import Tuner
spec = read_tune_spec(sys.argv[3], api.algorithms())
executor = RayExecutor(sys.argv[1], None, Resources(), (sys.executable, sys.argv[4]))
result = Tuner(spec, api.algorithms(), Path(sys.argv[2]), executor).tune()
print([(trial.number, trial.outcome) for trial in result.trials])
"""


def test_a_search_on_the_cluster_resumes_after_a_kill(cluster: Cluster, tmp_path: Path) -> None:
    pytest.importorskip("optuna")
    spec, out = tmp_path / "tune.toml", tmp_path / "out"
    spec.write_text(
        'algorithms = ["ppo"]\nenvs = ["Pendulum-v1"]\nseeds = "1"\npreset = "none"\ntotal_steps = 4096\n'
        "[search]\npolicy_lr = {low = 1e-4, high = 1e-1, log = true}\n[tune]\ntrials = 8\npruner = 'none'\n"
    )
    command = [sys.executable, "-c", TUNE, cluster.address, str(out), str(spec), str(instant_trainer.__file__)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        wait_until(lambda: count(out, "done") >= 2 or process.poll() is not None, lambda: "no trial ends")
    finally:
        process.kill()
    assert process.wait() == -signal.SIGKILL
    ended = [run.folder for run in SweepStatus.read(out).runs if run.state == "done"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.stdout.splitlines()[-1:] == [str([(k, "complete") for k in range(8)])], done.stdout + done.stderr
    assert (out / "best.toml").exists() and (out / "tuning.html").exists()
    assert 2 <= len(ended) < 8 and all((out / folder / "starts").read_text() == "x" for folder in ended)


SWEEP_OF_SLEEPERS = """
import sys
from pathlib import Path
from benchmarks import sleeping_trainer
from minerva.sweeps import ray_tasks
from minerva.sweeps.expansion import PlannedRun
from minerva.sweeps.spec import Resources
from minerva.sweeps.sweep import Sweep
ray_tasks._HEAD_SECONDS = 2.0
executor = ray_tasks.RayExecutor(sys.argv[1], None, Resources(), (sys.executable, sleeping_trainer.__file__))
names = [f"v{k}" for k in range(6)]
runs = [PlannedRun(f"ppo/X/{name}/seed1", "ppo", "X", name, 1, 20, 20, {}, ("20", "1")) for name in names]
print(Sweep("mine", runs, Path(sys.argv[2]), executor, Resources()).run())
"""


def test_a_lost_head_node_is_said_and_starting_again_goes_on(cluster: Cluster, tmp_path: Path) -> None:
    """The last test of the module's cluster: it is gone then."""
    out = tmp_path / "out"

    def sweep(address: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-c", SWEEP_OF_SLEEPERS, address, str(out)]
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)

    process = sweep(cluster.address)
    try:
        wait_until(lambda: count(out, "done") >= 2 or process.poll() is not None, lambda: "no run ends")
        cluster.head.kill()
        said, _ = process.communicate(timeout=50)  # before Ray ends the process
    finally:
        process.kill()
    assert "the head node of the Ray cluster at " in said and "which goes on from there." in said, said
    status = SweepStatus.read(out)
    assert status.ended and 2 <= count(out, "done") < 6 and not count(out, "running")
    other = Cluster(tmp_path)
    try:
        said, _ = sweep(other.address).communicate(timeout=120)
    finally:
        other.close()
    assert "SweepResult(6 of 6 runs done, 0 failed" in said, said
    for run in SweepStatus.read(out).runs:  # each step once, over both clusters
        rows = (out / run.folder / "metrics.csv").read_text().splitlines()[1:]
        assert [row.split(",")[0] for row in rows] == [str(k) for k in range(1, 21)]
