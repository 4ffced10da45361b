from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

import minerva
from minerva.cli import main
from minerva.report.runs import read_run
from minerva.trainers.trainer import Trainer
from minerva.utils import folder_lock
from minerva.utils.folder_lock import FILE_NAME, FolderLock, FolderLostError
from tests.environments.tiny_envs import Noisy
from tests.trainers.ppo.small_run import ROLLOUT, TOTAL, resume, same_run, small_trainer, snapshot, state_of, train
from tests.trainers.test_run_failures import make_trainer

TEN_STARTS = """
import json, os, sys, tempfile
from pathlib import Path
from minerva.cli import main
import minerva.trainers.ppo.trainer
folder, words = Path(sys.argv[1]), sys.argv[2:]
begin, ready = os.pipe()
children = []
for seed in range(10):
    child = os.fork()
    if child == 0:
        os.close(ready)
        with open(folder.with_name(f"{folder.name}.{seed}"), "w") as said:
            os.dup2(said.fileno(), 2)
        os.read(begin, 1)  # until the parent closes the other end
        code = main(["train", *[word.replace("SEED", str(seed)) for word in words]])
        os._exit(code)
    children.append(child)
os.close(ready)
print(json.dumps([os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]))
"""
SMALL = ["--rollout-steps", "16", "--minibatch-size", "8", "--eval-episodes", "1", "--eval-max-steps", "5"]
START = ["ppo", "--env", "Pendulum-v1", "--preset", "none", *SMALL, "--policy-layer-sizes", "8", "--no-console"]


def python(code: str, *words: str) -> subprocess.Popen[str]:
    path = os.pathsep.join(path or "." for path in sys.path)
    environment = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen([sys.executable, "-c", code, *words], env=environment, text=True, **pipes)


def test_of_ten_processes_that_start_in_one_folder_exactly_one_trains(tmp_path: Path) -> None:
    # benchmarks/locks.py does this many times, and with runs that are resumed.
    run, total = tmp_path / "run", ROLLOUT * 20
    words = [*START, "--total-steps", str(total), "--out-dir", str(run), "--seed", "SEED"]
    out, err = python(TEN_STARTS, str(run), *words).communicate(timeout=120)
    codes = json.loads(out.splitlines()[-1])
    assert sorted(codes) == [0] + [2] * 9, err
    said = [(tmp_path / f"run.{seed}").read_text() for seed in range(10)]
    for code, line in zip(codes, said, strict=True):
        assert code == 0 or (line.startswith("minerva: out_dir: ") and line.count("\n") == 1), line
    assert any("one process at a time may train in a folder" in line for line in said)
    assert read_run(run).seed == codes.index(0) and state_of(run)["env_steps"] == total
    assert read_run(run).metrics["losses/value_loss"].steps.tolist() == list(range(ROLLOUT, total + 1, ROLLOUT))
    assert not (run / FILE_NAME).exists()


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_a_second_trainer_is_told_who_holds_the_folder_and_readers_are_not(
    whole: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run, seen = tmp_path / "run", []

    def look(trainer: Trainer) -> None:
        if trainer.env_steps != 40:
            return
        second = small_trainer()
        second.load(run)
        before = snapshot(run)
        holder = rf"in use by process {os.getpid()} \(this one\) on "
        with pytest.raises(ValueError, match=holder):
            second.train(TOTAL)
        with pytest.raises(ValueError, match=holder):
            second.train(TOTAL, out_dir=run)
        second.close()
        with pytest.raises(ValueError, match=holder):
            train(run, seed=5)
        assert main(["train", "--resume", str(run)]) == 2
        said = capsys.readouterr().err
        assert said.startswith("minerva: out_dir: one process at a time") and said.count("\n") == 1
        assert snapshot(run) == before
        assert minerva.load(run).env_steps == 2 * ROLLOUT  # the newest evaluation
        assert read_run(run).seed == 1
        assert main(["plot", str(run), "--out", str(tmp_path / "curve.svg")]) == 0
        assert main(["evaluate", str(run), "--episodes", "1"]) == 0
        seen.append(trainer.env_steps)

    train(run, callbacks=look)
    assert seen == [40] and same_run(whole, run)


def test_a_run_that_another_process_has_trained_since_it_was_loaded_is_not_rolled_back(tmp_path: Path) -> None:
    train(tmp_path / "run", ROLLOUT)
    late = small_trainer()
    late.load(tmp_path / "run")
    resume(tmp_path / "run", 2 * ROLLOUT)
    before = snapshot(tmp_path / "run")
    with pytest.raises(
        ValueError, match=rf"another process has trained the run in .* loaded at step {ROLLOUT}; load it"
    ):
        late.train(3 * ROLLOUT)
    assert snapshot(tmp_path / "run") == before
    late.load(tmp_path / "run")
    assert late.train(3 * ROLLOUT).updates == 3
    late.close()


KILLED = """
import os, sys, time
from pathlib import Path
import gymnasium
from minerva.trainers.ppo.trainer import PPOTrainer
here = Path(sys.argv[1])

class Stuck(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-1, 1, (2,))
    action_space = gymnasium.spaces.Box(-1, 1, (1,))
    steps = 0
    def reset(self, **_):
        return self.observation_space.sample() * 0, {}
    def step(self, action):
        self.steps += 1
        if self.steps == 9 and not (here / "worker").exists():
            (here / "part").write_text(str(os.getpid()))
            (here / "part").rename(here / "worker")
            time.sleep(60)
        return self.observation_space.sample() * 0, 0.0, False, False, {}

trainer = PPOTrainer(Stuck, 1, "cpu", num_envs=2, vectorization="subprocess", rollout_steps=4, minibatch_size=4,
                     eval_episodes=0, checkpoint_interval=1, policy_layer_sizes=(4,), critic_layer_sizes=(4,))
trainer.train(64, out_dir=here / "run")
"""


def test_the_next_resume_starts_at_once_although_workers_of_a_killed_run_live(tmp_path: Path) -> None:
    process = python(KILLED, str(tmp_path))
    deadline = time.monotonic() + 60
    while not (tmp_path / "worker").exists():
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.01)
    process.kill()
    process.wait()
    worker = int((tmp_path / "worker").read_text())
    lock = FolderLock(tmp_path / "run", tmp_path / "run")
    begin = time.monotonic()
    lock.acquire()
    assert time.monotonic() - begin < 0.5
    os.kill(worker, 0)  # it is there still
    lock.release()
    os.kill(worker, signal.SIGKILL)
    process.communicate()


