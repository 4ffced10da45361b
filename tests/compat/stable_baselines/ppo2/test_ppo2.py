from __future__ import annotations

import copy
import os
import signal
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from minerva.compat.stable_baselines import BaseCallback, DummyVecEnv, VecNormalize, make_vec_env
from tests.compat.stable_baselines.samples import (
    BATCH,
    N_ENVS,
    N_STEPS,
    assert_same,
    noisy,
    numpy_int,
    small_model,
    weights,
)
from tests.environments.tiny_envs import Failing, Noisy

CRITIC = "policy.value_encoder.0.weight"


class Copy(BaseCallback):
    """Keeps a rollout's observations, which the next one overwrites."""

    obs: torch.Tensor

    def _on_rollout_end(self) -> None:
        self.obs = self.model.trainer.rollout.obs[:-1].flatten(0, 1).clone()


def test_an_update_is_ppo2s() -> None:
    """One gradient step beside PPO2's, written down here: losses, population deviation, clipping, Adam."""
    model = small_model(env=noisy(length=5), nminibatches=1, noptepochs=1, learning_rate=lambda share: 1e-2 * share)
    agent = copy.deepcopy(model.agent).double()
    learned_from = Copy()
    model.learn(BATCH, callback=learned_from)
    assert model.trainer is not None
    assert model.trainer.last_update is not None
    batch = model.trainer.last_update.batch
    assert batch.weights.all()
    obs, actions, old_logp, old_values, advantages, returns = (
        part.double() for part in (learned_from.obs, *batch[1:4], batch.advantages, batch.returns)
    )
    mean, log_std = agent.actor_mean(obs), agent.actor_logstd
    assert log_std is not None
    policy: Any = torch.distributions.Normal(mean, log_std.exp().expand_as(mean))
    logp, entropy = policy.log_prob(actions).sum(-1), policy.entropy().sum(-1)
    values = agent.critic(obs).squeeze(-1)
    normalized = (advantages - advantages.mean()) / (advantages.std(correction=0) + 1e-8)
    ratio = (logp - old_logp).exp()
    policy_loss = torch.max(-normalized * ratio, -normalized * ratio.clamp(0.8, 1.2)).mean()
    clipped = old_values + (values - old_values).clamp(-0.2, 0.2)
    value_loss = 0.5 * torch.max((values - returns) ** 2, (clipped - returns) ** 2).mean()
    loss = policy_loss - 0.01 * entropy.mean() + 0.5 * value_loss
    optimizer = torch.optim.Adam(agent.parameters(), lr=1e-2, eps=1e-5)
    loss.backward()
    torch.nn.utils.clip_grad_norm_(agent.parameters(), 0.5)
    optimizer.step()
    means = model.trainer.last_update.means
    assert means["total"] == pytest.approx(loss.item(), rel=1e-5)
    assert means["square_kl"] == pytest.approx(0, abs=1e-9)
    for name, weight in agent.state_dict().items():
        np.testing.assert_allclose(weights(model)[name], weight.numpy(), rtol=1e-4, atol=2e-5, err_msg=name)


def test_gradients_may_be_left_as_they_are() -> None:
    # SGD would show it plainly; Adam shows a gradient's scale through its eps.
    free, cut = (small_model(max_grad_norm=norm).learn(BATCH) for norm in (None, 1e-6))
    moved = [np.abs(weights(m)[CRITIC] - weights(small_model())[CRITIC]).max() for m in (free, cut)]
    assert moved[0] > 2 * moved[1] > 0


def test_a_seed_decides_all() -> None:
    assert_same(small_model().learn(2 * BATCH), small_model().learn(2 * BATCH))
    first, other = weights(small_model().learn(BATCH)), weights(small_model(seed=1).learn(BATCH))
    assert not np.array_equal(first[CRITIC], other[CRITIC])


