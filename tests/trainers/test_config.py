from __future__ import annotations

import ast
import dataclasses
import inspect
import itertools
import json
import math
import sys
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from minerva import checkpointing
from minerva.trainers import config as run_config
from minerva.trainers.config import RunConfig
from minerva.trainers.mpo.config import MPOConfig
from minerva.trainers.ppo import config as ppo_config
from minerva.trainers.ppo.config import PPOConfig
from minerva.trainers.ppo.trainer import PPOTrainer
from minerva.trainers.vmpo.config import VMPOConfig
from minerva.utils.schedules import NonNegativeSchedule, PositiveSchedule

SPECIFIED = {
    "gamma": 0.99, "gae_lambda": 0.95, "update_epochs": 10, "minibatch_size": 64, "policy_lr": 3e-4, "clip_ratio": 0.2,
    "ent_coef": 0.0, "vf_coef": 0.5, "max_grad_norm": 0.5, "target_kl": 0.02, "norm_adv": True, "clip_vloss": True,
    "anneal_lr": True, "normalize_obs": True, "num_envs": 1, "optimizer_type": "adam", "sgd_momentum": 0.9,
    "policy_layer_sizes": (64, 64), "critic_layer_sizes": (64, 64), "rollout_steps": 2048, "advantage_estimator": "gae",
    "normalize_reward": True, "eval_episodes": 15, "eval_interval": None, "checkpoint_interval": None,
}  # fmt: skip


def test_defaults_are_those_of_the_specification() -> None:
    config = PPOConfig()
    assert {name: getattr(config, name) for name in SPECIFIED} == SPECIFIED


def test_every_field_has_help() -> None:
    # The command line's help is made of the string under each field.
    documented = set()
    for module in (run_config, ppo_config):
        for node in ast.walk(ast.parse(inspect.getsource(module))):
            if not isinstance(node, ast.ClassDef):
                continue
            for line, following in itertools.pairwise(node.body):
                text = following.value if isinstance(following, ast.Expr) else None
                if (
                    isinstance(line, ast.AnnAssign)
                    and isinstance(line.target, ast.Name)
                    and isinstance(text, ast.Constant)
                ):
                    documented.add(line.target.id)
    assert {field.name for field in dataclasses.fields(PPOConfig)} <= documented


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"gamma": 1.1}, r"gamma: must lie in \[0, 1\], got 1.1"),
        ({"gamma": -0.1}, r"gamma: must lie in \[0, 1\], got -0.1"),
        ({"gamma": math.nan}, r"gamma: must lie in \[0, 1\], got nan"),
        ({"gae_lambda": 2}, r"gae_lambda: must lie in \[0, 1\], got 2"),
        ({"sgd_momentum": -1.0}, r"sgd_momentum: must lie in \[0, 1\]"),
        ({"minibatch_size": 2049}, r"minibatch_size: must be at most .* = 2048 \* 1 = 2048, got 2049"),
        ({"minibatch_size": 0}, "minibatch_size: must be at least 1, got 0"),
        ({"rollout_steps": 0}, "rollout_steps: must be at least 1, got 0"),
        ({"rollout_steps": -5}, "rollout_steps: must be at least 1, got -5"),
        ({"rollout_steps": 2.5}, "rollout_steps: must be a whole number, got 2.5"),
        ({"rollout_steps": "64"}, "rollout_steps: must be a whole number, got '64'"),
        ({"rollout_steps": True}, "rollout_steps: must be a whole number, got True"),
        ({"update_epochs": 0}, "update_epochs: must be at least 1, got 0"),
        ({"num_envs": 0}, "num_envs: must be at least 1, got 0"),
        ({"num_workers": 0}, "num_workers: must be at least 1, got 0"),
        ({"policy_lr": 0.0}, "policy_lr: must be greater than 0, got 0.0"),
        ({"policy_lr": "fast"}, "policy_lr: must be a number,.* got 'fast'"),
        ({"clip_ratio": -0.2}, "clip_ratio: must be greater than 0, got -0.2"),
        ({"max_grad_norm": 0.0}, "max_grad_norm: must be greater than 0"),
        ({"ent_coef": -0.1}, "ent_coef: must be at least 0, got -0.1"),
        ({"vf_coef": -0.1}, "vf_coef: must be at least 0, got -0.1"),
        ({"norm_adv": 1}, "norm_adv: must be True or False, got 1"),
        ({"optimizer_type": "rmsprop"}, "optimizer_type: must be 'adam' or 'sgd', got 'rmsprop'"),
        ({"advantage_estimator": "td"}, "advantage_estimator: must be 'gae' or 'returns', got 'td'"),
        ({"vectorization": "threads"}, "vectorization: must be 'sync' or 'subprocess', got 'threads'"),
        ({"wandb": "on"}, "wandb: must be 'off', 'offline' or 'online', got 'on'"),
        ({"policy_layer_sizes": ()}, r"policy_layer_sizes: must name at least one layer.*got \(\)"),
        ({"critic_layer_sizes": []}, r"critic_layer_sizes: must name at least one layer.*got \[\]"),
        ({"critic_layer_sizes": (64, 0)}, r"critic_layer_sizes: must name at least one layer of at least one unit"),
        ({"policy_layer_sizes": 64}, r"policy_layer_sizes: .*such as \(64, 64\); got 64"),
        ({"eval_episodes": -1}, "eval_episodes: must be at least 0, got -1"),
        ({"eval_interval": 0}, "eval_interval: must be at least 1, got 0"),
        ({"checkpoint_interval": 0}, "checkpoint_interval: must be at least 1, got 0"),
        ({"checkpoint_minutes": -1.0}, "checkpoint_minutes: must be at least 0, got -1"),
        ({"torch_threads": 0}, "torch_threads: must be at least 1, got 0"),
        ({"full_tensorboard_log": True}, "full_tensorboard_log: needs tensorboard, got True without it"),
    ],
)  # fmt: skip
def test_bad_values_name_the_field_the_rule_and_the_value(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        PPOConfig(**fields)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (PPOConfig(num_envs=8, minibatch_size=64), None),
        (PPOConfig(num_envs=6), "num_envs: .* processes that share them, 4, got 6; try 8"),
        (PPOConfig(num_envs=4, minibatch_size=66), "minibatch_size: .* contribute to each .* 4, got 66; try 68"),
        (PPOConfig(num_envs=8, rollout_steps=16, minibatch_size=64, lstm_units=4), None),
        (PPOConfig(num_envs=8, rollout_steps=16, minibatch_size=32, lstm_units=4),
         "minibatch_size: .* rollout_steps = 16 times the number of processes .* 4, got 32; try 64"),
        (VMPOConfig(num_envs=4, rollout_steps=16, minibatches=8), None),
        (VMPOConfig(num_envs=4, rollout_steps=16, minibatches=64), "minibatches: must divide the 16 rows .* got 64"),
        (MPOConfig(num_envs=4), "is trained by one process, got 4"),
    ],
)  # fmt: skip
def test_what_several_processes_can_share(config: RunConfig, message: str | None) -> None:
    with nullcontext() if message is None else pytest.raises(ValueError, match=message):
        config.check_ranks(4)


