"""A long run takes no more memory than a short one."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path
from typing import Any

import pytest

import minerva

STATUS = Path("/proc/self/statm")


def resident_megabytes() -> float:
    # What the C library keeps for reuse (`keep_freed_memory`) is no leak: let it be given back first.
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
    return int(STATUS.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20


@pytest.mark.filterwarnings("ignore:Health")  # of settings that are not meant to learn
@pytest.mark.skipif(not STATUS.exists(), reason="this system does not tell what memory is in use")
@pytest.mark.parametrize(
    ("algo", "env", "fields"),
    [
        ("ppo", "CartPole-v1", {"num_envs": 8, "rollout_steps": 32, "minibatch_size": 256, "update_epochs": 1}),
        ("ppo", "CartPole-v1", {"num_envs": 8, "rollout_steps": 64, "update_epochs": 1, "backend": "envpool"}),
        ("vmpo", "CartPole-v1", {"num_envs": 8, "rollout_steps": 64, "policy_layer_sizes": (8,)}),
        ("mpo", "Pendulum-v1", {"num_envs": 8, "replay_size": 800, "batch_size": 8, "updates_per_step": 0.004}),
    ],
)
def test_memory_is_flat(algo: Any, env: str, fields: dict[str, Any], tmp_path: Path) -> None:
    seen: list[tuple[int, float]] = []

    def watch(trainer: Any) -> bool:
        if trainer.env_steps >= 2_000 * (len(seen) + 1):
            seen.append((trainer.env_steps, resident_megabytes()))
        return True

    minerva.train(
        algo, env, seed=1, device="cpu", total_steps=40_000, out_dir=tmp_path / "run", callbacks=watch, preset="none",
        compile=False, eval_interval=20_000, eval_episodes=2, console=False, **fields,
    )  # fmt: skip
    assert len(seen) > 15
    settled = max(megabytes for steps, megabytes in seen if steps <= 22_000)  # after an evaluation and a checkpoint
    # 20,000 further steps. A leak of a hundred bytes per step would be 2 MB; a million of them were 100.
    assert seen[-1][1] - settled < 1.5
