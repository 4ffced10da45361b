from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from minerva.callbacks import Callback, EveryNSteps
from tests.trainers.ppo.small_run import ROLLOUT, small_trainer


def steps_of(num_envs: int, count: int, start: int = 0) -> list[SimpleNamespace]:
    step = SimpleNamespace(rewards=[0.0] * num_envs)
    return [SimpleNamespace(env_steps=start + num_envs * (k + 1), last_step=step) for k in range(count)]


@pytest.mark.parametrize(
    ("n", "num_envs", "called"),
    [
        (1, 1, [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12]),
        (4, 1, [4, 8, 12]),
        (5, 3, [6, 12, 15, 21, 27, 30, 36]),  # the first step at or past 5, 10, 15, 20, 25, 30, 35
        (2, 5, [5, 10, 15, 20, 25, 30, 35, 40, 45, 50, 55, 60]),  # at most once per step
        (100, 2, []),
    ],
)
def test_when_it_is_called(n: int, num_envs: int, called: list[int]) -> None:
    seen: list[int] = []
    callback = EveryNSteps(n, lambda trainer: seen.append(trainer.env_steps))
    assert all(callback.on_step(trainer) is True for trainer in steps_of(num_envs, 12))
    assert seen == called


def test_a_resumed_run_calls_it_at_the_same_steps() -> None:
    for start in range(0, 30, 3):
        seen: list[int] = []
        callback = EveryNSteps(5, lambda trainer, seen=seen: seen.append(trainer.env_steps))  # type: ignore[misc]
        for trainer in steps_of(3, (36 - start) // 3, start):
            callback.on_step(trainer)
        assert seen == [step for step in (6, 12, 15, 21, 27, 30, 36) if step > start]


def test_its_result_counts_where_it_is_called() -> None:
    callback = EveryNSteps(4, lambda trainer: trainer.env_steps < 8)
    assert [callback.on_step(trainer) for trainer in steps_of(1, 8)] == [True] * 7 + [False]


def test_callbacks_in_place_of_a_function() -> None:
    class Noting(Callback):
        notes: list[Any]

        def on_training_start(self, trainer: Any) -> None:
            self.notes = ["start"]

        def on_step(self, trainer: Any) -> None:
            self.notes.append(trainer.env_steps)

    noting = Noting()
    callback = EveryNSteps(2, [noting])
    callback.on_training_start(None)
    for trainer in steps_of(1, 5):
        callback.on_step(trainer)
    assert noting.notes == ["start", 2, 4]


@pytest.mark.parametrize("wrong", [0, -1, 2.5, "10", None, True])
def test_bad_n(wrong: Any) -> None:
    with pytest.raises(ValueError, match=f"n: must be a positive integer, got {wrong!r}"):
        EveryNSteps(wrong, print)


def test_in_a_run(tmp_path: Path) -> None:
    seen: list[int] = []
    trainer = small_trainer(num_envs=2, eval_episodes=0)
    trainer.train(4 * ROLLOUT, tmp_path / "run", EveryNSteps(15, lambda trainer: seen.append(trainer.env_steps)))
    trainer.close()
    assert seen == [16, 30, 46, 60]


def test_the_package_imports_nothing_heavy() -> None:
    code = (
        "import sys, minerva.callbacks\n"
        "heavy = {'torch', 'numpy', 'gymnasium', 'rich', 'wandb', 'tensorboard'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    subprocess.run([sys.executable, "-W", "error", "-c", code], check=True)