@pytest.mark.parametrize(
    "fields",
    [
        {"gamma": 0}, {"gamma": 1}, {"gae_lambda": 0.0}, {"target_kl": None}, {"target_kl": 0}, {"target_kl": -1},
        {"minibatch_size": 2048}, {"minibatch_size": 4096, "num_envs": 2}, {"eval_episodes": 0}, {"ent_coef": 0},
        {"checkpoint_minutes": 0}, {"torch_threads": None}, {"log_std_init": -1},
    ],
)  # fmt: skip
def test_values_at_the_edge_are_fine(fields: dict[str, Any]) -> None:
    config = PPOConfig(**fields)
    assert {name: getattr(config, name) for name in fields} == fields


def test_layer_lists_become_tuples() -> None:
    assert PPOConfig(policy_layer_sizes=[32, 16]).policy_layer_sizes == (32, 16)  # type: ignore[arg-type]


def test_from_fields() -> None:
    base = PPOConfig(gamma=0.5)
    config = PPOConfig.from_fields(base, {"gae_lambda": 0.25})
    assert (config.gamma, config.gae_lambda, base.gae_lambda) == (0.5, 0.25, 0.95)
    assert PPOConfig.from_fields(None, {}) == PPOConfig()
    with pytest.raises(ValueError, match=r"learning_rat: not a setting of PPOConfig\."):
        PPOConfig.from_fields(None, {"learning_rat": 1.0})
    with pytest.raises(ValueError, match=r"rolout_steps: not a setting of PPOConfig\. Did you mean rollout_steps"):
        PPOConfig.from_fields(base, {"rolout_steps": 3})
    with pytest.raises(ValueError, match="gamma: must lie in"):
        PPOConfig.from_fields(base, {"gamma": 7})


def test_plain_form_goes_through_json_and_back() -> None:
    config = PPOConfig(policy_layer_sizes=(7, 3), env_kwargs={"a": [1, 2]}, target_kl=None)
    plain = json.loads(json.dumps(config.to_plain()))
    assert plain == config.to_plain()
    assert PPOConfig(**plain) == config


def test_frozen() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        PPOConfig().gamma = 0.1  # type: ignore[misc]


def test_batch_size() -> None:
    assert PPOConfig(rollout_steps=128, num_envs=3).batch_size == 384


# Schedules


@dataclass(frozen=True, kw_only=True)
class Scheduled(RunConfig):
    rate: PositiveSchedule = 3e-4
    """Has to be positive."""
    bonus: NonNegativeSchedule = 0.0
    """May be 0."""
    bound: PositiveSchedule | None = None
    """May be left out."""


def half(share: float) -> float:
    return share / 2


