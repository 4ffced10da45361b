"""V-MPO from images, from images beside numbers, and with a user's own encoder."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import Space, spaces
from torch import Tensor, nn

import minerva
from minerva.acceleration.compiled import compiler_available
from minerva.checkpointing import CheckpointError
from minerva.networks.cnn import NatureCNN
from minerva.networks.encoders import DictEncoder
from minerva.networks.layer_norm_mlp import LayerNormMLP
from minerva.trainers.vmpo.agent import VMPOAgent
from minerva.utils.running_norm import RunningNorm
from tests.environments.tiny_envs import Noisy, Picking
from tests.trainers.combinations import assert_loaded_policy_acts_alike
from tests.trainers.ppo.small_run import assert_resumes_exactly
from tests.trainers.vmpo.small_run import ROLLOUT, small_trainer

IMAGE = spaces.Box(0, 255, (36, 36, 1), np.uint8)
NUMBERS = spaces.Box(-1000, 1000, (6,), np.float32)
HANDLE = spaces.Box(0, 200, (2,), np.float32)


class Both(gymnasium.Env[Any, Any]):
    """Shows a picture and some numbers; either kind of action will do."""

    observation_space = spaces.Dict({"picture": IMAGE, "speed": NUMBERS})

    def __init__(self, action_space: Space[Any]) -> None:
        self.action_space = action_space

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        return self._see(), {}

    def step(self, action: Any) -> Any:
        assert self.action_space.contains(action)
        return self._see(), float(np.mean(action)), bool(self.np_random.random() < 0.1), False, {}

    def _see(self) -> dict[str, Any]:
        picture = self.np_random.integers(0, 256, (36, 36, 1)).astype(np.uint8)
        return {"picture": picture, "speed": self.np_random.normal(size=6).astype(np.float32)}


class Squared(nn.Module):
    """Features of a user's own, for two numbers."""

    def __init__(self, in_dim: int = 2) -> None:
        super().__init__()
        self.layer = nn.Linear(in_dim, 7)

    def forward(self, rows: Tensor) -> Tensor:
        features: Tensor = self.layer(rows.float() / 100) ** 2
        return features


# Which encoder


@pytest.mark.parametrize(
    ("space", "setting", "kind"),
    [
        (IMAGE, "auto", NatureCNN),
        (IMAGE, "cnn", NatureCNN),
        (IMAGE, "mlp", LayerNormMLP),
        (Both.observation_space, "auto", DictEncoder),
        (Both.observation_space, "mlp", LayerNormMLP),
        (NUMBERS, "auto", LayerNormMLP),
    ],
)
@pytest.mark.parametrize("action_space", [HANDLE, spaces.Discrete(3)])
def test_which_encoder_an_observation_space_gets(
    action_space: Space[Any], space: Space[Any], setting: Any, kind: type[nn.Module]
) -> None:
    agent = VMPOAgent(
        spaces.flatdim(space), 2 if action_space is HANDLE else 1, action_space=action_space, observation_space=space,
        encoder=setting, policy_layer_sizes=(4,), value_layer_sizes=(4,),
    )  # fmt: skip
    policy = agent.policy
    assert isinstance(policy.policy_encoder, kind) and isinstance(policy.value_encoder, kind)
    assert policy.policy_encoder is not policy.value_encoder
    assert policy.takes_bytes == (kind is not LayerNormMLP)
    # Numbers are normalized, images are scaled by their encoder alone.
    assert isinstance(agent.obs_normalizer, RunningNorm) == (kind is LayerNormMLP)


def test_an_encoder_that_does_not_fit() -> None:
    with pytest.raises(ValueError, match="encoder: 'cnn' needs an image"):
        small_trainer(Noisy, encoder="cnn")
    with pytest.raises(ValueError, match=r"make_encoder: .*rows of shape \(B, 2\).*got \(2, 1, 2\)"):
        small_trainer(Noisy, make_encoder=lambda: nn.Unflatten(1, (1, 2)))
    with pytest.raises(ValueError, match="encoder: 'custom' needs the function that builds it"):
        small_trainer(Noisy, encoder="custom")


# Images


def test_bytes_stay_bytes() -> None:
    trainer = small_trainer(partial(Picking, spaces.Discrete(4), IMAGE))
    trainer.begin()
    obs = trainer.collector.rollout.obs[trainer.collector.rollout.position]
    assert obs.dtype == torch.uint8 and obs.max() > 200
    torch.testing.assert_close(trainer.agent.value(obs), trainer.agent.value(obs.float()))
    expected = trainer.agent.act(obs, deterministic=True)
    for part, found in zip(expected, trainer.agent.act(obs.numpy(), deterministic=True), strict=True):
        np.testing.assert_array_equal(found, part.numpy())
    trainer.close()


def test_the_public_update_takes_images() -> None:
    agents = []
    for dtype in (np.uint8, np.float32):
        torch.manual_seed(0)
        agent = VMPOAgent(IMAGE.shape[0] ** 2, 2, action_space=HANDLE, observation_space=IMAGE)
        rng = np.random.default_rng(0)
        obs = rng.integers(0, 256, (6, 36 * 36)).astype(dtype)
        actions, values, means, log_stds = agent.act(obs, generator=torch.Generator().manual_seed(0))
        batch = {"obs": obs, "actions": actions, "old_means": means, "old_log_stds": log_stds, "returns": values + 1,
                 "advantages": rng.normal(size=(6, 1))}  # fmt: skip
        before = agent.policy.policy_encoder.layers[0].weight.clone()  # type: ignore[union-attr, index]
        assert agent.update(batch) is not None
        assert not torch.equal(agent.policy.policy_encoder.layers[0].weight, before)  # type: ignore[union-attr, index]
        agents.append(agent)
    for one, other in zip(agents[0].parameters(), agents[1].parameters(), strict=True):
        assert torch.equal(one, other)


