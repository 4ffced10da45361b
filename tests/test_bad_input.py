"""Mistakes and accidents: a sentence on one line, the right exit status, and nothing created or lost."""

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from minerva import PPOTrainer, checkpointing
from minerva.cli import main

SHORT = ["--preset", "none", "--rollout-steps", "64", "--minibatch-size", "32", "--eval-episodes", "1", "--no-console"]
PENDULUM = ["train", "ppo", "--env", "Pendulum-v1", "--total-steps", "128", *SHORT]

Refuse = Callable[..., str]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("bad_input") / "made"
    assert main([*PENDULUM, "--out-dir", str(folder)]) == 0
    return folder


@pytest.fixture
def run(made: Path, tmp_path: Path) -> Path:
    """A run of its own for each test."""
    return Path(shutil.copytree(made, tmp_path / "run"))


@pytest.fixture
def refuse(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Refuse:
    """Run a command that must end with status 2 and one line, and change no file below the current folder."""
    monkeypatch.chdir(tmp_path)

    def command(*words: str) -> str:
        before = contents(tmp_path)
        capsys.readouterr()
        assert main(list(words)) == 2
        said = capsys.readouterr()
        assert said.err.startswith("minerva: ") and said.err.count("\n") == 1, said.err
        assert "Traceback" not in said.err and said.out == ""
        assert contents(tmp_path) == before
        return said.err

    return command


def contents(folder: Path) -> dict[Path, bytes | None]:
    return {path: path.read_bytes() if path.is_file() else None for path in folder.rglob("*")}


# Environments


@pytest.mark.parametrize(
    ("env", "parts"),
    [
        ("HalfCheeta-v5", ["'HalfCheeta-v5'", "Did you mean", "HalfCheetah-v5"]),
        ("Nothing-like-it-at-all", ["'Nothing-like-it-at-all'", "`minerva envs`"]),
        ("dm_control/cheetah", ["'dm_control/cheetah'", "dm_control/<domain>/<task>", "dm_control/cheetah/run"]),
        ("dm_control/cheetah/run/fast", ["'dm_control/cheetah/run/fast'", "dm_control/<domain>/<task>"]),
        ("dm_control//run", ["'dm_control//run'", "dm_control/<domain>/<task>"]),
        ("dm_control/cheetah/runn", ["'dm_control/cheetah/runn'", "Did you mean", "dm_control/cheetah/run"]),
    ],
)
def test_environments(refuse: Refuse, env: str, parts: list[str]) -> None:
    message = refuse("train", "ppo", "--env", env)
    assert all(part in message for part in parts), message


def test_discrete_actions_for_an_algorithm_without_them(refuse: Refuse) -> None:
    message = refuse("train", "mpo", "--env", "CartPole-v1")
    assert all(part in message for part in ("CartPole-v1", "Discrete(2)", "Box", "ppo or vmpo")), message


def test_environment_arguments(refuse: Refuse) -> None:
    message = refuse(*PENDULUM, "--env-kwargs", "gravity=3")
    assert "Pendulum-v1 could not be made with {'gravity': 3}" in message
    assert "must be KEY=VALUE, such as frame_skip=2; got 'gravity'" in refuse(*PENDULUM, "--env-kwargs", "gravity")


def test_an_environment_that_has_moved_to_another_package(refuse: Refuse) -> None:
    message = refuse("train", "ppo", "--env", "GymV21Environment-v0")
    # Which of the two it is depends on whether Shimmy has been imported, which names another entry point.
    assert "GymV21Environment-v0 could not be made" in message or "GymV21Environment-v0 needs a package" in message


def test_more_memory_than_there_is(refuse: Refuse) -> None:
    sizes = "--num-envs 200 --rollout-steps 10000000 --minibatch-size 64"  # 32 GB of observations in one piece
    message = refuse(*PENDULUM, *sizes.split(), "--env", "CartPole-v1")
    assert "memory: there is not enough for num_envs = 200, rollout_steps = 10000000" in message


def test_no_environment_at_all(refuse: Refuse) -> None:
    assert "--env: give an environment id, such as --env HalfCheetah-v5" in refuse("train", "ppo")


# Settings


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        (
            "--num-envs 1 --rollout-steps 64 --minibatch-size 65",
            ["minibatch_size", "= 64 * 1 = 64", "got 65"],
        ),
        ("--num-envs 0", ["num_envs: must be at least 1, got 0"]),
        ("--rollout-steps -5", ["rollout_steps: must be at least 1, got -5"]),
        ("--minibatch-size 0", ["minibatch_size: must be at least 1, got 0"]),
        ("--update-epochs 0", ["update_epochs: must be at least 1, got 0"]),
        ("--total-steps 0", ["total_steps: must be a whole number from 1 on, got 0"]),
        ("--eval-episodes -1", ["eval_episodes: must be at least 0, got -1"]),
        ("--policy-layer-sizes 64 0", ["policy_layer_sizes", "(64, 0)", "such as (64, 64)"]),
        ("--critic-layer-sizes", ["critic_layer_sizes", "got ()", "such as (64, 64)"]),
        ("--gamma 1.01", ["gamma: must lie in [0, 1], got 1.01"]),
        ("--gamma nan", ["gamma: must lie in [0, 1], got nan"]),
        ("--gae-lambda -0.1", ["gae_lambda: must lie in [0, 1], got -0.1"]),
        ("--policy-lr 0", ["policy_lr: must be greater than 0, got 0"]),
        ("--optimizer-type rmsprop", ["optimizer-type", "'rmsprop'", "adam", "sgd"]),
        ("--seed -1", ["seed: must be a whole number from 0 on, got -1"]),
        ("--device quantum", ["device: 'quantum' is not available here; use auto or cpu"]),
        ("--device meta", ["device: 'meta' is not available here; use auto or cpu"]),
        ("--torch-threads 100000", ["torch_threads: must be at most 1,024, got 100000"]),
        ("--num-envs 99999999999", ["num_envs: must be at most 65,536, got 99999999999"]),
        (f"--eval-episodes {'9' * 23}", ["eval_episodes: must be at most 65,536", "9" * 23]),
        (f"--total-steps {'9' * 23}", ["total_steps: must be at most", "9" * 23]),
        (f"--seed {'9' * 23}", ["seed: must be at most", "9" * 23]),
        (f"--policy-lr {'-' * 5000}1", ["policy_lr: must be a number", "got '-----"]),
        ("--env-kwargs g={[]:1}", ["--env-kwargs: g: must be a value that Python can read, got '{[]:1}'"]),
        (f"--env-kwargs g={'-' * 5000}1", ["--env-kwargs: g: must be a value that Python can read, got '-----"]),
        (f"--env-kwargs g={'[' * 50_000}", ["--env-kwargs: g: must be a value that Python can read, got '[[[["]),
        ("--env-kwargs render_mode=7", ["env: MountainCarContinuous-v0 could not be made with {'render_mode': 7}"]),
        ("--gamma much", ["--gamma", "'much'"]),
        ("--gama 0.9", ["--gama: not an option", "Did you mean --gamma"]),
        ("--preset Pendulun-v1", ["'Pendulun-v1'", "Did you mean Pendulum-v1", "Use 'none' for the defaults"]),
        ("stray", ["stray: not an option"]),
    ],
)
def test_settings(refuse: Refuse, words: str, parts: list[str]) -> None:
    message = refuse("train", "ppo", "--env", "MountainCarContinuous-v0", *words.split())
    assert all(part in message for part in parts), message


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        ("trian ppo", ["'trian'", "Did you mean train?"]),
        ("train sac --env Pendulum-v1", ["algo: must be ppo or mpo or vmpo, got 'sac'"]),
        ("train --env Pendulum-v1", ["give an algorithm (ppo, mpo, vmpo)"]),
        ("evaluate", ["RUN"]),
        ("evaluate nowhere", ["nowhere"]),
        ("plot", ["at least one run"]),
        ("plot nowhere", ["nowhere is not a run's folder"]),
        ("presets sac", ["'sac'", "ppo"]),
        ("envs zzzz", ["'zzzz'"]),
    ],
)
def test_commands(refuse: Refuse, words: str, parts: list[str]) -> None:
    message = refuse(*words.split())
    assert all(part in message for part in parts), message