class Falling:
    """A callable that cannot be copied: it stays out of what a checkpoint holds, whatever it is."""

    def __call__(self, share: float) -> float:
        return share

    def __deepcopy__(self, memo: Any) -> Falling:
        raise TypeError("not to be copied")


FALLING = Falling()


@pytest.mark.parametrize(
    ("value", "kept", "plain"),
    [
        (1, 1.0, 1.0),
        (np.float32(0.5), 0.5, 0.5),
        ("const_0.2", "const_0.2", "const_0.2"),
        ("lin_2.5e-4", "lin_2.5e-4", "lin_2.5e-4"),
        ("cos_3e-4", "cos_3e-4", "cos_3e-4"),
        (half, half, "function"),
        (FALLING, FALLING, "function"),
        ("function", "function", "function"),
    ],
)
def test_a_schedule_in_each_of_its_forms(value: Any, kept: Any, plain: Any, tmp_path: Path) -> None:
    config = Scheduled(rate=value, bonus=value, bound=value)
    assert config.rate == config.bonus == config.bound == kept and type(config.rate) is type(kept)
    written = config.to_plain()
    assert written["rate"] == written["bonus"] == written["bound"] == plain and type(written["rate"]) is type(plain)
    checkpointing.write(tmp_path / "x.pt", {"algorithm": "x", "config": written})
    for read in (json.loads(json.dumps(written)), checkpointing.read(tmp_path / "x.pt")["config"]):
        again = Scheduled.from_fields(None, read)
        assert again.to_plain() == written
        assert (again == config) is (kept == plain)  # all but functions come back


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"rate": 0}, "rate: must be greater than 0, got 0.0"),
        ({"rate": "lin_0"}, "rate: must be greater than 0, got 'lin_0'"),
        ({"rate": -1}, "rate: must be greater than 0, got -1.0"),
        ({"rate": math.nan}, "rate: must be finite, got nan"),
        ({"rate": None}, "rate: must be a number, a string such as .*; got None"),
        ({"rate": True}, "rate: must be a number, a string such as .*; got True"),
        ({"rate": "linear_3"}, "rate: must be a number, a string such as .*; got 'linear_3'"),
        ({"rate": [3e-4]}, r"rate: must be a number, a string such as .*; got \[0.0003\]"),
        ({"rate": lambda share: -share}, "rate: its function must return a finite number .* got -1.0"),
        ({"rate": lambda: 1.0}, "rate: its function must return a number for the remaining fraction 1.0, but failed"),
        ({"bonus": -0.1}, "bonus: must be at least 0, got -0.1"),
        ({"bound": "lin_-1"}, "bound: must be greater than 0, got 'lin_-1'"),
    ],
)
def test_bad_schedules(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Scheduled(**fields)


@pytest.mark.parametrize(
    "fields", [{"bonus": 0}, {"bonus": "lin_0"}, {"bound": None}, {"rate": lambda share: 1 - share}]
)
def test_schedules_at_the_edge(fields: dict[str, Any]) -> None:
    config = Scheduled(**fields)
    assert {name: getattr(config, name) for name in fields} == fields


@pytest.mark.parametrize(
    ("config", "fields", "message"),
    [
        (
            PPOConfig,
            {"num_envs": 6, "rollout_workers": 4},
            "num_envs: must be divisible by rollout_workers = 4, which share the environments, got 6; try 8.",
        ),
        (
            VMPOConfig,
            {"num_envs": 2, "rollout_workers": 2, "asynchronous": True},
            "asynchronous: is for mpo, whose replay buffer may hold experience of older policies, got True; leave it "
            "out: this algorithm learns from rollouts of its newest policy.",
        ),
        (
            MPOConfig,
            {"asynchronous": True},
            "asynchronous: needs rollout_workers, got True without them; give their number, or leave asynchronous out.",
        ),
        (
            MPOConfig,
            {"address": "127.0.0.1:6379"},
            "address: needs rollout_workers, got '127.0.0.1:6379' without them; give their number, or leave address "
            "out.",
        ),
        (
            PPOConfig,
            {"address": "somewhere", "rollout_workers": 1},
            "address: must be HOST:PORT, such as 127.0.0.1:6379, got 'somewhere'; `ray start --head` prints it.",
        ),
    ],
)
def test_rollout_workers_that_cannot_be_are_refused(config: Any, fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError) as caught:
        config(**fields)
    assert str(caught.value) == message


def test_rollout_workers_and_torchrun_exclude_each_other() -> None:
    with pytest.raises(ValueError, match=r"^rollout_workers: are for a run of one process, got 2 with 3 processes"):
        PPOConfig(num_envs=6, rollout_workers=2).check_ranks(3)


def test_without_ray_rollout_workers_say_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    monkeypatch.delitem(sys.modules, "minerva.trainers.rollout_workers", raising=False)
    with pytest.raises(ValueError, match=r'^rollout_workers: needs Ray, .*pip install "minerva-rl\[ray\]"\.$'):
        PPOTrainer("Pendulum-v1", num_envs=2, rollout_workers=2)
