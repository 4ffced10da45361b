"""Runs that two processes train together, on Pendulum and CartPole; as a program, this is one of the two."""

from __future__ import annotations

import json
import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import torch

from minerva.trainers.mpo.trainer import MPOTrainer
from minerva.trainers.on_policy import OnPolicyTrainer
from minerva.trainers.ppo.trainer import PPOTrainer
from minerva.trainers.vmpo.trainer import VMPOTrainer
from tests.trainers.pairs import connect

TOTAL, ENVS, STEPS = 1024, 4, 64
SETTINGS: dict[str, Any] = {
    "num_envs": ENVS, "rollout_steps": STEPS, "minibatch_size": 64, "update_epochs": 2,
    "eval_episodes": 1, "eval_interval": 512, "checkpoint_interval": 100, "console": False,
}  # fmt: skip
MEMORY: dict[str, Any] = {
    "num_envs": 4, "rollout_steps": 16, "lstm_units": 4, "policy_layer_sizes": (8,), "value_layer_sizes": (8,),
    "eval_episodes": 0, "console": False,
}  # fmt: skip
Sayings = dict[str, str]
"""What was raised, by the name of the attempt."""


class Troubled(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Pendulum, of which one environment does something at its hundredth step, if `trouble` says so."""

    made = 0
    trouble: Callable[[], None] | None = None

    def __init__(self) -> None:
        super().__init__(gymnasium.make("Pendulum-v1"))
        self._last = Troubled.made % 2 == 1  # of the two that a process has
        Troubled.made += 1
        self._steps = 0

    def step(self, action: Any) -> Any:
        self._steps += 1
        if self._steps == 100 and self._last and Troubled.trouble is not None:
            Troubled.trouble()
        return self.env.step(action)


def terminate() -> None:
    Troubled.trouble = None  # once
    os.kill(os.getpid(), signal.SIGTERM)


def fail() -> None:
    Troubled.trouble = None
    raise RuntimeError("the motor is broken")


def pendulum(device: str = "cpu", **fields: Any) -> PPOTrainer:
    return PPOTrainer("Pendulum-v1", 4, device, **{**SETTINGS, **fields})


def troubled() -> PPOTrainer:
    Troubled.made = 0
    return PPOTrainer(Troubled, 4, "cpu", **SETTINGS)


def cart_pole(device: str = "cpu") -> VMPOTrainer:
    return VMPOTrainer("CartPole-v1", 4, device, **MEMORY)


def fails_at_300(trainer: OnPolicyTrainer) -> None:
    if trainer.env_steps > 300:
        raise ZeroDivisionError("the callback is broken")


class Program:
    """What one of the processes does, one run after the other."""

    def __init__(self, rank: int, folder: Path) -> None:
        self.rank, self.folder = rank, folder
        self.said: Sayings = {}
        self.weights: dict[str, dict[str, torch.Tensor]] = {}

    def train(self, name: str, trainer: OnPolicyTrainer, total: int = TOTAL, callbacks: Any = None) -> None:
        """Train in the folder of that name, from where it stands, and note what came of it."""
        folder = self.folder / name
        try:
            if any(folder.glob("*_last.pt")):
                trainer.load(folder)
            result = trainer.train(total, folder, callbacks)
            self.said[name] = f"{result.stopped_by} at {result.env_steps}, {result.last_evaluation is not None}"
            assert result.out_dir == folder
        except (Exception, SystemExit) as error:
            self.said[name] = f"{type(error).__name__}: {error}"
        finally:
            trainer.close()
        self.weights[name] = {key: value.clone() for key, value in trainer.agent.state_dict().items()}

    def attempt(self, name: str, make: Callable[[], Any]) -> None:
        try:
            make()
        except ValueError as error:
            self.said[name] = str(error)

    def run(self) -> None:
        self.train("whole", pendulum())
        self.train("watched", pendulum(), callbacks=self.watch)
        self.said["stopped"] = self.said["watched"]
        self.train("watched", pendulum())
        self.train("aside", pendulum())
        Troubled.trouble = terminate if self.rank == 1 else None
        self.train("terminated", troubled())
        self.said["signal"] = self.said["terminated"]
        self.train("terminated", troubled())
        Troubled.trouble = fail if self.rank == 1 else None
        self.train("failed", troubled())
        self.said["failure of rank 1"] = self.said["failed"]
        Troubled.trouble = fail if self.rank == 0 else None
        self.train("failed", troubled())
        self.said["failure of rank 0"] = self.said["failed"]
        self.train("failed", troubled())
        self.train("recurrent", cart_pole(), 512)
        self.train("recurrent parts", cart_pole(), 512, fails_at_300)
        self.said["failure of a callback"] = self.said["recurrent parts"]
        self.train("recurrent parts", cart_pole(), 512)
        trainer = pendulum()
        self.attempt("taken", lambda: trainer.train(TOTAL, self.folder / "whole"))
        trainer.close()
        self.attempt("num_envs", lambda: pendulum(num_envs=5))
        self.attempt("minibatch_size", lambda: pendulum(minibatch_size=63))
        self.attempt(
            "minibatches", lambda: VMPOTrainer("CartPole-v1", 4, "cpu", num_envs=2, rollout_steps=9, minibatches=2)
        )
        self.attempt("mpo", lambda: MPOTrainer("Pendulum-v1", 4, "cpu", console=False))
        self.attempt("BatchNorm", lambda: PPOTrainer("Pendulum-v1", 4, "cpu", make_encoder=normalized, **SETTINGS))

    def run_on(self, device: str) -> None:
        """Train on a device, in one go and in parts."""
        trainer = pendulum(device)
        self.said["ranks"] = f"{trainer.ranks.description} on {trainer.device}"
        self.train("whole", trainer)
        self.train("parts", pendulum(device), callbacks=lambda trainer: trainer.env_steps < 300)
        self.train("parts", pendulum(device))
        self.train("recurrent", cart_pole(device), 512)

    def watch(self, trainer: PPOTrainer) -> bool:
        """See every step of every environment, write a checkpoint in between, and stop in the middle of a rollout."""
        step = trainer.last_step
        assert step is not None and len(step.observations) == len(step.restarting) == ENVS
        if trainer.env_steps == 300:
            (self.folder / "aside").mkdir()
            trainer.save(self.folder / "aside" / "ppo_last.pt")
            shutil.copy(self.folder / "watched" / "metrics.csv", self.folder / "aside" / "metrics.csv")
        return trainer.env_steps < 700


def normalized() -> torch.nn.Module:
    return torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4))


if __name__ == "__main__":
    rank, folder, words = connect()
    program = Program(rank, folder)
    if words:
        program.run_on(words[0])
    else:
        program.run()
    (folder / f"said-{rank}.json").write_text(json.dumps(program.said))
    torch.save(program.weights, folder / f"weights-{rank}.pt")