def test_evaluate_and_plot_of_a_run(refuse: Refuse, run: Path) -> None:
    assert "--episodes: must be at least 1, got 0" in refuse("evaluate", str(run), "--episodes", "0")
    assert "must end in .png, .svg, .pdf" in refuse("plot", str(run), "--out", "curve.gif")
    assert "has no value of 'nothing'" in refuse("plot", str(run), "--metric", "nothing")


# Output folders


def test_output_folder_that_cannot_be_written(refuse: Refuse, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder")
    for folder in ("file", "file/below", "/proc/minerva/run"):
        message = refuse(*PENDULUM, "--out-dir", folder)
        assert f"out_dir: {folder} cannot be created" in message and "choose another folder" in message


def test_output_folder_that_holds_a_run(refuse: Refuse, run: Path) -> None:
    message = refuse(*PENDULUM, "--out-dir", "run")
    assert "out_dir: run holds a run already" in message and "--resume" in message


# Checkpoints


def test_resume_folder_that_is_not_one(refuse: Refuse, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    assert "run: there is no folder or checkpoint nowhere" in refuse("train", "--resume", "nowhere")
    message = refuse("train", "--resume", "empty")
    assert "run: empty holds no checkpoint" in message and "`minerva train` wrote" in message


def test_resume_takes_its_settings_from_the_run(refuse: Refuse, run: Path) -> None:
    assert "--gamma: not an option" in refuse("train", "ppo", "--resume", "run", "--gamma", "0.5")
    message = refuse("train", "--resume", "run", "--total-steps", "64")
    assert "--total-steps: must be at least 128, the steps taken so far, got 64" in message


@pytest.mark.parametrize("how", [["train", "--resume"], ["train", "ppo", "--resume"], [*PENDULUM, "--init-from"]])
def test_checkpoint_of_another_algorithm(refuse: Refuse, run: Path, how: list[str]) -> None:
    rewrite(run, algorithm="sac")
    message = refuse(*how, "run")
    assert "sac" in message and "ppo" in message and "ppo_last.pt" in message


def test_checkpoint_of_an_algorithm_that_is_here_too(refuse: Refuse, run: Path) -> None:
    rewrite(run, algorithm="mpo")
    message = refuse(*PENDULUM, "--init-from", "run")
    assert "ppo_last.pt is one of mpo, not of ppo; use `minerva train mpo`" in message


def test_checkpoint_of_another_environment(refuse: Refuse, run: Path) -> None:
    message = refuse("train", "ppo", "--env", "MountainCarContinuous-v0", *SHORT, "--init-from", "run")
    assert "was made on Pendulum-v1, whose observation space is not that of MountainCarContinuous-v0" in message
    assert "(2,)" in message
    rewrite(run, env_id="MountainCarContinuous-v0")
    assert "observation space is not that of" in refuse("train", "--resume", "run", "--total-steps", "256")


def test_checkpoint_of_networks_of_another_size(refuse: Refuse, run: Path) -> None:
    message = refuse(*PENDULUM, "--policy-layer-sizes", "8", "--init-from", "run")
    assert "was made with policy_layer_sizes = [64, 64], got [8]; give the same" in message


def test_checkpoint_of_a_newer_format(refuse: Refuse, run: Path) -> None:
    rewrite(run, format=checkpointing.FORMAT + 1)
    for command in (["train", "--resume"], ["evaluate"]):
        message = refuse(*command, "run")
        assert f"format {checkpointing.FORMAT + 1}, but this Minerva reads up to {checkpointing.FORMAT}" in message
        assert "update Minerva" in message


def rewrite(run: Path, **values: Any) -> None:
    """Change what a run's checkpoints say of themselves."""
    for path in run.glob("*.pt"):
        torch.save({**torch.load(path, weights_only=True), **values}, path)


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def empty(path: Path) -> None:
    path.write_bytes(b"")


def flip_a_bit(path: Path) -> None:
    # Inside the numbers of a weight: the archive around it stays whole.
    content = bytearray(path.read_bytes())
    weight = torch.load(path, weights_only=True)["state"]["agent"]["policy.policy_encoder.2.weight"]
    content[content.index(weight.numpy().tobytes()) + 100] ^= 1
    path.write_bytes(bytes(content))


@pytest.mark.filterwarnings("always::RuntimeWarning")
@pytest.mark.parametrize("damage", [truncate, empty, flip_a_bit])
def test_damaged_checkpoints(
    refuse: Refuse, run: Path, capsys: pytest.CaptureFixture[str], damage: Callable[[Path], None]
) -> None:
    best = (run / "ppo_best.pt").read_bytes()
    damage(run / "ppo_last.pt")
    # Evaluating takes the other one, and says so.
    assert main(["evaluate", "run", "--episodes", "1"]) == 0
    said = capsys.readouterr()
    assert said.err.startswith("minerva: warning: checkpoint: run/ppo_last.pt is damaged")
    assert said.err.endswith("Using ppo_best.pt instead.\n") and said.err.count("\n") == 1
    assert (run / "ppo_best.pt").read_bytes() == best
    # So does resuming. (The console is where it is said.)
    rewrite_best_with_console(run)
    assert main(["train", "--resume", "run", "--total-steps", "256"]) == 0
    said = capsys.readouterr()
    assert "ppo_last.pt is damaged" in said.out and "Using ppo_best.pt instead." in said.out
    assert checkpointing.read(run / "ppo_last.pt")["run"]["env_steps"] == 256
    # With none that is whole, nothing is done.
    for path in run.glob("*.pt"):
        damage(path)
    for command in (["train", "--resume", "run"], ["evaluate", "run"], [*PENDULUM, "--init-from", "run"]):
        message = refuse(*command)
        assert "ppo_last.pt is damaged" in message and "ppo_best.pt is damaged" in message


def rewrite_best_with_console(run: Path) -> None:
    best = torch.load(run / "ppo_best.pt", weights_only=True)
    best["config"]["console"] = True
    torch.save(best, run / "ppo_best.pt")


def test_a_file_that_is_no_checkpoint(refuse: Refuse, tmp_path: Path) -> None:
    (tmp_path / "text.pt").write_text("hello")
    torch.save({"weights": torch.zeros(2)}, tmp_path / "other.pt")
    assert "text.pt is damaged or not a checkpoint of Minerva" in refuse("train", "--resume", "text.pt")
    assert "other.pt was not written by Minerva" in refuse("evaluate", "other.pt")


def test_runs_of_own_environments_are_sent_to_python(refuse: Refuse, run: Path) -> None:
    rewrite(run, env_id="custom:my_module.make_env")
    message = refuse("train", "--resume", "run", "--total-steps", "256")
    assert "custom:my_module.make_env" in message and 'PPOTrainer(your_factory, …).load("run")' in message
    assert 'minerva.load("run").act(observation)' in refuse("evaluate", "run")


# Accidents in the middle of a run


class Accident(gymnasium.Env[NDArray[np.float32], NDArray[np.float32]]):
    """Well behaved, until its hundredth step."""

    observation_space = gymnasium.spaces.Box(-1, 1, (2,), np.float32)
    action_space = gymnasium.spaces.Box(-1, 1, (1,), np.float32)

    def __init__(self, kind: str, at: int = 100) -> None:
        self.kind, self.at, self.taken, self.length = kind, at, 0, 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[NDArray[np.float32], dict[str, Any]]:
        super().reset(seed=seed)
        self.length = 0
        return np.zeros(2, np.float32), {}

    def step(self, action: NDArray[np.float32]) -> tuple[NDArray[np.float32], float, bool, bool, dict[str, Any]]:
        self.taken += 1
        self.length += 1
        obs, reward = np.full(2, 0.1, np.float32), 1.0
        if self.taken == self.at:
            if self.kind == "raises":
                raise RuntimeError("the robot\nfell over")
            if self.kind == "observation":
                obs[1] = np.nan
            if self.kind == "reward":
                reward = float("inf")
        return obs, reward, False, self.length == 10, {}


@pytest.fixture
def accident_id() -> Iterator[str]:
    gymnasium.register("Accident-v0", entry_point=lambda **kwargs: Accident(**kwargs))
    yield "Accident-v0"
    del gymnasium.registry["Accident-v0"]


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("raises", "environment 0 raised RuntimeError in step: the robot fell over"),
        ("observation", "environment 0 returned an observation with nan at position 1"),
        ("reward", "environment 0 returned the reward inf"),
    ],
)
def test_an_environment_that_fails(
    accident_id: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], kind: str, message: str
) -> None:
    folder = tmp_path / "run"
    words = ["--env", accident_id, "--env-kwargs", f"kind={kind}", "--out-dir", str(folder), *SHORT]
    assert main(["train", "ppo", "--total-steps", "640", *words]) == 1
    said = capsys.readouterr()
    assert said.err == f"minerva: {message}\n"
    assert said.out == f"Resume with: minerva train --resume {folder}\n"
    checkpoint = checkpointing.read(folder / "ppo_last.pt")
    progress, state = checkpoint["run"], checkpoint["state"]
    # Ten steps an episode and one that restarts it: the hundredth step is the 109th, and 108 are saved.
    assert progress["env_steps"] == 108 and progress["updates"] == 1
    assert state["collector"]["rollout"]["position"] == 108 - 64
    assert all(torch.isfinite(weight).all() for weight in state["agent"].values())
    # What was saved can be gone on from, once the cause is gone: its replay stops short of the hundredth step.
    assert main(["train", "--resume", str(folder), "--total-steps", "128"]) == 0
    assert checkpointing.read(folder / "ppo_last.pt")["run"]["env_steps"] == 128


