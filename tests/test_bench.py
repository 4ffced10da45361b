import contextlib
import json
import re
import resource
import signal
import tempfile
import time
from pathlib import Path
from typing import Any

import gymnasium
import pytest
import torch

from benchmarks import provenance
from minerva import PPOTrainer, VMPOTrainer
from minerva.acceleration.applied import Acceleration
from minerva.bench import bench, long_enough, prepare_config
from minerva.cli import main
from minerva.trainers.mpo.config import MPOConfig
from minerva.trainers.ppo.config import PPOConfig
from minerva.trainers.vmpo.config import VMPOConfig
from minerva.utils import hardware

PLAIN = ["--preset", "none", "--compile", "False", "--device", "cpu"]
PPO = ["ppo", "--env", "CartPole-v1", "--num-envs", "2", "--rollout-steps", "64", *PLAIN]
MPO = ["mpo", "--env", "Pendulum-v1", "--replay-size", "2000", "--policy-layer-sizes", "32", *PLAIN]
SMALL = PPOConfig(rollout_steps=16, minibatch_size=16, update_epochs=1, anneal_lr=False, compile=False)
VMPO = ["vmpo", "--env", "CartPole-v1", "--num-envs", "2", "--rollout-steps", "64", *PLAIN]


def measured(folder: Path, *words: str) -> dict[str, Any]:
    file = folder / "numbers.json"
    assert main(["bench", *words, "--json", str(file)]) == 0
    found: dict[str, Any] = json.loads(file.read_text())
    return found


