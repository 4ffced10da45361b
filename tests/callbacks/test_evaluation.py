from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from minerva import checkpointing, load
from minerva.callbacks import EvaluationCallback
from minerva.evaluation import Evaluation
from minerva.trainers.ppo.trainer import PPOTrainer
from tests.trainers.ppo.small_run import ROLLOUT, logged, metrics_of, same, small_trainer, state_of

TOTAL = 4 * ROLLOUT
RARE = {"eval_interval": 10_000}


def train(folder: Path, callbacks: Any, total: int = TOTAL, prepare: Any = None, **fields: Any) -> PPOTrainer:
    trainer = small_trainer(**{**RARE, **fields})
    try:
        if prepare is not None:
            prepare(trainer)
        trainer.train(total, folder, callbacks)
    finally:
        trainer.close()
    return trainer


def scripted(returns: dict[int, float]) -> Callable[[PPOTrainer], None]:
    """Replace the evaluations by ones whose mean return depends only on the step."""

    def prepare(trainer: PPOTrainer) -> None:
        def evaluate(should_stop: Any = None) -> Evaluation:
            mean = returns.get(trainer.env_steps, -1000.0)
            return Evaluation(np.array([mean - 1, mean + 1]), np.array([3, 5]))

        trainer.evaluate = evaluate  # type: ignore[method-assign]

    return prepare


def test_what_it_logs_and_saves(tmp_path: Path) -> None:
    bests: list[tuple[int, float]] = []
    callback = EvaluationCallback(
        20, on_best=lambda trainer, evaluation: bests.append((trainer.env_steps, evaluation.returns.mean()))
    )
    train(tmp_path / "run", callback, prepare=scripted({20: -5.0, 40: 7.0, 60: 7.0}))
    assert logged(tmp_path / "run", "evaluation/return_mean") == [(20, -5.0), (40, 7.0), (60, 7.0)]
    assert logged(tmp_path / "run", "evaluation/return_std") == [(20, 1.0), (40, 1.0), (60, 1.0)]
    assert logged(tmp_path / "run", "evaluation/length_mean") == [(20, 4.0), (40, 4.0), (60, 4.0)]
    names = {name for _, name, _ in metrics_of(tmp_path / "run")}
    of_the_run = {name.removeprefix("eval/") for name in names if name.startswith("eval/")}
    assert {name.removeprefix("evaluation/") for name in names if name.startswith("evaluation/")} == of_the_run
    assert bests == [(20, -5.0), (40, 7.0)]  # an equal return is not a new best
    assert callback.best_return == 7.0
    assert callback.last_evaluation is not None and callback.last_evaluation.returns.tolist() == [6.0, 8.0]
    assert load(tmp_path / "run" / "ppo_best_evaluation.pt").env_steps == 40
    assert load(tmp_path / "run", which="best").env_steps == 0  # the run's own evaluations have another best


def test_it_measures_what_the_run_measures(tmp_path: Path) -> None:
    train(tmp_path / "run", EvaluationCallback(ROLLOUT), eval_interval=1, eval_max_steps=20, normalize_obs=False)
    own = dict(logged(tmp_path / "run", "eval/return_mean"))
    # The callback evaluates before the update of that step, the run after it: so it sees the previous policy.
    steps = [k * ROLLOUT for k in range(1, 5)]
    assert logged(tmp_path / "run", "evaluation/return_mean") == [(step, own[step - ROLLOUT]) for step in steps]
    assert len(set(own.values())) == 5


def test_training_is_unchanged(tmp_path: Path) -> None:
    train(tmp_path / "with", EvaluationCallback(1), eval_max_steps=3)
    train(tmp_path / "without", None, eval_max_steps=3)
    assert same(state_of(tmp_path / "with"), state_of(tmp_path / "without"))
    rows = [row for row in metrics_of(tmp_path / "with") if not row[1].startswith("evaluation/")]
    assert rows == metrics_of(tmp_path / "without")
    assert len(logged(tmp_path / "with", "evaluation/return_mean")) == TOTAL


@pytest.mark.parametrize(("stop_at", "stopped"), [(7.0, 40), (7.5, 60), (8.1, None), (-5, 20)])
def test_it_stops_the_run_at_the_target_return(stop_at: float, stopped: int | None, tmp_path: Path) -> None:
    trainer = small_trainer(**RARE)
    scripted({20: -5.0, 40: 7.0, 60: 8.0})(trainer)
    result = trainer.train(TOTAL, tmp_path / "run", EvaluationCallback(20, stop_at=stop_at))
    trainer.close()
    assert (result.stopped_by, result.env_steps) == ((None, TOTAL) if stopped is None else ("callback", stopped))
    assert checkpointing.read(tmp_path / "run" / "ppo_last.pt")["run"]["env_steps"] == result.env_steps
    best = load(tmp_path / "run" / "ppo_best_evaluation.pt").env_steps
    assert best == (60 if stopped is None else stopped)  # saved before it ended


