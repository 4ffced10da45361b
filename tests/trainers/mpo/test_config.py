from __future__ import annotations

import ast
import dataclasses
import inspect
import itertools
import json
import math
from typing import Any

import pytest

from minerva.trainers.config import OffPolicyConfig, RunConfig
from minerva.trainers.mpo.config import MPOConfig

SPECIFIED = {
    "gamma": 0.99, "target_networks_update_period": 100, "policy_lr": 3e-4, "q_lr": 3e-4, "kl_epsilon": 0.1,
    "mstep_kl_epsilon": 0.1, "temperature_init": 1.0, "temperature_lr": 3e-4, "lambda_init": 1.0, "lambda_lr": 3e-4,
    "epsilon_penalty": 0.001, "max_grad_norm": 1.0, "action_samples": 20, "use_retrace": False, "retrace_steps": 2,
    "retrace_mc_actions": 8, "retrace_lambda": 0.95, "optimizer_type": "adam", "sgd_momentum": 0.9,
    "init_log_alpha_mean": 10.0, "init_log_alpha_stddev": 1000.0, "m_steps": 1, "action_penalization": False,
    "n_step": 1, "normalize_obs": False, "shared_critic_pass": False, "updates_per_step": 1.0, "num_envs": 1,
    "target_tau": None,
}  # fmt: skip


def test_defaults_are_those_of_the_specification() -> None:
    config = MPOConfig()
    assert {name: getattr(config, name) for name in SPECIFIED} == SPECIFIED


def test_every_field_has_help() -> None:
    documented = set()
    for kind in (RunConfig, OffPolicyConfig, MPOConfig):
        (definition,) = ast.parse(inspect.getsource(kind)).body
        assert isinstance(definition, ast.ClassDef)
        for line, following in itertools.pairwise(definition.body):
            text = following.value if isinstance(following, ast.Expr) else None
            if isinstance(line, ast.AnnAssign) and isinstance(line.target, ast.Name) and isinstance(text, ast.Constant):
                documented.add(line.target.id)
    assert {field.name for field in dataclasses.fields(MPOConfig)} == documented


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"gamma": 1.1}, r"gamma: must lie in \[0, 1\], got 1.1"),
        ({"gamma": math.nan}, r"gamma: must lie in \[0, 1\], got nan"),
        ({"retrace_lambda": -0.1}, r"retrace_lambda: must lie in \[0, 1\], got -0.1"),
        ({"sgd_momentum": 1.5}, r"sgd_momentum: must lie in \[0, 1\], got 1.5"),
        ({"target_tau": 0.0}, r"target_tau: must lie in \(0, 1\], or be None, got 0.0"),
        ({"target_tau": 1.01}, r"target_tau: must lie in \(0, 1\], or be None, got 1.01"),
        ({"optimizer_type": "rmsprop"}, "optimizer_type: must be 'adam' or 'sgd', got 'rmsprop'"),
        ({"compile": "yes"}, "compile: must be 'auto', True or False, got 'yes'"),
        ({"action_penalization": 1}, "action_penalization: must be True or False, got 1"),
        ({"batch_size": 2.5}, "batch_size: must be a whole number, got 2.5"),
        ({"temperature_init": "hot"}, "temperature_init: must be a number, got 'hot'"),
        ({"policy_layer_sizes": ()}, r"policy_layer_sizes: must name at least one layer.*got \(\)"),
        ({"critic_layer_sizes": (64, 0)}, r"critic_layer_sizes: must name at least one layer of at least one unit"),
        ({"update_after": -1}, "update_after: must be at least 0, got -1"),
        # What the replay can give
        ({"batch_size": 9, "replay_size": 8}, "batch_size: must be at most replay_size = 8, .* hold 8 .*got 9"),
        (
            {"batch_size": 10, "replay_size": 11, "num_envs": 4},
            r"batch_size: must be at most replay_size = 11, of which the replay buffer will hold 8 \(as many of each",
        ),
        ({"replay_size": 3, "num_envs": 4, "batch_size": 1}, "replay_size: must be at least num_envs = 4, .* got 3"),
        (
            {"n_step": 26, "replay_size": 100, "num_envs": 4, "batch_size": 8},
            "n_step: must be at most replay_size / num_envs = 25, .* got 26",
        ),
        (
            {"use_retrace": True, "retrace_steps": 26, "replay_size": 100, "num_envs": 4, "batch_size": 8},
            "retrace_steps: must be at most replay_size / num_envs = 25, .* got 26",
        ),
        (
            {"use_retrace": True, "n_step": 5},
            r"n_step: must be 1 together with use_retrace, .* got 5\. Set retrace_steps instead",
        ),
        *(
            ({name: 0}, f"{name}: must be at least 1, got 0")
            for name in (
                "replay_size", "batch_size", "update_interval", "n_step", "target_networks_update_period",
                "retrace_steps", "retrace_mc_actions", "action_samples", "m_steps", "log_interval",
            )
        ),
        *(
            ({name: value}, f"{name}: must be greater than 0, got {value}")
            for name in (
                "updates_per_step", "q_lr", "policy_lr", "temperature_lr", "lambda_lr", "max_grad_norm", "kl_epsilon",
                "epsilon_penalty", "mstep_kl_epsilon", "mstep_kl_epsilon_stddev", "lambda_init",
            )
            for value in (0.0, -0.5, math.nan)
        ),
    ],
)  # fmt: skip
def test_bad_values_name_the_field_the_rule_and_the_value(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=f"^{message}") as caught:
        MPOConfig(**fields)
    assert "\n" not in str(caught.value) and str(caught.value).endswith(".")


