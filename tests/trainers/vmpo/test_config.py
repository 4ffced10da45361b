from __future__ import annotations

from typing import Any

import pytest

from minerva.trainers.vmpo.config import VMPOConfig


def test_defaults_are_the_specifications() -> None:
    config = VMPOConfig()
    expected: dict[str, Any] = {
        "policy_layer_sizes": (256, 256), "value_layer_sizes": (256, 256), "normalize_advantages": True, "gamma": 0.99,
        "advantage_estimator": "returns", "gae_lambda": 0.95, "policy_lr": 5e-4, "value_lr": 1e-3, "topk_fraction": 0.5,
        "temperature_init": 1.0, "temperature_lr": 1e-4, "epsilon_eta": 0.1, "epsilon_mu": 0.01, "epsilon_sigma": 0.01,
        "alpha_lr": 1e-4, "max_grad_norm": 10.0, "optimizer_type": "adam", "sgd_momentum": 0.9, "shared_encoder": False,
        "ppo_like_backbone": False, "m_steps": 1, "num_envs": 1, "normalize_obs": True, "normalize_reward": False,
        "control_variate": False, "log_std_init": 0.0, "lstm_units": None, "lstm_layer_norm": False,
        "encoder": "auto", "minibatches": 1, "recompute_advantages": False, "anneal_lr": False,
    }  # fmt: skip
    assert {name: getattr(config, name) for name in expected} == expected


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"topk_fraction": 0.0}, r"topk_fraction: must lie in \(0, 1\], got 0.0; 0.5 keeps the better half"),
        ({"topk_fraction": 1.5}, r"topk_fraction: must lie in \(0, 1\], got 1.5"),
        (
            {"topk_fraction": 0.1, "rollout_steps": 3, "num_envs": 3},
            r"topk_fraction: must keep at least one of 4 samples, half of rollout_steps \* num_envs = 3 \* 3 .* 0.1",
        ),
        ({"advantage_estimator": "td"}, "advantage_estimator: must be 'returns', 'dae' or 'gae', got 'td'"),
        ({"optimizer_type": "rmsprop"}, "optimizer_type: must be 'adam' or 'sgd', got 'rmsprop'"),
        ({"log_std_init": 2.5}, "log_std_init: must lie between -20 and 2, got 2.5; 0 is a deviation of 1"),
        ({"log_std_init": float("nan")}, "log_std_init: must lie between -20 and 2, got nan"),
        ({"m_steps": 0}, "m_steps: must be at least 1, got 0"),
        ({"rollout_steps": 0}, "rollout_steps: must be at least 1, got 0"),
        ({"temperature_init": 0.0}, "temperature_init: must be greater than 0, got 0.0"),
        ({"epsilon_eta": -0.1}, "epsilon_eta: must be greater than 0"),
        ({"epsilon_mu": 0.0}, "epsilon_mu: must be greater than 0"),
        ({"epsilon_sigma": 0.0}, "epsilon_sigma: must be greater than 0"),
        ({"alpha_lr": 0.0}, "alpha_lr: must be greater than 0"),
        ({"value_lr": 0.0}, "value_lr: must be greater than 0"),
        ({"gamma": 1.1}, r"gamma: must lie in \[0, 1\], got 1.1"),
        ({"policy_layer_sizes": ()}, "policy_layer_sizes: must name at least one layer"),
        ({"lstm_units": 0}, "lstm_units: must be at least 1, got 0"),
        ({"lstm_layer_norm": True}, "lstm_layer_norm: needs lstm_units, got True without them; give both"),
        (
            {"lstm_units": 4, "compile": True},
            r"compile: True is not for recurrent policies \(lstm_units\); use 'auto'",
        ),
        ({"encoder": "lstm"}, "encoder: must be 'auto', 'mlp', 'cnn' or 'custom', got 'lstm'"),
        ({"compile": "yes"}, "compile: must be 'auto', True or False, got 'yes'"),
    ],
)
def test_rules(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=f"^{message}"):
        VMPOConfig(**fields)


def test_a_share_may_keep_a_single_sample() -> None:
    assert VMPOConfig(topk_fraction=0.5, rollout_steps=2, num_envs=2).batch_size == 4
    assert VMPOConfig(topk_fraction=1.0, rollout_steps=1, num_envs=1).batch_size == 1


def test_gradient_steps_are_counted_in_whole_rollouts() -> None:
    config = VMPOConfig(rollout_steps=8, num_envs=4, m_steps=5)
    assert config.gradient_steps(32 * 3 + 31) == 15
