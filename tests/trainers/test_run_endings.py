from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium
import pytest
from torch import Tensor

from minerva.trainers.ppo import update as update_module
from minerva.trainers.ppo.update import MinibatchLosses, minibatch_losses
from tests.trainers.ppo.small_run import (
    ROLLOUT,
    TOTAL,
    Troublesome,
    learned,
    logged,
    metrics_of,
    resume,
    same,
    same_run,
    small_trainer,
    state_of,
    stop_at,
    train,
)


@pytest.mark.parametrize("step", [1, ROLLOUT * 2 + 5, ROLLOUT * 3])
def test_a_callback_ends_the_run_in_mid_rollout_and_it_goes_on_exactly(step: int, whole: Path, tmp_path: Path) -> None:
    trainer = small_trainer()
    result = trainer.train(TOTAL, tmp_path / "run", stop_at(step))
    trainer.close()
    assert (result.stopped_by, result.env_steps) == ("callback", step)
    assert state_of(tmp_path / "run")["env_steps"] == step
    resume(tmp_path / "run")
    assert same(learned(tmp_path / "run"), learned(whole))
    rows = metrics_of(tmp_path / "run")
    assert {row for row in rows if row[0] == step and row[1].startswith("eval/")}  # once at the end, wherever that is
    assert set(metrics_of(whole)) <= set(rows)


@pytest.mark.parametrize(
    ("where", "step", "stopped"),
    [("on_step", 21, 21), ("on_rollout_end", 20, 2 * ROLLOUT), ("on_rollout_start", 20, 2 * ROLLOUT)],
)
def test_an_exception_in_a_callback_saves_the_run(
    where: str, step: int, stopped: int, whole: Path, tmp_path: Path
) -> None:
    callback = Troublesome(where, step)
    with pytest.raises(ZeroDivisionError, match=where):
        train(tmp_path / "run", callbacks=callback)
    assert callback.ended
    assert state_of(tmp_path / "run")["env_steps"] == stopped
    resume(tmp_path / "run")
    assert same_run(whole, tmp_path / "run")


@pytest.mark.parametrize("minibatch", [0, 1, 3])
def test_an_exception_in_the_middle_of_an_update_leaves_the_last_checkpoint(
    minibatch: int, monkeypatch: pytest.MonkeyPatch, whole: Path, tmp_path: Path
) -> None:
    calls = 0

    def fail(*args: Any, **named: Any) -> tuple[Tensor, MinibatchLosses]:
        nonlocal calls
        calls += 1
        if calls == 3 * 4 + minibatch + 1:  # in the fourth update
            raise MemoryError
        return minibatch_losses(*args, **named)

    with monkeypatch.context() as patch:
        patch.setattr(update_module, "minibatch_losses", fail)
        with pytest.raises(MemoryError):
            train(tmp_path / "run", checkpoint_interval=10)
    assert state_of(tmp_path / "run")["env_steps"] == 60  # of 64
    resume(tmp_path / "run")
    assert same_run(whole, tmp_path / "run")


def test_an_environment_that_fails_is_told_and_the_run_is_saved(tmp_path: Path) -> None:

    def fragile() -> Any:
        env = gymnasium.make("Pendulum-v1").unwrapped
        plain, count = env.step, 0

        def step(action: Any) -> Any:
            nonlocal count
            count += 1
            if count == 20:
                raise OSError("the robot fell over")
            return plain(action)

        env.step = step  # type: ignore[method-assign]
        return env

    with pytest.raises(RuntimeError, match=r"environment 0 raised OSError in step: the robot fell over"):
        train(tmp_path / "run", env_id=fragile, eval_episodes=0)
    state = state_of(tmp_path / "run")
    assert (state["env_steps"], state["updates"], state["collector"]["rollout"]["position"]) == (19, 1, 3)


def test_result_of_training(tmp_path: Path) -> None:
    trainer = small_trainer()
    result = trainer.train(TOTAL, tmp_path / "run")
    assert (result.out_dir, result.env_steps, result.updates, result.stopped_by) == (tmp_path / "run", TOTAL, 6, None)
    assert result.first_evaluation is not None and result.last_evaluation is not None
    evaluations = logged(tmp_path / "run", "eval/return_mean")
    assert evaluations[0][1] == result.first_evaluation.returns.mean()
    assert evaluations[-1][1] == result.last_evaluation.returns.mean()
    trainer.close()
