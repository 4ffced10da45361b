"""Encoders whose layers act in one way and learn in another: Dropout and BatchNorm."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import minerva
from minerva import api, checkpointing
from minerva.acceleration.applied import Acceleration
from minerva.callbacks import Callback
from minerva.trainers.actor import ActingPolicy
from minerva.trainers.on_policy import OnPolicyTrainer
from tests.trainers.ppo.small_run import Troublesome, same_run
from tests.trainers.test_on_policy import Listener
from tests.trainers.vmpo.poison import poison

LAYERS: dict[str, Callable[[], nn.Module]] = {"dropout": nn.Dropout, "batch norm": partial(nn.BatchNorm1d, 8)}
OBS = torch.randn(5, 3, generator=torch.Generator().manual_seed(0))


class Encoder(nn.Module):
    """Keep in which mode it was asked, and whether for a gradient."""

    def __init__(self, layer: str, frozen: bool = False) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(3, 8), LAYERS[layer](), nn.Tanh())
        self.layers[1].train(not frozen)
        self.calls: list[tuple[bool, bool]] = []

    def forward(self, rows: Tensor) -> Tensor:
        self.calls.append((self.training, torch.is_grad_enabled()))
        features: Tensor = self.layers(rows)
        return features


def make_trainer(algo: str, layer: str, frozen: bool = False, **fields: Any) -> OnPolicyTrainer:
    own = {"minibatch_size": 16, "update_epochs": 2} if algo == "ppo" else {"m_steps": 2, "minibatches": 2}
    given = {"rollout_steps": 32, "eval_max_steps": 5, "eval_interval": 1, "console": False, **own, **fields}
    config = api.config_class(algo).from_fields(None, given)
    trainer = api.make_trainer(algo, "Pendulum-v1", 1, "cpu", config, make_encoder=partial(Encoder, layer, frozen))
    assert isinstance(trainer, OnPolicyTrainer)
    return trainer


def train(folder: Path, algo: str, layer: str, total: int = 96, callbacks: Any = None, **fields: Any) -> Any:
    trainer = make_trainer(algo, layer, **fields)
    try:
        trainer.train(total, out_dir=folder, callbacks=callbacks)
    finally:
        trainer.close()
    return trainer


def agent_in(folder: Path, algo: str) -> dict[str, Tensor]:
    weights: dict[str, Tensor] = checkpointing.read(folder / f"{algo}_last.pt")["state"]["agent"]
    return weights


@pytest.mark.parametrize("layer", LAYERS)
@pytest.mark.parametrize("algo", ["ppo", "vmpo"])
def test_runs_with_and_without_evaluation_are_the_same(algo: str, layer: str, tmp_path: Path) -> None:
    torch.manual_seed(5)
    train(tmp_path / "with", algo, layer, eval_episodes=2)
    torch.manual_seed(6)  # what else draws from torch's global generator changes nothing
    train(tmp_path / "without", algo, layer, eval_episodes=0)
    one, other = agent_in(tmp_path / "with", algo), agent_in(tmp_path / "without", algo)
    assert all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize("layer", LAYERS)
@pytest.mark.parametrize("algo", ["ppo", "vmpo"])
def test_it_acts_in_evaluation_mode_and_learns_in_training_mode(algo: str, layer: str, tmp_path: Path) -> None:
    state = torch.get_rng_state()
    trainer = train(tmp_path / "run", algo, layer, eval_episodes=2)
    assert torch.equal(torch.get_rng_state(), state), "torch's global generator has moved"
    encoder = trainer.agent.policy.policy_encoder
    while not isinstance(encoder, Encoder):
        encoder = next(iter(encoder.children()))
    assert set(encoder.calls[1:]) == {(False, False), (True, True)}  # all but the call that asks for its shape
    acting, loaded = ActingPolicy(trainer.agent), minerva.load(tmp_path / "run", make_encoder=partial(Encoder, layer))
    np.testing.assert_array_equal(acting(OBS.numpy()), loaded.act_flat(OBS.numpy()))
    np.testing.assert_array_equal(acting(OBS.numpy()[:1]), acting(OBS.numpy()[:1]))


@pytest.mark.parametrize("layer", LAYERS)
@pytest.mark.parametrize("algo", ["ppo", "vmpo"])
def test_it_resumes_exactly(algo: str, layer: str, tmp_path: Path) -> None:
    train(tmp_path / "whole", algo, layer, eval_episodes=1)
    with pytest.raises(ZeroDivisionError):
        train(tmp_path / "run", algo, layer, callbacks=Troublesome("on_step", 50), eval_episodes=1)
    torch.manual_seed(7)
    trainer = make_trainer(algo, layer, eval_episodes=1)
    trainer.load(tmp_path / "run")
    trainer.train(96)
    trainer.close()
    assert same_run(tmp_path / "whole", tmp_path / "run")


@pytest.mark.parametrize("layer", LAYERS)
@pytest.mark.parametrize("algo", ["ppo", "vmpo"])
def test_layers_that_draw_or_remember_are_not_compiled(algo: str, layer: str) -> None:
    state = torch.get_rng_state()
    with pytest.raises(ValueError, match=r"^compile: must be 'auto' or False .*\(Dropout, BatchNorm\), got True\.$"):
        make_trainer(algo, layer, compile=True)
    for fields in ({"compile": "auto"}, {"compile": True, "frozen": True}):
        trainer = make_trainer(algo, layer, **fields)
        trainer.close()
        statistics = [value for name, value in trainer.agent.state_dict().items() if "num_batches" in name]
        assert len(statistics) == (2 if layer == "batch norm" else 0)
        assert not any(statistics)  # building and checking them counted for nothing
    trainer.accelerate(Listener(10**9))  # type: ignore[arg-type]
    assert trainer.acceleration == Acceleration(compiled=True)
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize("algo", ["ppo", "vmpo"])
def test_a_step_that_is_not_applied_changes_no_statistics(
    algo: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer = make_trainer(algo, "batch norm", eval_episodes=0, normalize_reward=False)
    seen: list[dict[str, Tensor]] = []
    if algo == "vmpo":
        poison("loss", 6, monkeypatch)  # of four in each update

    class Spoil(Callback):
        def on_rollout_end(self, trainer: Any) -> None:
            seen.append({name: value.clone() for name, value in trainer.agent.policy.state_dict().items()})
            if len(seen) == 2 and algo == "ppo":
                trainer.collector.rollout.rewards[:] = torch.nan

    with pytest.raises(FloatingPointError) if algo == "ppo" else pytest.warns(RuntimeWarning, match="skipped"):
        trainer.train(64, out_dir=tmp_path / "run", callbacks=Spoil())
    trainer.close()
    after = trainer.agent.policy.state_dict()
    assert len(seen) == 2 and any("running_mean" in name and value.any() for name, value in after.items())
    assert all(torch.equal(after[name], value) for name, value in seen[1].items())
    assert not all(torch.equal(seen[0][name], value) for name, value in seen[1].items())


def test_what_a_user_has_frozen_stays_frozen(tmp_path: Path) -> None:
    trainer = train(tmp_path / "run", "ppo", "batch norm", frozen=True, eval_episodes=0)
    names = [name for name in trainer.agent.state_dict() if "running_mean" in name]
    assert names and not any(trainer.agent.state_dict()[name].any() for name in names)
    moving = train(tmp_path / "other", "ppo", "batch norm", eval_episodes=0)
    assert all(moving.agent.state_dict()[name].any() for name in names)
