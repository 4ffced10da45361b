from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest

from minerva.callbacks import StopOnReturn
from tests.trainers.ppo.small_run import ROLLOUT, metrics_of, same, small_trainer, state_of

TOTAL = 6 * ROLLOUT


class Rising(gymnasium.Env[Any, Any]):
    """Episodes of four steps whose returns are 4, 8, 12, …: the reward is the number of resets."""

    observation_space = gymnasium.spaces.Box(-1.0, 1.0, (2,), np.float32)
    action_space = gymnasium.spaces.Box(-1.0, 1.0, (1,), np.float32)

    def __init__(self) -> None:
        self.episode = 0
        self.steps = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        self.episode += 1
        self.steps = 0
        return np.zeros(2, dtype=np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.steps += 1
        return np.zeros(2, dtype=np.float32), float(self.episode), self.steps == 4, False, {}


def stopped_at(folder: Path, callback: Any, **fields: Any) -> tuple[str | None, int]:
    trainer = small_trainer(Rising, eval_episodes=0, **fields)
    result = trainer.train(TOTAL, folder, callback)
    trainer.close()
    return result.stopped_by, result.env_steps


# An episode is four steps and one to restart: the k-th ends at step 5 k - 1 and returns 4 k.
@pytest.mark.parametrize(
    ("stop_at", "episodes", "stopped"),
    [
        (12, 1, 14),
        (12.5, 1, 19),
        (12, 3, 19),  # (8 + 12 + 16) / 3
        (0, 3, 14),  # the first episode reaches the target, but three are needed
        (1000, 1, None),
    ],
)
def test_where_it_stops(stop_at: float, episodes: int, stopped: int | None, tmp_path: Path) -> None:
    expected = ("callback", stopped) if stopped is not None else (None, TOTAL)
    assert stopped_at(tmp_path / "run", StopOnReturn(stop_at, episodes)) == expected


def test_with_several_environments(tmp_path: Path) -> None:
    # Both end at env steps 8, 18, 28: returns 4 4, 8 8, 12 12.
    assert stopped_at(tmp_path / "run", StopOnReturn(10, 4), num_envs=2) == ("callback", 28)


@pytest.mark.parametrize("stopped_at", [10, 14, 21])
def test_a_resumed_run_counts_earlier_episodes(stopped_at: int, tmp_path: Path) -> None:
    # Pendulum, because a resumed run restores its environments; its episodes have ten steps here.
    def short() -> Any:
        return gymnasium.wrappers.TimeLimit(gymnasium.make("Pendulum-v1").unwrapped, 10)

    def run(name: str, callbacks: Any) -> Any:
        trainer = small_trainer(short, eval_episodes=0)
        try:
            return trainer.train(TOTAL, tmp_path / name, callbacks)
        finally:
            trainer.close()

    run("free", None)
    returns = [value for _, name, value in metrics_of(tmp_path / "free") if name == "train/episode_return"]
    steps = [step for step, name, _ in metrics_of(tmp_path / "free") if name == "train/episode_return"]
    means = [(returns[k - 2] + returns[k - 1] + returns[k]) / 3 for k in range(2, len(returns))]
    wanted = max(means[:2])  # first reached by the third or fourth episode
    at = steps[2:][next(k for k, mean in enumerate(means) if mean >= wanted)]
    assert stopped_at < at

    class KilledError(Exception):
        pass

    def kill(trainer: Any) -> None:
        if trainer.env_steps == stopped_at:
            raise KilledError

    with pytest.raises(KilledError):
        run("run", [StopOnReturn(wanted, 3), kill])
    trainer = small_trainer(short, eval_episodes=0)
    trainer.load(tmp_path / "run")
    result = trainer.train(TOTAL, callbacks=StopOnReturn(wanted, 3))
    trainer.close()
    assert (result.stopped_by, result.env_steps) == ("callback", at)
    assert run("whole", StopOnReturn(wanted, 3)).env_steps == at
    assert same(state_of(tmp_path / "run"), state_of(tmp_path / "whole"))


def test_one_object_for_two_runs_starts_again(tmp_path: Path) -> None:
    callback = StopOnReturn(10, 3)
    assert stopped_at(tmp_path / "one", callback) == stopped_at(tmp_path / "two", callback) == ("callback", 19)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("high",), "stop_at: must be a number, got 'high'"),
        ((True,), "stop_at: must be a number, got True"),
        ((1.0, 0), "episodes: must be a positive integer, got 0"),
    ],
)
def test_bad_arguments(arguments: tuple[Any, ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        StopOnReturn(*arguments)