@pytest.mark.parametrize(
    "fields",
    [
        {"gamma": 0.0}, {"gamma": 1.0}, {"target_tau": 1.0}, {"update_after": 0}, {"retrace_lambda": 0.0},
        {"init_log_alpha_mean": None, "init_log_alpha_stddev": None}, {"temperature_init": -3.0},
        {"batch_size": 100, "replay_size": 100}, {"batch_size": 8, "replay_size": 11, "num_envs": 4},
        {"n_step": 25, "replay_size": 100, "num_envs": 4, "batch_size": 8}, {"updates_per_step": 0.25},
        {"use_retrace": True, "retrace_steps": 25, "replay_size": 100, "num_envs": 4, "batch_size": 8},
        # Without Retrace its length does not matter.
        {"retrace_steps": 26, "replay_size": 100, "num_envs": 4, "batch_size": 8},
        {"replay_size": 4, "num_envs": 4, "batch_size": 4}, {"compile": True}, {"compile": False},
    ],
)  # fmt: skip
def test_values_at_the_edge_are_fine(fields: dict[str, Any]) -> None:
    config = MPOConfig(**fields)
    assert {name: getattr(config, name) for name in fields} == fields


def test_whether_updates_are_made_on_sequences() -> None:
    assert not MPOConfig().sequences
    assert MPOConfig(use_retrace=True).sequences
    assert not MPOConfig(use_retrace=True, retrace_steps=1).sequences
    assert not MPOConfig(retrace_steps=5).sequences


def test_the_bound_of_the_standard_deviation() -> None:
    assert MPOConfig(mstep_kl_epsilon=0.3).epsilon_stddev == 0.3
    assert MPOConfig(mstep_kl_epsilon=0.3, mstep_kl_epsilon_stddev=0.01).epsilon_stddev == 0.01


def test_plain_form_goes_through_json_and_back() -> None:
    config = MPOConfig(policy_layer_sizes=[7, 3], target_tau=0.5, init_log_alpha_mean=None)  # type: ignore[arg-type]
    assert config.policy_layer_sizes == (7, 3)
    assert MPOConfig(**json.loads(json.dumps(config.to_plain()))) == config


def test_one_pass_for_both_is_not_for_retrace() -> None:
    with pytest.raises(ValueError, match="shared_critic_pass: must be False together with use_retrace, got True"):
        MPOConfig(shared_critic_pass=True, use_retrace=True)