# A folder that is lost


@pytest.mark.parametrize("notice", ["save", "heartbeat"])
@pytest.mark.parametrize("kind", ["ppo", "vmpo", "mpo"])
def test_a_run_whose_folder_was_deleted_stops_and_writes_nothing(
    kind: str, notice: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    if notice == "heartbeat":
        monkeypatch.setattr(folder_lock, "HEARTBEAT_SECONDS", 0.005)
    (tmp_path / "mark").touch()  # no failure of the environment
    trainer = make_trainer(kind, tmp_path / "mark", "step")
    steps = 0

    def delete(trainer: Trainer) -> None:
        nonlocal steps
        steps += 1
        if steps == 25:
            shutil.rmtree(tmp_path / "run")
        if steps > 25 and notice == "heartbeat":
            time.sleep(0.005)

    total = 200 if notice == "save" else 1_000_000
    with pytest.raises(FolderLostError, match=r"run(/run.lock)? was deleted or moved while the run"):
        trainer.train(total, out_dir=tmp_path / "run", callbacks=delete)
    trainer.close()
    assert [path.name for path in tmp_path.iterdir()] == ["mark"]


def test_a_run_that_was_taken_over_leaves_the_folder_to_the_other(tmp_path: Path) -> None:
    run = tmp_path / "run"
    left: dict[str, bytes] = {}

    def take_over(trainer: Trainer) -> None:
        if trainer.env_steps == 30:
            (run / FILE_NAME).write_text('{"host": "elsewhere", "pid": 12, "since": "noon"}')
            left.update(snapshot(run))

    with pytest.raises(
        FolderLostError, match="was taken over by process 12 on elsewhere, since noon; this process has"
    ):
        train(run, callbacks=take_over)
    assert snapshot(run) == left


@pytest.mark.parametrize("fails", [False, True])
def test_what_was_logged_before_a_takeover_at_the_very_end_is_not_written(fails: bool, tmp_path: Path) -> None:
    run, sizes = tmp_path / "run", []

    def take_over(trainer: Trainer) -> None:
        if trainer.env_steps == TOTAL:
            (run / FILE_NAME).write_bytes(b'{"host": "another", "pid": 1}')
            sizes.append((run / "metrics.csv").stat().st_size)
            if fails:
                raise ZeroDivisionError

    with pytest.raises(FolderLostError, match="was taken over by process 1 on another"):
        train(run, callbacks=take_over)
    assert (run / "metrics.csv").stat().st_size == sizes[0]


def test_a_start_that_is_interrupted_while_it_takes_the_lock_leaves_the_folder_free(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(thread: threading.Thread) -> None:
        if thread.name.startswith("heartbeat"):
            raise KeyboardInterrupt
        start(thread)

    start = threading.Thread.start
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(threading.Thread, "start", interrupt)
        train(tmp_path / "run")
    assert train(tmp_path / "run").env_steps == TOTAL


def test_a_checkpoint_that_the_user_writes_in_between_is_the_runs_own(tmp_path: Path) -> None:
    trainer = small_trainer()
    trainer.train(2 * ROLLOUT, tmp_path / "run")
    trainer.save(tmp_path / "run" / "ppo_last.pt")
    trainer.train(TOTAL)
    trainer.close()
    assert trainer.env_steps == TOTAL


def test_the_command_line_says_that_the_folder_is_gone_in_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    step = Trainer.evaluate

    def delete(trainer: Trainer, **arguments: Any) -> Any:
        if trainer.env_steps:
            shutil.rmtree("run")
        return step(trainer, **arguments)

    monkeypatch.setattr(Trainer, "evaluate", delete)
    assert main(["train", *START, "--total-steps", "64", "--out-dir", "run"]) == 1
    said = capsys.readouterr()
    assert said.err.startswith("minerva: out_dir: run was deleted or moved while") and said.err.count("\n") == 1
    assert said.out == "" and list(tmp_path.iterdir()) == []


# A folder that is given relative to the current one


class Wandering(Noisy):
    """Change the current folder, as some simulators do to find their files."""

    def __init__(self, to: Path) -> None:
        super().__init__(length=6)
        self.to = to

    def step(self, action: Any) -> Any:
        os.chdir(self.to)
        return super().step(action)


def test_a_relative_folder_stays_where_it_is_when_an_environment_changes_the_current_one(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    trainer = small_trainer(lambda: Wandering(tmp_path / "elsewhere"), checkpoint_interval=5)
    result = trainer.train(2 * ROLLOUT, "run")
    assert result.out_dir == Path("run") and trainer.out_dir == tmp_path / "run"
    assert trainer.train(4 * ROLLOUT).updates == 4
    trainer.close()
    monkeypatch.chdir(tmp_path)
    resumed = small_trainer(lambda: Wandering(tmp_path / "elsewhere"))
    resumed.load("run")
    assert resumed.train(5 * ROLLOUT).updates == 5
    resumed.close()
    assert list((tmp_path / "elsewhere").iterdir()) == []
    assert {"config.json", "metrics.csv", "ppo_last.pt"} <= snapshot(tmp_path / "run").keys()


def test_the_command_line_means_the_folder_in_which_it_was_started(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    make = minerva.api.make_trainer

    def wander(*arguments: Any) -> Trainer:
        trainer = make(*arguments)
        os.chdir(tmp_path / "elsewhere")  # as an environment's constructor may
        return trainer

    monkeypatch.setattr(minerva.api, "make_trainer", wander)
    for words in ([*START, "--total-steps", "32", "--out-dir", "run"], ["--resume", "run", "--total-steps", "64"]):
        monkeypatch.chdir(tmp_path)
        assert main(["train", *words]) == 0
        said = capsys.readouterr().out
        assert "Run        run\n" in said and "Checkpoint run/ppo_last.pt\n" in said
    assert state_of(tmp_path / "run")["env_steps"] == 64 and list((tmp_path / "elsewhere").iterdir()) == []