def test_on_best_may_stop_the_run(tmp_path: Path) -> None:
    callback = EvaluationCallback(20, on_best=lambda trainer, evaluation: trainer.env_steps < 40)
    trainer = train(tmp_path / "run", callback, prepare=scripted({20: 1.0, 40: 2.0}))
    assert trainer.env_steps == 40


@pytest.mark.parametrize("stopped_at", [19, 20, 33, 47])
def test_a_resumed_run_equals_an_uninterrupted_one(stopped_at: int, tmp_path: Path) -> None:
    script = scripted({10: 1.0, 20: 5.0, 30: 3.0, 40: 6.0, 50: 2.0, 60: 4.0})
    bests: dict[str, list[int]] = {"whole": [], "run": []}

    def callback(name: str) -> EvaluationCallback:
        return EvaluationCallback(10, on_best=lambda trainer, evaluation: bests[name].append(trainer.env_steps))

    train(tmp_path / "whole", callback("whole"), prepare=script)
    assert bests["whole"] == [10, 20, 40]

    class KilledError(Exception):
        pass

    def kill(trainer: Any) -> None:
        if trainer.env_steps == stopped_at:
            raise KilledError

    with pytest.raises(KilledError):
        train(tmp_path / "run", [callback("run"), kill], prepare=script)
    again = small_trainer(**RARE)
    script(again)
    again.load(tmp_path / "run")
    again.train(TOTAL, callbacks=callback("run"))
    again.close()
    assert bests["run"] == bests["whole"]
    assert metrics_of(tmp_path / "run") == metrics_of(tmp_path / "whole")
    assert same(state_of(tmp_path / "run"), state_of(tmp_path / "whole"))
    of_run, of_whole = (checkpointing.read(tmp_path / name / "ppo_best_evaluation.pt") for name in ("run", "whole"))
    assert same(of_run["state"]["agent"], of_whole["state"]["agent"])


def test_resuming_from_an_earlier_checkpoint_finds_the_best_again(tmp_path: Path) -> None:
    # Killed at 50, resumed from 30: the steps in between are repeated, including the best and the call of `on_best`.
    script = scripted({10: 1.0, 20: 5.0, 30: 3.0, 40: 6.0, 50: 2.0, 60: 4.0})
    bests: list[int] = []
    callback = EvaluationCallback(10, on_best=lambda trainer, evaluation: bests.append(trainer.env_steps))

    def save(trainer: Any) -> bool:
        if trainer.env_steps == 30:
            trainer.save(tmp_path / "run" / "at30.pt")
        return bool(trainer.env_steps < 50)

    train(tmp_path / "run", [callback, save], prepare=script)
    again = small_trainer(**RARE)
    script(again)
    again.load(tmp_path / "run" / "at30.pt")
    again.train(TOTAL, callbacks=callback)
    again.close()
    assert bests == [10, 20, 40, 40]
    assert [step for step, _ in logged(tmp_path / "run", "evaluation/return_mean")] == [10, 20, 30, 40, 50, 60]


def test_several_callbacks_with_different_names(tmp_path: Path) -> None:
    train(tmp_path / "run", [EvaluationCallback(20), EvaluationCallback(30, name="rare-1")])
    assert [step for step, _ in logged(tmp_path / "run", "evaluation/return_mean")] == [20, 40, 60]
    assert [step for step, _ in logged(tmp_path / "run", "rare-1/return_mean")] == [30, 60]
    assert (tmp_path / "run" / "ppo_best_rare-1.pt").exists() and (tmp_path / "run" / "ppo_best_evaluation.pt").exists()


def test_a_nan_return_is_never_the_best(tmp_path: Path) -> None:
    script = scripted({20: float("nan"), 40: 2.0, 60: float("nan")})
    callback = EvaluationCallback(20, stop_at=100.0)
    train(tmp_path / "run", callback, prepare=script)
    assert callback.best_return == 2.0
    again = EvaluationCallback(20)
    trainer = small_trainer(**RARE)
    script(trainer)
    trainer.load(tmp_path / "run")
    trainer.train(TOTAL, callbacks=again)
    trainer.close()
    assert again.best_return == 2.0


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"every": 0}, "every: must be a positive integer, got 0"),
        ({"stop_at": "500"}, "stop_at: must be a number, got '500'"),
        ({"on_best": "print"}, "on_best: must be a function, got 'print'"),
        ({"name": "eval"}, "the groups charts, eval, losses, time, train are reserved, got 'eval/return_mean'"),
        ({"name": "a b"}, "name: must consist of letters, digits"),
        ({"name": "a/b"}, "name: must be one word without '/', got 'a/b'"),
        ({"name": ""}, "name: must consist of letters, digits"),
    ],
)
def test_bad_arguments(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        EvaluationCallback(**{"every": 10, **fields})


def test_a_run_without_evaluation_episodes_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="eval_episodes: must be at least 1 for an EvaluationCallback, got 0"):
        train(tmp_path / "run", EvaluationCallback(10), eval_episodes=0)