def number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def test_several_processes_are_refused(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    for name, value in {"TORCHELASTIC_RUN_ID": "x", "WORLD_SIZE": "2", "RANK": "0"}.items():
        monkeypatch.setenv(name, value)
    assert main(["bench", *PPO]) == 2
    assert "bench: measures a run of one process, got several (torchrun)" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "updates_per_step"),
    [
        ([*PPO, "--seconds", "0.3"], 1 / 128),
        ([*VMPO, "--seconds", "0.3"], 1 / 128),
        ([*MPO, "--steps", "30", "--batch-size", "64", "--updates-per-step", "0.5", "--update-interval", "4"], 1 / 2),
    ],
    ids=["ppo", "vmpo", "mpo"],
)
def test_every_algorithm_is_measured_and_the_table_shows_what_the_json_holds(
    words: list[str],
    updates_per_step: float,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    begin = time.perf_counter()
    found = measured(tmp_path, *words)
    took = time.perf_counter() - begin
    assert [path.name for path in tmp_path.iterdir()] == ["numbers.json"]

    window, shares = found["measured"], found["shares"]
    assert sum(shares.values()) == pytest.approx(1)
    assert list(shares) == ["acting", "simulating", "updating", "rest"]
    assert all(share > 0 for share in shares.values())
    assert window["updates"] == window["env_steps"] * updates_per_step > 0  # whole rounds
    assert found["steps_per_second"] == pytest.approx(window["env_steps"] / window["seconds"])
    assert found["updates_per_second"] == pytest.approx(window["updates"] / window["seconds"])
    assert found["update_ms"] * window["updates"] / 1e3 == pytest.approx(shares["updating"] * window["seconds"])
    start = found["start_seconds"]
    assert start["total"] == pytest.approx(start["imports"] + start["making"] + start["opening"])
    assert window["seconds"] + start["total"] + found["first_updates_ms"] / 1e3 < took
    assert found["path"] == "plain" and found["device"] == "cpu" and "Gymnasium" in found["backend"]
    assert found["peak_gpu_memory_bytes"] is None
    assert found["hardware"] == hardware.hardware() and found["settings"]["eval_episodes"] == 0
    assert found["versions"]["torch"] and found["total_steps"] == 1_000_000

    captured = capsys.readouterr()
    assert captured.err == ""
    values = [
        number(found["steps_per_second"]),
        *(f"{share:.1%}" for share in shares.values()),
        number(found["updates_per_second"]),
        f"{number(found['update_ms'])} ms",
        f"{number(found['first_updates_ms'])} ms",
        f"{number(start['total'])} s",
        f"{found['peak_memory_bytes'] / 2**20:,.0f} MiB",
        "cpu",
    ]
    rows = [re.split(r"\s{2,}", line.strip()) for line in captured.out.splitlines()]
    assert [row[1] for row in rows if len(row) == 3] == values
    for text in ("path: plain", found["backend"], *found["notes"]):
        assert text in captured.out


def test_as_many_rounds_as_fit_and_one_in_any_case(tmp_path: Path) -> None:
    enough = long_enough(10.0, None)
    assert not enough(3.0, 1, 5) and not enough(6.6, 2, 5) and enough(6.7, 2, 5)  # a third would end at 10.05
    assert enough(12.0, 1, 5)
    one = measured(tmp_path, *PPO, "--seconds", "1e-9")["measured"]
    assert (one["updates"], one["env_steps"]) == (1, 128)
    some = measured(tmp_path, *PPO, "--steps", "300")["measured"]
    assert (some["updates"], some["env_steps"]) == (3, 384)


def test_mpo_begins_to_update_at_once_and_says_so(tmp_path: Path) -> None:
    found = measured(tmp_path, *MPO, "--steps", "2", "--batch-size", "16", "--update-after", "1500")
    assert found["settings"]["update_after"] == 16 and found["first_updates"] == 1
    assert "Updates start after 16 transitions (update_after) instead of 1,500." in found["notes"]
    few = MPOConfig(update_after=10)
    config, notes = prepare_config(few)
    assert isinstance(config, MPOConfig) and config.update_after == 10
    assert not any("update_after" in note for note in notes)


class Slow(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Takes four milliseconds per step."""

    def __init__(self) -> None:
        super().__init__(gymnasium.make("Pendulum-v1"))

    def step(self, action: Any) -> Any:
        time.sleep(0.004)
        return super().step(action)


def test_a_slow_environment_is_seen_in_simulating() -> None:
    found = bench(lambda config: PPOTrainer(Slow, 1, "cpu", config), SMALL, 1000, steps=48)  # type: ignore[arg-type]
    assert "Slow" in found.env_id
    assert found.window.env_steps == 48 and found.window.simulating >= 48 * 0.004
    assert found.window.shares["simulating"] > 0.5


@pytest.mark.parametrize(
    ("part", "owner", "name", "seconds"),
    [
        ("acting", "collector", "actor", 0.004),
        ("updating", "trainer", "update", 0.05),
        ("rest", "collector", "_normalize", 0.004),
    ],
)
def test_what_is_slow_is_seen_where_it_is(part: str, owner: str, name: str, seconds: float) -> None:
    def make(config: Any) -> PPOTrainer:
        trainer = PPOTrainer("Pendulum-v1", 1, "cpu", config)
        holder = trainer if owner == "trainer" else trainer.collector
        method = getattr(holder, name)

        def delayed(*arguments: Any) -> Any:
            time.sleep(seconds)
            return method(*arguments)

        setattr(holder, name, delayed)
        return trainer

    assert bench(make, SMALL, 1000, steps=32).window.shares[part] > 0.5


def test_the_length_of_the_run_decides_what_is_compiled_and_not_that_of_the_measurement() -> None:
    decided = []

    class Watching(VMPOTrainer):
        def gradient_steps(self, total_steps: int) -> float:
            decided.append(total_steps)
            return 0

    config = VMPOConfig(rollout_steps=8)
    found = bench(lambda changed: Watching("Pendulum-v1", 1, "cpu", changed), config, 777, steps=1)  # type: ignore[arg-type]
    assert decided == [777] and found.total_steps == 777 and found.path == "plain"


@pytest.mark.parametrize(
    ("acceleration", "path"),
    [
        (Acceleration(), "plain"),
        (Acceleration(compiled=True), "compiled"),
        (Acceleration(True, True), "compiled and captured"),
    ],
)
def test_the_path_is_named(acceleration: Acceleration, path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def make(config: Any) -> PPOTrainer:
        trainer = PPOTrainer("Pendulum-v1", 1, "cpu", config)
        trainer.acceleration = acceleration
        monkeypatch.setattr(trainer, "set_acceleration", lambda acceleration: None)
        return trainer

    assert bench(make, SMALL, 1000, steps=1).path == path


@pytest.mark.skipif(not torch.cuda.is_available(), reason="graphs are captured on a GPU")
@pytest.mark.parametrize("words", [PPO, VMPO, [*MPO, "--total-steps", "1000"]])
def test_on_a_gpu_updates_are_captured_and_its_memory_is_counted(words: list[str], tmp_path: Path) -> None:
    found = measured(tmp_path, *words, "--compile", "auto", "--device", "cuda", "--steps", "300")
    assert found["device"].startswith("cuda") and found["gpu"] == hardware.gpu()
    assert found["path"] == "captured" and found["peak_gpu_memory_bytes"] > 2**20
    assert sum(found["shares"].values()) == pytest.approx(1) and all(share > 0 for share in found["shares"].values())


def test_what_is_measured_is_what_train_does(tmp_path: Path) -> None:
    made: list[PPOTrainer] = []

    def make(config: Any) -> PPOTrainer:
        made.append(PPOTrainer("Pendulum-v1", 3, "cpu", config))
        return made[-1]

    found = bench(make, SMALL, 1000, steps=48)
    steps = made[0].env_steps
    assert steps == 16 + found.window.env_steps + 1 == 65  # a warm-up, whole rounds, and the step after them
    again = make(prepare_config(SMALL)[0])
    again.train(1000, out_dir=tmp_path, callbacks=lambda trainer: trainer.env_steps < steps)
    again.close()
    for one, other in zip(made[0].agent.parameters(), again.agent.parameters(), strict=True):
        assert one.equal(other)


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["pp0", "--env", "CartPole-v1"], "algo: must be ppo or mpo or vmpo, got 'pp0'"),
        (["--env", "CartPole-v1"], "bench: give an algorithm (ppo, mpo, vmpo) first, got --env"),
        (["ppo"], "--env: give an environment id"),
        (["ppo", "--env", "NoSuch-v1"], "env: no environment is called 'NoSuch-v1'"),
        (["mpo", "--env", "CartPole-v1"], "env: CartPole-v1 has the action space Discrete(2)"),
        ([*PPO, "--seconds", "0"], "--seconds: must be greater than 0, got 0"),
        ([*PPO, "--steps", "0"], "--steps: must be at least 1, got 0"),
        ([*PPO, "--steps", "9", "--seconds", "9"], "--steps: cannot be combined with --seconds"),
        ([*PPO, "--json", "no/such/folder.json"], "--json: must be a file in an existing folder"),
        ([*PPO, "--out-dir", "here"], "--out-dir: not an option of `minerva bench ppo`"),
        (
            [*PPO, "--total-steps", "100"],
            "total_steps: must be at least rollout_steps * num_envs = 128, one rollout, got 100",
        ),
        ([*PPO, "--init-from", "nowhere"], "run: there is no folder or checkpoint nowhere"),
        (
            [*MPO, "--batch-size", "8", "--updates-per-step", "0.01", "--total-steps", "20"],
            "total_steps: a run of 20 steps makes no update",
        ),
    ],
)
def test_a_mistake_is_one_line_and_exit_code_2(
    words: list[str],
    reason: str,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["bench", *words]) == 2
    captured = capsys.readouterr()
    (line,) = captured.err.splitlines()
    assert line.startswith("minerva: ") and reason in line
    assert captured.out == "" and list(tmp_path.iterdir()) == []


def test_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "--help"]) == 0
    text = capsys.readouterr().out
    assert "minerva bench ALGO --env ID [--seconds S | --steps N]" in text and "ALGO is ppo or mpo or vmpo" in text
    assert main(["bench"]) == 2
    assert capsys.readouterr().out == text
    assert main(["--help"]) == 0
    assert "bench       Measure the speed" in capsys.readouterr().out
    assert main(["bench", "ppo", "--env", "CartPole-v1", "--help"]) == 0
    text = capsys.readouterr().out
    assert "minerva bench ppo" in text and "--seconds" in text and "--rollout-steps" in text and "--out-dir" not in text


class Interrupting(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Presses Ctrl-C at its fortieth step."""

    def __init__(self) -> None:
        super().__init__(gymnasium.make("Pendulum-v1"))
        self.steps = 0

    def step(self, action: Any) -> Any:
        self.steps += 1
        if self.steps == 40:
            signal.raise_signal(signal.SIGINT)
        return super().step(action)


@pytest.mark.parametrize("env", [Interrupting, "Pendulum-v1"])
def test_nothing_is_left_of_it_after_ctrl_c_either(env: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    made: list[PPOTrainer] = []

    def make(config: Any) -> PPOTrainer:
        made.append(PPOTrainer(env, 1, "cpu", config))
        return made[-1]

    with pytest.raises(KeyboardInterrupt) if env is Interrupting else contextlib.nullcontext():
        bench(make, SMALL, 1000, steps=80)
    assert made[0].out_dir is not None and made[0].out_dir.parent == tmp_path
    assert list(tmp_path.iterdir()) == []


def test_there_is_one_copy_of_hardware_and_memory_is_counted_in_bytes() -> None:
    assert provenance.hardware is hardware.hardware and provenance.gpu is hardware.gpu
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    resident, most = pages * resource.getpagesize(), hardware.peak_memory()
    assert most is not None and 0.9 * resident < most < 100 * resident
