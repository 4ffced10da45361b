"""Runs whose environment fails once: they are saved, and resume exactly."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest

from minerva import api
from minerva.environments import EnvironmentFailureError
from minerva.trainers.trainer import Trainer
from tests.environments.tiny_envs import Noisy
from tests.trainers.ppo.small_run import same_run

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