class Bright(gymnasium.Env[Any, Any]):
    """The left or the right half of a picture is bright: that side is to be chosen."""

    observation_space = IMAGE
    action_space = spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self.steps = 0
        return self._see(), {}

    def step(self, action: Any) -> Any:
        self.steps += 1
        reward = float(action == self.side)
        return self._see(), reward, self.steps == 10, False, {}

    def _see(self) -> Any:
        self.side = int(self.np_random.integers(2))
        picture = np.zeros((36, 36, 1), np.uint8)
        picture[:, 18 * self.side : 18 * (self.side + 1)] = 255
        return picture


def test_it_learns_from_images(tmp_path: Path) -> None:
    trainer = small_trainer(
        Bright, num_envs=4, rollout_steps=32, m_steps=4, shared_encoder=True, policy_lr=1e-3, value_lr=1e-3,
        alpha_lr=0.01, epsilon_mu=0.1, advantage_estimator="dae", gamma=0.0, eval_episodes=3, eval_max_steps=100,
        eval_interval=10**9,
    )  # fmt: skip
    result = trainer.train(4 * 32 * 8, tmp_path / "run")
    trainer.close()
    assert result.first_evaluation is not None and result.first_evaluation.returns.mean() < 8
    assert result.last_evaluation is not None and result.last_evaluation.returns.min() == 10


@pytest.mark.skipif(
    not compiler_available() and not os.environ.get("CI"), reason="no C++ compiler is installed (Debian: g++)"
)
def test_compiled_updates_from_images_are_the_same_algorithm(tmp_path: Path) -> None:
    trainers = []
    for compiled in (False, True):
        trainer = small_trainer(
            partial(Picking, HANDLE, IMAGE), shared_encoder=True, compile=compiled, eval_episodes=0, policy_lr=1e-3
        )
        trainer.train(ROLLOUT * 2, tmp_path / str(compiled))
        trainer.close()
        trainers.append(trainer)
    assert [trainer.acceleration for trainer in trainers] == [(False, False), (True, False)]
    plain, fast = (trainer.agent.state_dict() for trainer in trainers)
    for name, tensor in plain.items():
        torch.testing.assert_close(fast[name], tensor, rtol=1e-3, atol=1e-5, msg=name)


@pytest.mark.parametrize("action_space", [HANDLE, spaces.Discrete(2)])
def test_a_dict_of_an_image_and_numbers(action_space: Space[Any], tmp_path: Path) -> None:
    trainer = small_trainer(lambda: Both(action_space), shared_encoder=True)
    assert isinstance(trainer.agent.policy.policy_encoder, DictEncoder)
    assert trainer.agent.policy.policy_encoder.out_dim == 512 + 6
    before = {name: value.clone() for name, value in trainer.agent.named_parameters()}
    trainer.train(ROLLOUT * 2, tmp_path / "run")
    assert all(not torch.equal(value, before[name]) for name, value in trainer.agent.named_parameters())
    policy = minerva.load(tmp_path / "run")
    assert_loaded_policy_acts_alike(trainer, policy)
    trainer.close()
    observation, _ = Both(action_space).reset(seed=0)
    assert action_space.contains(policy.act(observation))


def test_a_checkpoint_with_another_encoder_is_refused(tmp_path: Path) -> None:
    make = partial(small_trainer, partial(Picking, spaces.Discrete(4), IMAGE), eval_episodes=0)
    trainer = make()
    trainer.train(ROLLOUT, tmp_path / "run")
    trainer.close()
    other = make(encoder="mlp")
    with pytest.raises(CheckpointError, match="was made with encoder = auto, got mlp"):
        other.load(tmp_path / "run")
    other.close()


# A user's own


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("discrete", [False, True])
def test_a_users_own_encoder(discrete: bool, shared: bool, tmp_path: Path) -> None:
    make = partial(Squared, 6) if discrete else Squared
    env = partial(Picking, spaces.Discrete(4), NUMBERS) if discrete else Noisy
    trainer = small_trainer(env, make_encoder=make, shared_encoder=shared)
    own = [module for module in trainer.agent.modules() if isinstance(module, Squared)]
    assert len(own) == (1 if shared else 2) and trainer.config.encoder == "custom"
    assert trainer.agent.policy.policy_head.in_features == 7
    before = own[0].layer.weight.clone()
    trainer.train(ROLLOUT * 3, tmp_path / "run")
    assert not torch.equal(own[0].layer.weight, before)
    assert_loaded_policy_acts_alike(trainer, minerva.load(tmp_path / "run", make_encoder=make))
    trainer.close()
    with pytest.raises(ValueError, match="encoder: 'custom' needs the function that builds it"):
        minerva.load(tmp_path / "run")


def test_a_run_with_ones_own_encoder_resumes_exactly(tmp_path: Path) -> None:
    make = partial(small_trainer, Noisy, make_encoder=Squared)
    assert_resumes_exactly(make, [ROLLOUT + 5], ROLLOUT * 3, tmp_path)


def test_a_dict_resumes_exactly(tmp_path: Path) -> None:
    make = partial(small_trainer, partial(Both, HANDLE), minibatches=4, eval_episodes=0)
    assert_resumes_exactly(make, [ROLLOUT + 5], ROLLOUT * 3, tmp_path)


def test_acting_does_not_evaluate_a_critic_with_an_encoder_of_its_own() -> None:
    trainer = small_trainer(Noisy, make_encoder=Squared)
    for module in (trainer.agent.policy.value_encoder, trainer.agent.policy.value_head):
        module.register_forward_hook(lambda *_: pytest.fail("the critic was evaluated"))
    trainer.begin()
    trainer.collector.step()
    trainer.close()
