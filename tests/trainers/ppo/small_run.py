"""Runs of a second: Pendulum-v1, tiny networks, short rollouts."""

from __future__ import annotations

import csv
import signal
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pytest
import torch

from minerva import checkpointing
from minerva.callbacks import Callback
from minerva.evaluation import Evaluation
from minerva.trainers.ppo.trainer import PPOTrainer
from minerva.trainers.run import CLOCK_FIELDS
from minerva.trainers.trainer import Trainer

ROLLOUT = 16
TOTAL = ROLLOUT * 6

SomeTrainer = TypeVar("SomeTrainer", bound=Trainer)


def small_trainer(env_id: Any = "Pendulum-v1", seed: int = 1, **fields: Any) -> PPOTrainer:
    defaults: dict[str, Any] = {
        "policy_layer_sizes": (8,),
        "critic_layer_sizes": (8,),
        "rollout_steps": ROLLOUT,
        "minibatch_size": 8,
        "update_epochs": 2,
        "eval_episodes": 1,
        "eval_max_steps": 5,
        "console": False,
        "compile": False,
    }
    return PPOTrainer(env_id, seed, "cpu", **{**defaults, **fields})


def trained(trainer: SomeTrainer, total_steps: int, folder: Path, callbacks: Any = None) -> SomeTrainer:
    """Train in a new folder, and close the trainer whatever happens."""
    try:
        trainer.train(total_steps, out_dir=folder, callbacks=callbacks)
    finally:
        trainer.close()
    return trainer


def train(folder: Path, total_steps: int = TOTAL, callbacks: Any = None, **fields: Any) -> PPOTrainer:
    return trained(small_trainer(**fields), total_steps, folder, callbacks)


def resume(folder: Path, total_steps: int = TOTAL, callbacks: Any = None, **fields: Any) -> PPOTrainer:
    trainer = small_trainer(**fields)
    try:
        trainer.load(folder)
        trainer.train(total_steps, callbacks=callbacks)
    finally:
        trainer.close()
    return trainer


# What ends a run


def stop_at(step: int) -> Callable[[Any], bool]:
    return lambda trainer: trainer.env_steps < step


def interrupt_at(step: int) -> Callable[[Any], None]:
    def look(trainer: Any) -> None:
        if trainer.env_steps == step:
            signal.raise_signal(signal.SIGTERM)

    return look


class Troublesome(Callback):
    def __init__(self, where: str, step: int) -> None:
        self.where, self.step = where, step
        self.ended = False

    def on_step(self, trainer: Any) -> None:
        self.fail("on_step", trainer)

    def on_rollout_start(self, trainer: Any) -> None:
        self.fail("on_rollout_start", trainer)

    def on_rollout_end(self, trainer: Any) -> None:
        self.fail("on_rollout_end", trainer)

    def on_training_end(self, trainer: Any) -> None:
        self.ended = True

    def fail(self, where: str, trainer: Any) -> None:
        if where == self.where and trainer.env_steps >= self.step:
            raise ZeroDivisionError(where)


# What it leaves


def metrics_of(folder: Path) -> list[tuple[int, str, float]]:
    """All rows of a run's log but the clock's."""
    with (folder / "metrics.csv").open(newline="") as file:
        rows = [(int(row["step"]), row["name"], float(row["value"])) for row in csv.DictReader(file)]
    return [row for row in rows if not row[1].startswith(("time/", "charts/SPS"))]


def logged(folder: Path, name: str) -> list[tuple[int, float]]:
    return [(step, value) for step, metric, value in metrics_of(folder) if metric == name]


def evaluated_steps(folder: Path) -> list[int]:
    return [step for step, _ in logged(folder, "eval/return_mean")]


def clocked(folder: Path, name: str = "charts/SPS") -> list[tuple[int, float]]:
    """A metric that the clock decides, such as the steps per second, as a run logged it."""
    with (folder / "metrics.csv").open(newline="") as file:
        return [(int(row["step"]), float(row["value"])) for row in csv.DictReader(file) if row["name"] == name]


def state_of(folder: Path, which: str = "last") -> dict[str, Any]:
    """The states of a trainer and its run, without what the clock decides."""
    (path,) = folder.glob(f"*_{which}.pt")
    checkpoint = checkpointing.read(path)
    run = {name: value for name, value in checkpoint["run"].items() if name not in CLOCK_FIELDS}
    return {**run, **checkpoint["state"]}


def learned(folder: Path) -> dict[str, Any]:
    """The state of a run that had an evaluation of its own, less what that may have raised."""
    state = state_of(folder)
    del state["best_return"]
    return state


def same(a: Any, b: Any) -> bool:
    """Bit for bit, through dictionaries and lists."""
    if isinstance(a, torch.Tensor):
        return isinstance(b, torch.Tensor) and a.dtype == b.dtype and torch.equal(a, b)
    if isinstance(a, dict):
        return isinstance(b, dict) and a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    if isinstance(a, list):
        return isinstance(b, list) and len(a) == len(b) and all(same(x, y) for x, y in zip(a, b, strict=True))
    return bool(a == b)


def same_run(one: Path, other: Path) -> bool:
    return same(state_of(one), state_of(other)) and repr(metrics_of(one)) == repr(metrics_of(other))


def assert_resumes_exactly(make: Callable[[], Any], stops: list[int], total_steps: int, folder: Path) -> Any:
    """Compare a run in one go with one that is interrupted at each of `stops`; return the last of its trainers."""
    trained(make(), total_steps, folder / "whole")
    for i, stop in enumerate([*stops, total_steps]):
        trainer = make()
        if i:
            trainer.load(folder / "run")
        with pytest.raises(SystemExit) if stop < total_steps else nullcontext():
            trainer.train(total_steps, folder / "run", interrupt_at(stop) if stop < total_steps else None)
        trainer.close()
    assert same_run(folder / "whole", folder / "run")
    return trainer


def snapshot(folder: Path) -> dict[str, bytes]:
    """Every file of a folder."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def scripted_evaluation(returns: list[float]) -> Callable[..., Evaluation]:
    """Evaluations whose mean returns are known beforehand."""
    left = iter(returns)
    return lambda should_stop: Evaluation(np.array([next(left)]), np.array([1]))


class FakeClock:
    """Each environment step takes ten seconds, and nothing else takes any time but what a test adds."""

    def __init__(self, trainer: PPOTrainer, seconds: float = 10.0) -> None:
        self.trainer, self.seconds, self.waited = trainer, seconds, 0.0

    def perf_counter(self) -> float:
        return 1000.0 + self.seconds * self.trainer.env_steps + self.waited