def test_steps_are_counted_anew_or_go_on() -> None:
    rates: list[float] = []

    def rate(share: float) -> float:
        rates.append(share)
        return 1e-3 * share

    model = small_model(learning_rate=rate)
    model.learn(2 * BATCH)
    rates.clear()
    model.learn(2 * BATCH, reset_num_timesteps=False)
    assert model.num_timesteps == 4 * BATCH
    assert {1.0, 0.5} <= set(rates) <= {1.0, 0.5, 0.0}  # the schedule runs over each call
    model.learn(BATCH)
    assert model.num_timesteps == BATCH


def test_settings_may_change_between_calls() -> None:
    model = small_model().learn(BATCH)
    model.n_steps = 16
    model.learn(2 * BATCH)
    assert model.trainer is not None
    assert model.trainer.config.rollout_steps == 16
    assert model.trainer.updater.state.policy.steps.item() == 8  # Adam's moments were kept


def test_an_episode_continues_with_the_next_call() -> None:
    model, rollout = small_model(env=noisy(length=100)), Copy()
    for k in range(3):
        model.learn(BATCH, callback=rollout)
        assert rollout.obs[0, 1] == k * N_STEPS  # the step within the episode


def test_numpys_integers_are_integers() -> None:
    settings: dict[str, Any] = {name: numpy_int(2) for name in ("nminibatches", "noptepochs")}
    model = small_model(n_steps=np.int32(N_STEPS), **settings)
    model.learn(numpy_int(BATCH), log_interval=numpy_int(1))
    assert model.num_timesteps == BATCH


def test_too_few_steps_teach_nothing() -> None:
    model = small_model()
    before = weights(model)
    with pytest.warns(RuntimeWarning, match="total_timesteps = 15 is less than n_envs"):
        model.learn(BATCH - 1)
    np.testing.assert_array_equal(weights(model)[CRITIC], before[CRITIC])


def test_nothing_is_printed_or_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: Any) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    small_model().learn(2 * BATCH, callback=lambda *_: list(tmp_path.iterdir()) == [])
    assert list(tmp_path.iterdir()) == []
    captured = capfd.readouterr()
    assert captured.out + captured.err == ""


def test_a_model_outlives_an_environment_that_fails() -> None:
    model = small_model(env=DummyVecEnv([lambda: Failing("broke", 6)] * 2))
    with pytest.raises(OSError, match="broke"):
        model.learn(BATCH)
    model.set_env(DummyVecEnv([Noisy] * 2))
    model.learn(BATCH)


def test_a_signal_leaves_a_model_that_can_be_saved(tmp_path: Path) -> None:
    model = small_model()

    def interrupt(_locals: dict[str, Any], _globals: dict[str, Any]) -> None:
        if _locals["self"].num_timesteps == BATCH + 4:
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        model.learn(4 * BATCH, callback=interrupt)
    assert model.num_timesteps == BATCH + 4
    model.save(tmp_path / "model")
    model.learn(BATCH)


def test_normalization_is_the_environments() -> None:
    env = VecNormalize(make_vec_env("CartPole-v1", N_ENVS))
    model = small_model(env=env)
    model.learn(BATCH)
    assert model.get_vec_normalize_env() is env
    assert env.obs_rms.count == pytest.approx(BATCH, abs=1)
    assert model.trainer is not None
    assert isinstance(model.agent.obs_normalizer, torch.nn.Identity)
    rollout = model.trainer.rollout
    assert rollout.rewards.abs().max() < 1.5 or rollout.rewards.std() > 0
    assert not torch.equal(rollout.rewards, torch.ones_like(rollout.rewards))
    assert small_model().get_vec_normalize_env() is None


def test_environments_must_fit(tmp_path: Path) -> None:
    model = small_model()
    with pytest.raises(ValueError, match="observation space must be the model's"):
        model.set_env("Pendulum-v1")
    with pytest.raises(ValueError, match="must be divisible by nminibatches"):
        small_model(n_steps=1).set_env("CartPole-v1")
    model.set_env(make_vec_env("CartPole-v1", 4))
    model.learn(4 * N_STEPS)
    assert model.n_envs == 4