def test_a_disk_that_fills_up(run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    whole = {path.name: path.read_bytes() for path in run.glob("*.pt")}

    def full(*args: Any, **kwargs: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(torch, "save", full)
    assert main(["train", "--resume", str(run), "--total-steps", "256"]) == 1
    said = capsys.readouterr()
    assert said.err.startswith("minerva: ") and said.err.count("\n") == 1
    assert "No space left on device" in said.err and "Errno" not in said.err
    assert {path.name: path.read_bytes() for path in run.glob("*.pt")} == whole


# Losses that are not numbers


def full_rollout(trainer: PPOTrainer) -> None:
    trainer.begin()
    while not trainer.collector.rollout.full:
        trainer.collector.step()


@pytest.mark.parametrize("optimizer_type", ["adam", "sgd"])
@pytest.mark.parametrize("value", [float("nan"), float("inf"), 1e30])
def test_losses_that_are_not_numbers_never_reach_the_weights(value: float, optimizer_type: str) -> None:
    trainer = PPOTrainer("Pendulum-v1", rollout_steps=64, minibatch_size=64, optimizer_type=optimizer_type)
    full_rollout(trainer)
    trainer.collector.rollout.rewards[5] = value
    before = {name: value.clone() for name, value in trainer.agent.state_dict().items()}
    with pytest.raises(FloatingPointError, match="the weights were not touched"):
        trainer.update(total_updates=1)
    after = trainer.agent.state_dict()
    assert all(torch.equal(before[name], after[name]) for name in before)
    moments = trainer.optimizer_state()
    assert moments.pop("skipped") > 0 and not any(moment.any() for moment in moments.values())
    trainer.close()


@pytest.mark.filterwarnings("always::RuntimeWarning")
def test_a_run_whose_losses_are_not_numbers_ends_with_its_last_checkpoint(
    run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from minerva.trainers.on_policy import estimate_advantages

    before = (run / "ppo_last.pt").read_bytes()

    def poisoned(*args: Any) -> Any:
        found = estimate_advantages(*args)
        return found._replace(returns=found.returns * float("nan"))

    monkeypatch.setattr("minerva.trainers.ppo.update.estimate_advantages", poisoned)
    assert main(["train", "--resume", str(run), "--total-steps", "256"]) == 1
    said = capsys.readouterr()
    assert "Traceback" not in said.err
    assert said.err.splitlines()[-1].startswith(
        "minerva: every loss of update 3 was infinite or not a number; the weights were not touched."
    )
    assert f"Resume with: minerva train --resume {run}" in said.out
    assert (run / "ppo_last.pt").read_bytes() == before
