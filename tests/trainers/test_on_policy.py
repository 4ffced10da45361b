from __future__ import annotations

from typing import Any, cast

import numpy as np
import pytest
import torch
from torch import nn

from minerva import environments
from minerva.networks.numpy_mlp import Array
from minerva.trainers import on_policy
from minerva.trainers.run import Run
from minerva.utils.running_norm import RunningNorm


class Listener:
    def __init__(self) -> None:
        self.said: list[str] = []

    def say(self, text: str) -> None:
        self.said.append(text)


@pytest.mark.formula("minerva.trainers.on_policy", r"U = \left\lfloor \frac{\mathrm{total\_steps}}{N T} \right\rfloor")
@pytest.mark.parametrize(("steps", "updates"), [(14, 0), (15, 1), (29, 1), (30, 2), (1_000_000, 66_666)])
def test_only_whole_rollouts_count(steps: int, updates: int) -> None:
    assert on_policy.whole_rollouts(steps, 15) == updates
    reason = on_policy.no_whole_rollout(steps, 15)
    assert (reason is None) == (updates > 0)
    if reason is not None:
        assert "14" in reason and "15" in reason


@pytest.mark.parametrize(("wanted", "installed", "words"), [
    (False, True, []), (False, False, []), (True, True, ["compiled"]), (True, False, ["No C++ compiler"]),
])  # fmt: skip
def test_compiling_is_said_and_done_only_with_a_compiler(
    wanted: bool, installed: bool, words: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(on_policy, "compiler_available", lambda: installed)
    listener = Listener()
    assert on_policy.settle_compiled(cast(Run, listener), wanted) is (wanted and installed)
    assert len(listener.said) == len(words)
    assert all(word in text for word, text in zip(words, listener.said, strict=True))


@pytest.mark.parametrize("normalized", [True, False])
def test_the_collector_takes_its_normalizers_and_shapes_from_config_and_agent(normalized: bool) -> None:
    env = environments.make("Pendulum-v1", num_envs=3)
    norm = RunningNorm(3) if normalized else nn.Identity()
    seen: list[Any] = []

    def act(obs: Array, state: Array, starts: Array) -> tuple[Array, Array]:
        seen.append(obs.copy())
        return np.zeros((3, 1), dtype=np.float32), state

    collector = on_policy.make_collector(env, 5, 1, torch.device("cpu"), act, norm, 0.99 if normalized else None)
    collector.begin()
    steps = [collector.step() for _ in range(5)]
    rollout = collector.rollout
    env.close()
    assert rollout.full and rollout.obs.shape == (6, 3, 3) and rollout.actions.shape == (5, 3, 1)
    raw = torch.stack([torch.from_numpy(step.rewards) for step in steps]).float()
    assert torch.equal(rollout.rewards, raw) != normalized
    raw_obs = torch.from_numpy(steps[-1].observations)
    assert torch.equal(rollout.obs[5], raw_obs) != normalized
    if isinstance(norm, RunningNorm):
        assert norm.count.item() - RunningNorm(3).count.item() == 18  # three first observations and fifteen later ones
