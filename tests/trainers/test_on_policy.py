from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from numpy.typing import NDArray

from minerva.acceleration import applied
from minerva.acceleration.applied import Acceleration
from minerva.storage.rollout import RolloutBuffer
from minerva.trainers.on_policy import estimate_advantages
from minerva.trainers.vmpo.config import VMPOConfig
from minerva.utils.running_norm import RunningNorm
from tests.environments.tiny_envs import Picking
from tests.objectives import oracle_ppo as oracle
from tests.trainers.ppo.small_run import small_trainer


class Listener:
    """What a run would say."""

    def __init__(self, total_steps: int) -> None:
        self.total_steps = total_steps
        self.said: list[str] = []

    def say(self, text: str) -> None:
        self.said.append(text)


@pytest.mark.formula("minerva.trainers.on_policy", r"U = \left\lfloor \frac{\mathrm{total\_steps}}{N T} \right\rfloor")
def test_only_whole_rollouts_count() -> None:
    trainer = small_trainer(num_envs=3, rollout_steps=5, minibatch_size=5)
    trainer.close()
    for steps, updates in ((14, 0), (15, 1), (29, 1), (30, 2), (1_000_000, 66_666)):
        assert trainer.num_updates(steps) == updates and trainer.final_step(steps) == 15 * updates
        if updates:
            trainer.config.check_length(steps)
        else:
            with pytest.raises(ValueError, match=r"total_steps: must be at least .* = 15, one rollout, got 14"):
                trainer.config.check_length(steps)


@pytest.mark.formula("minerva.trainers.on_policy", r"s_u = 1 - \frac{u - 1}{U}")
def test_what_remains_of_training() -> None:
    trainer = small_trainer()
    trainer.close()
    shares = []
    for updates in range(4):
        trainer.run_state.updates = updates
        shares.append(trainer.remaining(4))
    assert shares == [1.0, 0.75, 0.5, 0.25]


# Advantages


def random_rollout() -> tuple[RolloutBuffer, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    rollout = RolloutBuffer(9, 3, 1, 1, torch.device("cpu"))
    rollout.rewards.copy_(torch.randn(9, 3, generator=generator))
    rollout.terminated[4, 0] = rollout.terminated[8, 1] = rollout.truncated[3, 2] = rollout.truncated[6, 0] = 1
    return rollout, torch.randn(10, 3, generator=generator)


@pytest.mark.formula("minerva.trainers.on_policy", r"A_t = \delta_t", r"R_t = A_t + V(s_t)")
@pytest.mark.parametrize("estimator", ["gae", "returns", "dae"])
def test_advantages_against_the_oracle(estimator: str) -> None:
    rollout, values = random_rollout()
    rewards, v, terminated, truncated = (
        part.double().numpy() for part in (rollout.rewards, values, rollout.terminated, rollout.truncated)
    )
    expected: tuple[NDArray[np.float64], NDArray[np.float64]]
    if estimator == "gae":
        expected = oracle.gae(rewards, v, terminated, truncated, 0.9, 0.8)
    elif estimator == "returns":
        expected = oracle.bootstrapped_returns(rewards, v, terminated, truncated, 0.9)
    else:  # what one step promises, over what was expected of it
        returns = rewards + 0.9 * (1 - terminated) * v[1:]
        expected = returns - v[:-1], returns
    config = VMPOConfig.from_fields(None, {"advantage_estimator": estimator, "gamma": 0.9, "gae_lambda": 0.8})
    for found, part in zip(estimate_advantages(rollout, values, config), expected, strict=True):
        np.testing.assert_allclose(found.numpy(), part, rtol=1e-4, atol=1e-5)


# Acceleration


@pytest.mark.parametrize(
    ("fields", "steps", "compiled"),
    [
        ({}, 96, False),
        ({}, 10**9, True),
        ({"compile": True}, 96, True),
        ({"compile": True, "optimizer_type": "sgd"}, 96, True),
        ({"compile": False}, 10**9, False),
        ({"lstm_units": 4, "minibatch_size": 16}, 10**9, False),  # it is not the same operations every time
    ],
)
@pytest.mark.parametrize("installed", [True, False])
def test_updates_are_compiled_in_long_runs_where_there_is_a_compiler(
    fields: dict[str, Any], steps: int, compiled: bool, installed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(applied, "compiler_available", lambda: installed)
    trainer = small_trainer(**{"compile": "auto", **fields})
    trainer.close()
    listener = Listener(steps)
    trainer.accelerate(listener)  # type: ignore[arg-type]
    assert trainer.acceleration == Acceleration(compiled and installed)
    words = ["compiled" if installed else "No C++ compiler"] if compiled else []
    assert len(listener.said) == len(words)
    assert all(word in text for word, text in zip(words, listener.said, strict=True))
    # Once chosen, it stays for the whole run, and what is compiled is not lost.
    step = trainer.updater._step
    trainer.accelerate(Listener(1))  # type: ignore[arg-type]
    assert trainer.acceleration == Acceleration(compiled and installed) and trainer.updater._step is step


def test_images_are_not_worth_compiling(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(applied, "compiler_available", lambda: True)
    image = spaces.Box(0, 255, (40, 36, 3), np.uint8)
    trainer = small_trainer(partial(Picking, spaces.Discrete(3), image), compile="auto")
    trainer.close()
    trainer.accelerate(Listener(10**9))  # type: ignore[arg-type]
    assert trainer.acceleration == Acceleration()


# The collector


@pytest.mark.parametrize("normalized", [True, False])
def test_the_collector_takes_its_normalizers_and_shapes_from_config_and_agent(normalized: bool) -> None:
    trainer = small_trainer(
        num_envs=3, rollout_steps=5, minibatch_size=5, normalize_obs=normalized, normalize_reward=normalized
    )
    collector, norm = trainer.collector, trainer.agent.obs_normalizer
    trainer.begin()
    steps = [collector.step() for _ in range(5)]
    rollout = collector.rollout
    trainer.close()
    assert rollout.full and rollout.obs.shape == (6, 3, 3) and rollout.actions.shape == (5, 3, 1)
    raw = torch.stack([torch.from_numpy(step.rewards) for step in steps]).float()
    assert torch.equal(rollout.rewards, raw) != normalized
    raw_obs = torch.from_numpy(steps[-1].observations)
    assert torch.equal(rollout.obs[5], raw_obs) != normalized
    assert isinstance(norm, RunningNorm) == normalized
    if isinstance(norm, RunningNorm):
        assert norm.count.item() - RunningNorm(3).count.item() == 18  # three first observations and fifteen later ones


def test_a_run_starts_with_the_weights_that_the_agent_has_then(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Where the actor has a copy of the policy, on a GPU: weights may have been loaded since it was made.
    trainer = small_trainer(eval_episodes=0)
    noted: list[int] = []
    monkeypatch.setattr(trainer.actor, "invalidate", lambda: noted.append(trainer.env_steps))
    trainer.train(32, tmp_path / "run")
    trainer.close()
    assert noted == [0, 16, 32]  # before the first step, and after each update
