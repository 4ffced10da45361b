from __future__ import annotations

from pathlib import Path

import pytest

from tests.trainers.ppo.small_run import logged, metrics_of, same, same_run, state_of, train


def test_the_same_seed_gives_the_same_run(whole: Path, tmp_path: Path) -> None:
    train(tmp_path / "run")
    assert same_run(whole, tmp_path / "run")
    assert same(state_of(whole, "best"), state_of(tmp_path / "run", "best"))
    train(tmp_path / "other", seed=2)
    assert not same(state_of(whole)["agent"], state_of(tmp_path / "other")["agent"])


@pytest.mark.parametrize("env_id", ["Pendulum-v1", "HalfCheetah-v5"])
def test_evaluation_does_not_touch_the_run(env_id: str, tmp_path: Path) -> None:
    train(tmp_path / "on", env_id=env_id, eval_interval=1, eval_episodes=2)
    train(tmp_path / "off", env_id=env_id, eval_episodes=0)
    on, off = state_of(tmp_path / "on"), state_of(tmp_path / "off")
    for part in ("agent", "optimizer", "action_noise", "minibatch_order", "collector", "env_steps", "updates"):
        assert same(on[part], off[part]), part
    kept = [row for row in metrics_of(tmp_path / "on") if not row[1].startswith("eval/")]
    assert kept == metrics_of(tmp_path / "off")
    assert len(logged(tmp_path / "on", "eval/return_mean")) == 7  # before the first update and after each of six
    assert not (tmp_path / "off" / "ppo_best.pt").exists()


def test_callbacks_and_checkpoints_do_not_touch_the_run(whole: Path, tmp_path: Path) -> None:
    train(tmp_path / "run", callbacks=lambda trainer: None, checkpoint_interval=1)
    assert same_run(whole, tmp_path / "run")
