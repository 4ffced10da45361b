from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces

from minerva.trainers.mpo.trainer import MPOTrainer
from minerva.trainers.ppo.trainer import PPOTrainer
from minerva.trainers.vmpo.trainer import VMPOTrainer

MLP: dict[str, Any] = {"policy_layer_sizes": (4,), "critic_layer_sizes": (4,)}


@pytest.mark.parametrize(
    ("kind", "fields", "expected"),
    [
        (PPOTrainer, {"minibatch_size": 511, "num_envs": 8, "rollout_steps": 128, **MLP}, 1),
        (PPOTrainer, {"minibatch_size": 512, "num_envs": 8, "rollout_steps": 128, **MLP}, 2),
        (PPOTrainer, {"minibatch_size": 512, "num_envs": 8, "rollout_steps": 128, "torch_threads": 1, **MLP}, 1),
        (VMPOTrainer, {"num_envs": 8, "rollout_steps": 63, "m_steps": 1}, 1),
        (VMPOTrainer, {"num_envs": 8, "rollout_steps": 128, "m_steps": 1}, 2),  # rows for four, cores for two
        (VMPOTrainer, {"num_envs": 8, "rollout_steps": 128, "m_steps": 1, "minibatches": 4}, 1),
        (MPOTrainer, {"batch_size": 25, "action_samples": 20, "update_after": 60, **MLP}, 1),
        (MPOTrainer, {"batch_size": 26, "action_samples": 20, "update_after": 60, **MLP}, 2),
        (MPOTrainer, {"batch_size": 4, "action_samples": 2, "update_after": 60, "torch_threads": 2, **MLP}, 2),
    ],
)
def test_torch_has_threads_for_the_rows_of_a_gradient_step_and_its_own_after(
    kind: Any, fields: dict[str, Any], expected: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("minerva.trainers.trainer.usable_cores", lambda: 2)
    before = torch.get_num_threads()
    during: set[int] = set()
    try:
        torch.set_num_threads(3)
        trainer = kind("Pendulum-v1", 1, "cpu", eval_episodes=0, console=False, **fields)
        total = fields["num_envs"] * fields["rollout_steps"] if "num_envs" in fields else 62
        trainer.train(total, out_dir=tmp_path / "run", callbacks=lambda _: during.add(torch.get_num_threads()))
        trainer.close()
        assert trainer.updates > 0 and during == {expected} and torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(before)


def test_images_have_a_thread_a_core(monkeypatch: pytest.MonkeyPatch) -> None:
    class Picture(gymnasium.Env[Any, Any]):
        observation_space = spaces.Box(0, 255, (84, 84, 1), np.uint8)
        action_space = spaces.Discrete(2)

        def reset(
            self, *, seed: int | None = None, options: dict[str, Any] | None = None
        ) -> tuple[Any, dict[str, Any]]:
            return np.zeros((84, 84, 1), np.uint8), {}

    monkeypatch.setattr("minerva.trainers.on_policy.usable_cores", lambda: 7)
    trainer = PPOTrainer(Picture, 1, "cpu", num_envs=1, rollout_steps=8, minibatch_size=8, console=False)
    trainer.close()
    assert trainer.useful_threads() == 7
