"""Convert PPO2's settings to a `PPOConfig`."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from minerva.callbacks.checks import positive_int
from minerva.compat.stable_baselines.common.policies import ActorCriticPolicy
from minerva.compat.stable_baselines.common.save_util import SCHEDULES
from minerva.compat.stable_baselines.common.schedules import function_from_plain, plain_function
from minerva.trainers.ppo.config import PPOConfig
from minerva.utils.schedules import FUNCTION

SETTINGS = (
    "gamma", "n_steps", "ent_coef", "learning_rate", "vf_coef", "max_grad_norm", "lam", "nminibatches", "noptepochs",
    "cliprange", "cliprange_vf", "verbose",
)  # fmt: skip
"""The settings that a saved model holds besides its networks."""
NOT_SAVED = ("tensorboard_log", "full_tensorboard_log")
"""The settings of a run, which `load` accepts too."""
_OLD_NAMES = {
    "policy_lr": "learning_rate",
    "clip_ratio": "cliprange",
    "clip_ratio_vf": "cliprange_vf",
    "rollout_steps": "n_steps",
    "gae_lambda": "lam",
    "update_epochs": "noptepochs",
    "num_envs": "n_envs",
}


def config_of(model: Any, policy: ActorCriticPolicy, n_envs: int) -> PPOConfig:
    """Convert a model's settings to a `PPOConfig`.

    Raises:
        ValueError: A setting is invalid.
    """
    n_steps, n_minibatches = (positive_int(name, getattr(model, name)) for name in ("n_steps", "nminibatches"))
    epochs = model.noptepochs
    n_batch = n_envs * n_steps
    if n_batch % model.nminibatches:
        raise ValueError(
            f"nminibatches: n_envs * n_steps = {n_envs} * {model.n_steps} = {n_batch} must be divisible by "
            f"nminibatches = {model.nminibatches}; change one of the three."
        )
    if policy.recurrent and n_envs % model.nminibatches:
        raise ValueError(
            f"nminibatches: minibatches of a recurrent (LSTM) policy consist of whole environments, so n_envs = "
            f"{n_envs} must be divisible by nminibatches = {model.nminibatches}; change one of the two."
        )
    off = isinstance(model.cliprange_vf, (int, float)) and model.cliprange_vf < 0
    with old_names():
        return PPOConfig(
            num_envs=n_envs,
            rollout_steps=n_steps,
            gamma=model.gamma,
            gae_lambda=model.lam,
            ent_coef=model.ent_coef,
            policy_lr=model.learning_rate,
            anneal_lr=False,
            vf_coef=model.vf_coef,
            max_grad_norm=model.max_grad_norm,
            update_epochs=int(epochs) if isinstance(epochs, np.integer) else epochs,
            minibatch_size=n_batch // n_minibatches,
            clip_ratio=model.cliprange,
            clip_vloss=not off,
            clip_ratio_vf=None if off else model.cliprange_vf,
            norm_adv=True,
            unbiased_std=False,
            target_kl=None,
            normalize_obs=False,
            normalize_reward=False,
            encoder=policy.extraction,
            shared_encoder=policy.shares,
            lstm_units=policy.lstm_units,
            lstm_layer_norm=policy.layer_norm,
            # PPO2 has its own saving, evaluation and output.
            eval_episodes=0,
            checkpoint_minutes=0,
            console=False,
        )


@contextmanager
def old_names() -> Iterator[None]:
    """Replace the names of `PPOConfig` by PPO2's in errors that are raised inside."""
    try:
        yield
    except ValueError as error:
        name, colon, rest = str(error).partition(":")
        if name not in _OLD_NAMES:
            raise
        raise ValueError(f"{_OLD_NAMES[name]}{colon}{rest}") from error


def plain_settings(model: Any) -> dict[str, Any]:
    """Return a model's settings as plain values; an unknown function becomes a placeholder text, with a warning."""
    plain: dict[str, Any] = {name: plain_number(getattr(model, name)) for name in SETTINGS}
    for name in SCHEDULES:
        if callable(plain[name]):
            known = plain_function(plain[name])
            if known is None:
                warnings.warn(
                    f"{name}: is a function, which a file cannot hold; pass it again to learn on: "
                    f"PPO2.load(path, env, {name}=...)",
                    stacklevel=3,
                )
            plain[name] = known or FUNCTION
    return plain


def loaded_settings(plain: dict[str, Any]) -> dict[str, Any]:
    """Return the settings that `plain_settings` described.

    Raises:
        ValueError: A setting is missing, unknown or of another type.
    """
    if plain.keys() != set(SETTINGS):
        raise ValueError(f"settings: must be {', '.join(SETTINGS)}; got {', '.join(map(str, plain))}.")
    settings = dict(plain)
    for name in SCHEDULES:
        if isinstance(settings[name], dict):
            settings[name] = function_from_plain(settings[name])
    return settings


def plain_number(value: Any) -> Any:
    """Return a number of NumPy as Python's; anything else as it is."""
    return value.item() if isinstance(value, np.generic) else value
