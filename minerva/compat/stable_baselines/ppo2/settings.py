"""Convert PPO2's settings to a `PPOConfig`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from minerva.callbacks.checks import positive_int
from minerva.compat.stable_baselines.common.policies import ActorCriticPolicy
from minerva.trainers.ppo.config import PPOConfig
from minerva.utils.schedules import plain_schedule

SETTINGS = (
    "gamma", "n_steps", "ent_coef", "learning_rate", "vf_coef", "max_grad_norm", "lam", "nminibatches", "noptepochs",
    "cliprange", "cliprange_vf", "verbose", "tensorboard_log", "full_tensorboard_log",
)  # fmt: skip
"""The settings that a saved model holds besides its networks."""
SCHEDULES = ("learning_rate", "cliprange", "cliprange_vf")
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
    for name in ("n_steps", "nminibatches"):
        positive_int(name, getattr(model, name))
    n_batch = n_envs * model.n_steps
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
            rollout_steps=model.n_steps,
            gamma=model.gamma,
            gae_lambda=model.lam,
            ent_coef=model.ent_coef,
            policy_lr=model.learning_rate,
            anneal_lr=False,
            vf_coef=model.vf_coef,
            max_grad_norm=model.max_grad_norm,
            update_epochs=model.noptepochs,
            minibatch_size=n_batch // model.nminibatches,
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
    """Return a model's settings as plain values; a function becomes a placeholder text."""
    plain: dict[str, Any] = {name: getattr(model, name) for name in SETTINGS}
    for name in SCHEDULES:
        if plain[name] is not None:
            plain[name] = plain_schedule(plain[name])
    if plain["tensorboard_log"] is not None:
        plain["tensorboard_log"] = str(plain["tensorboard_log"])
    return plain
