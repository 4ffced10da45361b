from __future__ import annotations

from typing import Any

import gymnasium
import pytest

import minerva
from minerva.compat.stable_baselines import PPO2, MlpPolicy, make_vec_env
from minerva.compat.stable_baselines.ppo2.settings import config_of
from tests.compat.stable_baselines.samples import cart_pole, small_model


def test_the_face_is_the_public_one() -> None:
    assert minerva.PPO2 is PPO2
    model = PPO2("MlpPolicy", "CartPole-v1", 0.9, 16, 0.0, 1e-3)
    assert (model.gamma, model.n_steps, model.ent_coef, model.learning_rate) == (0.9, 16, 0.0, 1e-3)


def test_defaults_are_ppo2s() -> None:
    model = PPO2(MlpPolicy, make_vec_env("CartPole-v1", 8))
    config = config_of(model, model._policy, model.n_envs)
    wanted = {
        "gamma": 0.99, "rollout_steps": 128, "ent_coef": 0.01, "policy_lr": 2.5e-4, "anneal_lr": False, "vf_coef": 0.5,
        "max_grad_norm": 0.5, "gae_lambda": 0.95, "minibatch_size": 256, "update_epochs": 4, "clip_ratio": 0.2,
        "clip_vloss": True, "clip_ratio_vf": None, "target_kl": None, "normalize_obs": False, "normalize_reward": False,
        "norm_adv": True, "unbiased_std": False,
    }  # fmt: skip
    assert {name: getattr(config, name) for name in wanted} == wanted
    assert config.policy_lr_at(0.1) == 2.5e-4


@pytest.mark.parametrize(
    ("cliprange_vf", "clipped", "at_half"),
    [(None, True, 0.1), (-1, False, 0.1), (0.5, True, 0.5), (lambda s: s, True, 0.5)],
)
def test_the_range_of_values(cliprange_vf: Any, clipped: bool, at_half: float) -> None:
    model = small_model(cliprange=lambda share: 0.2 * share, cliprange_vf=cliprange_vf)
    config = config_of(model, model._policy, model.n_envs)
    assert config.clip_vloss == clipped
    assert config.clip_ratio_vf_at(0.5) == at_half


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"n_steps": 5, "nminibatches": 4}, r"n_envs \* n_steps = 2 \* 5 = 10 must be divisible by nminibatches = 4"),
        ({"learning_rate": -1}, "learning_rate: must be greater than 0, got -1"),
        ({"learning_rate": "fast"}, r"learning_rate: must be a number, .*got 'fast'"),
        ({"cliprange": 0}, "cliprange: must be greater than 0"),
        ({"lam": 2}, r"lam: must lie in \[0, 1\], got 2"),
        ({"n_steps": 2.5}, "n_steps: must be a positive integer, got 2.5"),
        ({"noptepochs": 0}, "noptepochs: must be at least 1, got 0"),
    ],
)
def test_mistakes_are_refused_under_ppo2s_names(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        small_model(**settings)


def test_a_recurrent_policy_learns_from_whole_environments() -> None:
    with pytest.raises(ValueError, match=r"n_envs = 3 must be divisible by nminibatches = 2"):
        small_model("MlpLstmPolicy", make_vec_env("CartPole-v1", 3), n_steps=8)
    small_model("MlpLstmPolicy", make_vec_env("CartPole-v1", 4))


@pytest.mark.parametrize(
    ("env", "message"),
    [
        (None, "env: must be given"),
        (3, "env: must be an id, an environment of Gymnasium or gym, .*got builtins.int"),
    ],
)
def test_what_is_no_environment_is_refused(env: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        PPO2("MlpPolicy", env)


def test_vector_environments_of_others_are_refused() -> None:
    vector = gymnasium.make_vec("CartPole-v1", 2, vectorization_mode="sync")
    with pytest.raises(
        ValueError, match=r"must be a vector environment of minerva\.compat\.stable_baselines, got .*SyncVec"
    ):
        PPO2("MlpPolicy", vector)


@pytest.mark.parametrize("env", ["CartPole-v1", cart_pole, cart_pole()])
def test_forms_of_an_environment(env: Any) -> None:
    model = PPO2("MlpPolicy", env, n_steps=8, nminibatches=2).learn(16)
    assert (model.n_envs, model.n_batch, model.num_timesteps) == (1, 8, 16)
