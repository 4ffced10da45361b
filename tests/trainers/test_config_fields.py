"""Every field of every config refuses what no setting may be. A new field is covered by itself."""

from __future__ import annotations

import dataclasses
import math
import typing
from dataclasses import dataclass
from types import NoneType
from typing import Any

import numpy as np
import pytest

from minerva import api, presets
from minerva.trainers.config import RunConfig
from minerva.trainers.mpo.config import MPOConfig
from minerva.trainers.ppo.config import PPOConfig
from minerva.trainers.vmpo.config import VMPOConfig
from minerva.utils.schedules import Schedule

CONFIGS = (PPOConfig, MPOConfig, VMPOConfig)
FIELDS = [pytest.param(config, field.name, id=f"{config.__name__}.{field.name}")
          for config in CONFIGS for field in dataclasses.fields(config)]  # fmt: skip
NO_SETTING: list[Any] = [
    math.nan, math.inf, -math.inf, np.float32("nan"), "no such setting", b"1", [], [1.5], None, True, 1j, object(),
    2**63, -(2**63) - 1, 10**5000, 1e300,
]  # fmt: skip


def is_fine(kind: Any, value: Any) -> bool:
    """Whether a type, without its range, has this one of the values above."""
    options = (kind, *typing.get_args(kind))
    if value is None:
        return NoneType in options
    if value is True:
        return bool in options or True in options
    return isinstance(value, str) and kind is str


@pytest.mark.parametrize(("config", "name"), FIELDS)
def test_a_field_refuses_what_no_setting_may_be(config: Any, name: str) -> None:
    kind = typing.get_type_hints(config)[name]
    wrong = [value for value in NO_SETTING if not is_fine(kind, value)]
    assert len(wrong) >= len(NO_SETTING) - 2
    for value in wrong:
        with pytest.raises(ValueError) as caught:
            config(**{name: value})
        message = str(caught.value)
        assert message.startswith(f"{name}: must ") and message.endswith(".") and "\n" not in message
        assert len(message) < 500


@pytest.mark.parametrize("algo", list(api.ALGORITHMS))
def test_defaults_and_presets_pass(algo: str) -> None:
    config = api.config_class(algo)
    assert config() == config(**config().to_plain())
    found = presets.load_presets(algo)
    assert len(found) > 3
    for preset in [*found.values(), *presets.load_defaults(algo).values()]:
        config.from_fields(None, preset.fields)


@dataclass(frozen=True, kw_only=True)
class ForgottenRange(RunConfig):
    rate: float = 0.5


@dataclass(frozen=True, kw_only=True)
class ForgottenSchedule(RunConfig):
    bound: Schedule | None = None


@dataclass(frozen=True, kw_only=True)
class UnknownKind(RunConfig):
    names: list[str] = dataclasses.field(default_factory=list)


@pytest.mark.parametrize(
    ("config", "name"), [(ForgottenRange, "rate"), (ForgottenSchedule, "bound"), (UnknownKind, "names")]
)
def test_a_field_that_does_not_say_what_is_allowed_is_a_mistake_of_the_author(config: Any, name: str) -> None:
    with pytest.raises(TypeError, match=f"{name}: its type .* must be annotated with the Range"):
        config()


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"num_envs": 99999999999}, "num_envs: must be at most 65,536, got 99999999999"),
        ({"torch_threads": 100000}, "torch_threads: must be at most 1,024, got 100000"),
        ({"eval_episodes": 10**23}, "eval_episodes: must be at most 65,536, got 1000"),
        ({"policy_layer_sizes": (64, 10**6)}, "policy_layer_sizes: must be at most 16,384, got 1000000"),
        ({"policy_layer_sizes": (16384,) * 3}, "policy_layer_sizes: must have at most 268,435,456 weights between"),
        ({"num_envs": 60000, "rollout_steps": 10**7}, "rollout_steps: must be at most 35,791 with num_envs = 60000"),
        ({"compile": 1}, "compile: must be 'auto', True or False, got 1"),
        ({"max_grad_norm": math.inf}, "max_grad_norm: must be finite, got inf"),
        ({"policy_lr": 1e-300}, "policy_lr: must be greater than 0, got 1e-300"),  # 0 in float32
        ({"policy_lr": "const_inf"}, "policy_lr: must be finite, got 'const_inf'"),
        ({"policy_lr": "lin_nan"}, "policy_lr: must be finite, got 'lin_nan'"),
        ({"policy_lr": lambda share: math.nan}, "policy_lr: its function must return a finite number"),
        ({"policy_lr": lambda share: "0.1"}, "policy_lr: its function must return a number .* str is not a number"),
        ({"env_kwargs": ["g"]}, r"env_kwargs: must be a dict of arguments, .* got \['g'\]"),
        ({"env_kwargs": {"g": math.nan}}, r"env_kwargs\['g'\]: must be a plain value .*, got nan"),
        ({"env_kwargs": {"g": 2**64}}, r"env_kwargs\['g'\]: must be at most 9,223"),
    ],
)  # fmt: skip
def test_bounds_and_what_they_say(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=f"^{message}"):
        PPOConfig(**fields)


def test_arguments_of_an_environment_cannot_be_nested_without_end() -> None:
    endless: list[Any] = []
    endless.append(endless)
    with pytest.raises(ValueError, match="must be nested at most 32 levels deep"):
        PPOConfig(env_kwargs={"x": endless})


def test_an_infinite_argument_means_no_bound_to_an_environment() -> None:
    kwargs = {"healthy_z_range": (0.7, math.inf), "steps": [np.int64(3)]}
    assert PPOConfig(env_kwargs=kwargs).env_kwargs == {"healthy_z_range": (0.7, math.inf), "steps": [3]}


@pytest.mark.parametrize("config", CONFIGS)
def test_none_is_no_limit_of_the_gradients(config: Any) -> None:
    assert config(max_grad_norm=None).max_grad_norm is None
