from __future__ import annotations

from typing import Any, cast

import pytest
import torch
from torch import nn

from minerva import environments
from minerva.trainers import on_policy
from minerva.trainers.ppo.config import PPOConfig
from minerva.trainers.run import Run
from minerva.utils.running_norm import RunningNorm

CONFIG = PPOConfig(num_envs=3, rollout_steps=5, minibatch_size=5)


class Listener:
    def __init__(self) -> None:
        self.said: list[str] = []

    def say(self, text: str) -> None:
        self.said.append(text)


@pytest.mark.formula("minerva.trainers.on_policy", r"U = \left\lfloor \frac{\mathrm{total\_steps}}{N T} \right\rfloor")
@pytest.mark.parametrize(("steps", "updates"), [(14, 0), (15, 1), (29, 1), (30, 2), (1_000_000, 66_666)])
def test_only_whole_rollouts_count(steps: int, updates: int) -> None:
    assert on_policy.whole_rollouts(steps, CONFIG) == updates
    reason = on_policy.no_whole_rollout(steps, CONFIG)
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


@pytest.mark.parametrize("normalised", [True, False])
def test_the_collector_takes_its_normalisers_and_shapes_from_config_and_agent(normalised: bool) -> None:
    config = PPOConfig(num_envs=3, rollout_steps=5, minibatch_size=5, normalize_reward=normalised)
    env = environments.make("Pendulum-v1", num_envs=3)
    norm = RunningNorm(3) if normalised else nn.Identity()
    seen: list[Any] = []

    def act(obs: torch.Tensor) -> torch.Tensor:
        seen.append(obs.clone())
        return torch.zeros(3, 1)

    collector = on_policy.make_collector(env, config, 1, torch.device("cpu"), act, norm)
    collector.begin()
    steps = [collector.step() for _ in range(5)]
    rollout = collector.rollout
    env.close()
    assert rollout.full and rollout.obs.shape == (6, 3, 3) and rollout.actions.shape == (5, 3, 1)
    raw = torch.stack([torch.from_numpy(step.rewards) for step in steps]).float()
    assert torch.equal(rollout.rewards, raw) != normalised
    raw_obs = torch.from_numpy(steps[-1].observations)
    assert torch.equal(rollout.obs[5], raw_obs) != normalised
    if isinstance(norm, RunningNorm):
        assert norm.count.item() == pytest.approx(18, abs=1)  # three first observations and fifteen later ones
