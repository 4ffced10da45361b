"""Runs whose environment fails once: they are saved, and resume exactly."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from typing import Any

import cloudpickle
import gymnasium
import numpy as np
import pytest

from minerva import api
from minerva.cli import main
from minerva.environments import EnvironmentFailureError, GymnasiumBatch
from minerva.trainers.trainer import Trainer
from tests.environments.tiny_envs import Noisy
from tests.trainers.ppo.small_run import same_run

# Worker processes cannot import the tests: these classes are pickled by value.
cloudpickle.register_pickle_by_value(sys.modules[__name__])

FIELDS: dict[str, dict[str, Any]] = {
    "ppo": {"rollout_steps": 16, "minibatch_size": 16, "update_epochs": 2, "critic_layer_sizes": (8,)},
    "ppo, recurrent": {"rollout_steps": 16, "minibatch_size": 16, "lstm_units": 4, "critic_layer_sizes": (8,)},
    "vmpo": {"rollout_steps": 16, "value_layer_sizes": (8,)},
    "mpo": {"replay_size": 100, "update_after": 10, "batch_size": 8, "action_samples": 2, "log_interval": 1},
    "mpo, overlap": {"replay_size": 100, "update_after": 10, "batch_size": 8, "action_samples": 2, "overlap": True},
}


class FailsOnce(Noisy):
    """Fail at the first call of one kind, from a number of calls on, as long as a mark is missing."""

    def __init__(self, mark: Path, where: str, calls: int) -> None:
        super().__init__(length=6)
        self.mark, self.where, self.calls = mark, where, calls

    def reset(self, **arguments: Any) -> Any:
        self.fail("reset")
        return super().reset(**arguments)

    def step(self, action: Any) -> Any:
        self.fail("step")
        return super().step(action)

    def fail(self, where: str) -> None:
        self.calls -= 1
        if self.calls < 0 and where == self.where and not self.mark.exists():
            self.mark.touch()
            raise RuntimeError("the simulator lost its license")


def make_trainer(kind: str, mark: Path, where: str) -> Trainer:
    algo = kind.split(",")[0]
    # Few evaluations, whose environments are not to be the first that fail.
    fields = {"num_envs": 2, "policy_layer_sizes": (8,), "eval_episodes": 1, "eval_interval": 64, "console": False,
              "compile": False}  # fmt: skip
    config = api.config_class(algo).from_fields(None, {**fields, **FIELDS[kind]})
    return api.make_trainer(algo, partial(FailsOnce, mark, where, 37), 1, "cpu", config)


@pytest.mark.parametrize("where", ["step", "reset"])
@pytest.mark.parametrize("kind", FIELDS)
def test_a_run_whose_environment_failed_resumes_exactly(kind: str, where: str, tmp_path: Path) -> None:
    mark, total = tmp_path / "failed", 128
    failing = make_trainer(kind, mark, where)
    with pytest.raises(EnvironmentFailureError, match=f"raised RuntimeError in {where}: the simulator lost"):
        failing.train(total, out_dir=tmp_path / "run")
    assert 64 < failing.env_steps < total
    if kind.startswith("mpo"):
        assert failing.collector._chosen is not None  # type: ignore[attr-defined]  # for the next attempt
    failing.close()
    resumed, whole = make_trainer(kind, mark, where), make_trainer(kind, mark, where)
    resumed.load(tmp_path / "run")
    resumed.train(total)
    whole.train(total, out_dir=tmp_path / "whole")
    for trainer in (resumed, whole):
        trainer.close()
    assert same_run(tmp_path / "whole", tmp_path / "run")


class OddError(Exception):
    """An exception without a message."""

    def __str__(self) -> str:
        raise ValueError("no message")


class Leaves(Noisy):
    """Leave the program, or raise something odd, in the 20th step."""

    def __init__(self, how: str) -> None:
        super().__init__(length=6)
        self.how, self.calls = how, 0

    def step(self, action: Any) -> Any:
        self.calls += 1
        if self.calls == 20 and self.how == "exit":
            sys.exit(0)
        if self.calls == 20:
            raise OddError
        return super().step(action)


HOW = {"exit": "raised SystemExit in step: 0", "odd": "raised OddError in step: its message cannot be shown"}


@pytest.mark.parametrize("vectorization", ["sync", "subprocess"])
@pytest.mark.parametrize("how", HOW)
def test_an_environment_that_leaves_the_program_ends_the_run_saved(
    how: str, vectorization: str, tmp_path: Path
) -> None:
    fields = {"policy_layer_sizes": (8,), "eval_episodes": 0, "console": False, "compile": False, "num_envs": 2}
    config = api.config_class("ppo").from_fields(None, {**fields, **FIELDS["ppo"], "vectorization": vectorization})
    trainer = api.make_trainer("ppo", partial(Leaves, how), 1, "cpu", config)
    with pytest.raises(EnvironmentFailureError, match=f"^environment 0 {HOW[how]}$"):
        trainer.train(64, out_dir=tmp_path)
    trainer.close()
    again = api.make_trainer("ppo", partial(Leaves, how), 1, "cpu", config)
    again.load(tmp_path)
    assert again.env_steps > 0
    again.close()


@pytest.mark.parametrize("how", HOW)
def test_the_command_line_does_not_report_success_for_it(
    how: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    gymnasium.register(f"Leaves{how}-v0", entry_point=partial(Leaves, how), max_episode_steps=50)
    try:
        code = main(
            f"train ppo --env Leaves{how}-v0 --preset none --total-steps 64 --rollout-steps 16 --minibatch-size 16 "
            f"--device cpu --eval-episodes 0 --no-console --compile False --out-dir {tmp_path / 'run'}".split()
        )
    finally:
        del gymnasium.registry[f"Leaves{how}-v0"]
    assert code == 1
    assert f"minerva: environment 0 {HOW[how]}" in capsys.readouterr().err


def test_an_environment_that_cannot_be_closed_is_a_warning() -> None:
    class Clings(Noisy):
        def close(self) -> None:
            sys.exit(0)

    batch = GymnasiumBatch([Clings, Clings], 1)
    with pytest.warns(RuntimeWarning, match="environment 1 raised SystemExit in close: 0"):
        batch.close()


def leave() -> Any:
    raise SystemExit(3)


@pytest.mark.parametrize("vectorization", ["sync", "subprocess"])
def test_an_environment_that_leaves_the_program_when_it_is_made(vectorization: Any) -> None:
    with pytest.raises(EnvironmentFailureError, match=r"^environment 0 could not be made .*: SystemExit: 3"):
        GymnasiumBatch([leave], 1, vectorization)


def test_ctrl_c_in_an_environment_stays_what_it_is() -> None:
    class Interrupted(Noisy):
        def step(self, action: Any) -> Any:
            raise KeyboardInterrupt

    batch = GymnasiumBatch([Interrupted], 1)
    batch.reset()
    with pytest.raises(KeyboardInterrupt):
        batch.step(np.zeros((1, 1), np.float32))
    batch.close()
